//! The protocol of registries: addresses, the challenge that requires a token, the response with the token.
//!
//! <https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md>,
//! <https://distribution.github.io/distribution/spec/auth/token/>

use std::net::IpAddr;

use reqwest::Url;
use serde::Deserialize;

use crate::docker_hub;
use crate::failure::shown;
use crate::hosts;
use crate::percent;

/// Media types for the `Accept` header: OCI's image index and manifest, and Docker's equivalents.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";

/// The size limit of a manifest, which registries have too.
pub(crate) const MANIFEST_LIMIT: u64 = 4 << 20;
/// The size limit of a response with a token.
pub(crate) const TOKEN_LIMIT: u64 = 64 << 10;
/// The reason for a failure without a token.
pub(crate) const NO_TOKEN: &str = "the registry's answer holds no token";

/// The base of a repository's URLs. As with every other client, plain http is used for loopback only.
#[must_use]
pub(crate) fn base(registry: &str, repository: &str) -> String {
    let registry = docker_hub::host_of(registry);
    let host = registry.split(':').next().unwrap_or_default();
    let scheme = match host {
        "localhost" | "127.0.0.1" => "http",
        _ => "https",
    };
    format!("{scheme}://{registry}/v2/{repository}")
}

/// What a registry asks for before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A token, from the service at this URL.
    Token(String),
    /// A user and a password, at the registry itself.
    Basic,
}

impl Challenge {
    /// Reads the challenge of the registry at `base`.
    ///
    /// # Errors
    /// As [`token_url`].
    pub(crate) fn read(challenge: &str, base: &str) -> Result<Self, String> {
        let scheme = challenge.split(' ').next().unwrap_or_default();
        match scheme.eq_ignore_ascii_case("basic") {
            true => Ok(Self::Basic),
            false => token_url(challenge, base).map(Self::Token),
        }
    }
}

/// Whether a login may go to a token service: by TLS, or to this machine, where a registry without TLS is.
pub(crate) fn is_safe_for_logins(service: &str) -> bool {
    let Ok(url) = Url::parse(service) else {
        return false;
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let address: Option<IpAddr> = host.parse().ok();
    let is_here = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    url.scheme() == "https" || is_here
}

/// The address of the token service: the challenge `Bearer realm="…",service="…",scope="…"` as one URL. It is https, or the
/// scheme of the registry at `base`, and never a metadata service: a registry chooses it, and the machine asks it.
///
/// # Errors
/// The reason, for any other challenge or address.
pub(crate) fn token_url(challenge: &str, base: &str) -> Result<String, String> {
    let url = asked_for(challenge)
        .ok_or_else(|| format!("the registry asks for {challenge:?}; expected Bearer"))?;
    let wrong = |why: &str| {
        Err(format!(
            "the registry's token service {} {why}",
            shown(&url)
        ))
    };
    let Ok(parsed) = Url::parse(&url) else {
        return wrong("is not an address");
    };
    if parsed.scheme() != "https" && !base.starts_with(&format!("{}:", parsed.scheme())) {
        return wrong("is not https");
    }
    if hosts::is_link_local(parsed.host_str().unwrap_or_default()) {
        return wrong("is a metadata service or link-local");
    }
    Ok(url)
}

/// The realm of a challenge with its query; none if it is not a bearer's.
fn asked_for(challenge: &str) -> Option<String> {
    let (scheme, rest) = challenge.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut realm = None;
    let mut query = Vec::new();
    let mut rest = rest.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        // A value in quotes may hold commas: scope="repository:a:pull,push".
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        match key.trim() {
            "realm" => realm = Some(value),
            key @ ("service" | "scope") => {
                query.push(format!("{key}={}", percent::encode_scope(value)));
            }
            _ => {}
        }
        rest = after.trim_start_matches([',', ' ']);
    }
    let realm = realm?;
    let mark = if realm.contains('?') { '&' } else { '?' };
    Some(format!("{realm}{mark}{}", query.join("&")))
}

/// The token in a token service's response, under either of its names.
#[must_use]
pub(crate) fn token_of(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Token {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Token = serde_json::from_slice(answer).ok()?;
    answer.token.or(answer.access_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_becomes_an_address() {
        for (challenge, expected) in [
            (
                r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#,
                Ok("https://auth.example/token?service=r.example&scope=repository:a/b:pull%2Cpush"),
            ),
            (
                r#"bearer realm="https://auth.example/t?x=1", service="a b""#,
                Ok("https://auth.example/t?x=1&service=a%20b"),
            ),
            (r#"Basic realm="x""#, Err("expected Bearer")),
            ("Bearer", Err("expected Bearer")),
            (r#"Bearer service="x""#, Err("expected Bearer")),
            (r#"Bearer realm="/token""#, Err("is not an address")),
            (
                r#"Bearer realm="http://auth.example/t""#,
                Err("is not https"),
            ),
            (
                r#"Bearer realm="https://169.254.169.254/latest""#,
                Err("is a metadata service or link-local"),
            ),
            (
                r#"Bearer realm="https://[fe80::a9fe:a9fe]/x""#,
                Err("is a metadata service or link-local"),
            ),
        ] {
            let found = token_url(challenge, "https://r.example/v2/a");
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{challenge}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
                (found, _) => panic!("{challenge}: {found:?}"),
            }
        }
        // A registry on loopback has plain http.
        let plain = r#"Bearer realm="http://127.0.0.1:5/t""#;
        assert!(token_url(plain, "http://127.0.0.1:5/v2/a").is_ok());
    }

    #[test]
    fn a_login_goes_to_the_registry_or_to_a_service_by_tls() {
        let base = "https://r.example/v2/a";
        for basic in ["Basic realm=\"x\"", "BASIC realm=\"x\"", "basic"] {
            assert_eq!(
                Challenge::read(basic, base),
                Ok(Challenge::Basic),
                "{basic}"
            );
        }
        let token = r#"Bearer realm="https://auth.example/t""#;
        let service = "https://auth.example/t?".to_owned();
        assert_eq!(Challenge::read(token, base), Ok(Challenge::Token(service)));
        assert!(Challenge::read("Negotiate", base).is_err());
        for (service, safe) in [
            ("https://auth.example/t", true),
            ("http://127.0.0.1:5/t", true),
            ("http://[::1]:5/t", true),
            ("http://auth.example/t", false),
            ("http://127.0.0.1.auth.example/t", false),
        ] {
            assert_eq!(is_safe_for_logins(service), safe, "{service}");
        }
    }

    #[test]
    fn a_token_has_two_names() {
        assert_eq!(token_of(br#"{"token":"a"}"#).as_deref(), Some("a"));
        assert_eq!(token_of(br#"{"access_token":"b"}"#).as_deref(), Some("b"));
        assert_eq!(token_of(b"{}"), None);
        assert_eq!(token_of(b"<html>"), None);
    }
}
