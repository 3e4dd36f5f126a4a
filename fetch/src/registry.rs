//! The protocol of registries: addresses, the challenge that requires a token, the response with the token.
//!
//! <https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md>,
//! <https://distribution.github.io/distribution/spec/auth/token/>

use serde::Deserialize;

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
    let host = registry.split(':').next().unwrap_or_default();
    let scheme = match host {
        "localhost" | "127.0.0.1" => "http",
        _ => "https",
    };
    format!("{scheme}://{registry}/v2/{repository}")
}

/// The address of the token service: the challenge `Bearer realm="…",service="…",scope="…"` as one URL; none for any
/// other challenge.
#[must_use]
pub(crate) fn token_url(challenge: &str) -> Option<String> {
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
                Some(
                    "https://auth.example/token?service=r.example&scope=repository:a/b:pull%2Cpush",
                ),
            ),
            (
                r#"bearer realm="https://auth.example/t?x=1", service="a b""#,
                Some("https://auth.example/t?x=1&service=a%20b"),
            ),
            (r#"Basic realm="x""#, None),
            ("Bearer", None),
            (r#"Bearer service="x""#, None),
        ] {
            assert_eq!(token_url(challenge).as_deref(), expected, "{challenge}");
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
