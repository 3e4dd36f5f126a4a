//! What a Job has of this machine's environment: mirrors and proxies, without which a builder of one program finds no archive.

use anyhow::{Result, ensure};

use crate::debian::mirror::{MIRROR_VARIABLE, Mirrors, SECURITY_VARIABLE, SNAPSHOT_VARIABLE};
use crate::host::sandbox::PROXY_VARIABLES;

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
