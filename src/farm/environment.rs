//! What a Job has of this machine's environment: mirrors and proxies, without which a builder of one program finds no archive, and the
//! way to the remote cache.

use anyhow::{Result, ensure};

use crate::debian::mirror::{MIRROR_VARIABLE, Mirrors, SECURITY_VARIABLE, SNAPSHOT_VARIABLE};
use crate::host::sandbox::PROXY_VARIABLES;

/// The folder of the claim that all Jobs write to.
pub(super) const OUTPUT: &str = "/output";

/// Refuses a remote cache that the Jobs cannot use as this machine does. `endpoint` is the server of buckets, if it is not AWS; `signs`
/// is whether the Jobs send their results.
///
/// # Errors
/// If an address has a user, a password or a query, which may be a secret; the cache is a folder that the Jobs do not have; or
/// results cannot be sent to it and are to be.
pub fn check_cache(url: Option<&str>, endpoint: Option<&str>, signs: bool) -> Result<()> {
    for (address, names, unset) in [
        (
            url,
            "SLIPWAY_REMOTE_CACHE and SLIPWAY_REMOTE_CACHE_KEYS",
            "give --remote-cache '' here",
        ),
        (endpoint, "AWS_ENDPOINT_URL_S3", "unset it here"),
    ] {
        let address = address.unwrap_or_default();
        let shown = fetch::shown(address);
        ensure!(
            shown == address,
            "the address {shown} has a user, a password or a query, which may be a secret, and the Jobs are for everyone to read: put \
             {names} into the Secret of --credentials, and {unset}"
        );
    }
    let Some(url) = url else {
        return Ok(());
    };
    if let Some(folder) = url.strip_prefix("file://") {
        let below = folder.strip_prefix(OUTPUT);
        ensure!(
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            "the remote cache {url} is a folder of this machine, which the Jobs do not have: share a bucket (s3://), a registry (oci://) \
             or a folder of the claim (file://{OUTPUT}/…)"
        );
        return Ok(());
    }
    ensure!(
        !signs || url.starts_with("s3://") || url.starts_with("oci://"),
        "the remote cache {url} is only read: no Job can send its results there, as --signing-key has them do"
    );
    Ok(())
}

/// The variables of a Job, by name and value: Debian's mirrors as a build on this machine would find them for a recipe that names none,
/// and the variables of proxies and of the Go toolchain that are set.
///
/// # Errors
/// If a value has a user or a password, or may have a token: what is rendered is no place for secrets.
pub fn environment(
    mirrors: Option<&Mirrors>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>> {
    let found = mirrors.map_or_else(Vec::new, |mirrors| {
        vec![
            (MIRROR_VARIABLE, mirrors.main.clone()),
            (SECURITY_VARIABLE, mirrors.security.clone()),
            (SNAPSHOT_VARIABLE, mirrors.snapshot.clone()),
        ]
    });
    let set = PROXY_VARIABLES.iter().filter_map(|name| {
        let value = variable(name).filter(|value| !value.is_empty());
        Some((*name, value?))
    });
    let all: Vec<(&str, String)> = found.into_iter().chain(set).collect();
    for (name, value) in &all {
        // GOPROXY is a list.
        let is_public = |part: &str| fetch::shown(part) == part;
        ensure!(
            value.split([',', '|']).all(is_public),
            "{name} has a user, a password or a query, which may be a secret, and the Jobs are for everyone to read: put {name} into \
             the Secret of --credentials, and unset it here"
        );
    }
    let owned = all
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Ok(owned.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::mirror::Host;

    #[test]
    fn a_remote_cache_that_the_jobs_do_not_have_or_that_has_a_secret_is_refused() {
        for (url, signs) in [
            ("s3://builds/slipway", true),
            ("oci://r.example:5000/team/cache", true),
            ("https://mirror.example/cache", false),
            ("file:///output/.cache", true),
        ] {
            check_cache(Some(url), Some("https://minio.example"), signs).unwrap();
        }
        check_cache(None, None, false).unwrap();
        let user = "https://joe:secret@b.example/x";
        for (url, endpoint, signs, words) in [
            (Some("file:///mnt/cache"), None, false, "do not have"),
            (Some("file:///outputs"), None, false, "do not have"),
            (Some("https://b.example/x"), None, true, "is only read"),
            (Some(user), None, false, "SLIPWAY_REMOTE_CACHE and"),
            (
                Some("https://b.example/x?sig=secret"),
                None,
                false,
                "--credentials",
            ),
            (None, Some(user), false, "AWS_ENDPOINT_URL_S3"),
        ] {
            let error = check_cache(url, endpoint, signs).unwrap_err().to_string();
            assert!(error.contains(words), "{url:?}: {error}");
            assert!(!error.contains("joe") && !error.contains("sig="), "{error}");
        }
    }

    #[test]
    fn mirrors_and_proxies_go_along_and_secrets_do_not() {
        let host = Host {
            mirror: Some("http://mirror.example/debian".to_owned()),
            ..Host::default()
        };
        let mirrors = Mirrors::find(None, None, &host).unwrap();
        let set = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        let all = environment(Some(&mirrors), set("https_proxy", "http://proxy:3128")).unwrap();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            MIRROR_VARIABLE,
            SECURITY_VARIABLE,
            SNAPSHOT_VARIABLE,
            "https_proxy",
        ];
        assert_eq!(names, expected);
        assert_eq!(all[0].1, "http://mirror.example/debian");
        assert_eq!(all[1].1, "http://mirror.example/debian-security");
        assert_eq!(all[3].1, "http://proxy:3128");
        assert_eq!(environment(None, |_| None).unwrap(), []);
        for (name, value) in [
            ("HTTPS_PROXY", "http://joe:secret@proxy:3128"),
            ("http_proxy", "joe:secret@proxy:3128"),
            (
                "GOPROXY",
                "https://public.example,https://joe:secret@b.example|direct",
            ),
        ] {
            let error = environment(None, set(name, value)).unwrap_err().to_string();
            assert!(
                error.contains(name) && !error.contains("secret@"),
                "{error}"
            );
            assert!(error.contains("--credentials"), "{error}");
        }
    }
}
