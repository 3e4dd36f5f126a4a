//! `oci://` addresses.

use crate::artifact::Artifact;
use crate::oci::sha256;
use crate::percent;
use crate::registry;

/// Reads `oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST][?title=NAME]`.
pub(super) fn parse(text: &str) -> Result<Artifact, String> {
    let wrong =
        || "expected oci://REGISTRY/REPOSITORY, with :TAG or @sha256:DIGEST behind it".to_owned();
    let text = text.split_once('#').map_or(text, |(text, _)| text);
    let (shown, query) = text.split_once('?').unwrap_or((text, ""));
    let (_, rest) = shown.split_once("://").ok_or_else(wrong)?;
    let (registry, path) = rest.split_once('/').ok_or_else(wrong)?;
    let (path, digest) = match path.split_once('@') {
        Some((path, digest)) => (path, Some(digest)),
        None => (path, None),
    };
    let (repository, tag) = match path.rsplit_once(':') {
        Some((repository, tag)) => (repository, tag),
        None => (path, "latest"),
    };
    let plain = |text: &str, also: &[u8]| {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b) || also.contains(&b);
        !text.is_empty() && text.bytes().all(good)
    };
    if !plain(registry, b":[]") || !plain(repository, b"/") || !plain(tag, b"") {
        return Err(wrong());
    }
    if digest.is_some_and(|digest| sha256(digest).is_none()) {
        return Err("the digest is not sha256: and 64 hexadecimal digits".to_owned());
    }
    let title = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("title="));
    Ok(Artifact::new(
        shown.to_owned(),
        registry::base(registry, repository),
        digest.unwrap_or(tag).to_owned(),
        title.map(percent::decode),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, base, version) in [
            ("oci://r.example/a/b", "https://r.example/v2/a/b", "latest"),
            (
                "oci://r.example:5000/a:v1",
                "https://r.example:5000/v2/a",
                "v1",
            ),
            ("oci://127.0.0.1:5/a:v1#x", "http://127.0.0.1:5/v2/a", "v1"),
            (
                "oci://docker.io/a/b:v1",
                "https://registry-1.docker.io/v2/a/b",
                "v1",
            ),
            (
                &format!("oci://r.example/a:v1@{digest}"),
                "https://r.example/v2/a",
                &digest,
            ),
        ] {
            let content = parse(text).unwrap();
            assert_eq!(
                (content.base.as_str(), content.version.as_str()),
                (base, version)
            );
        }
        let content = parse("oci://r.example/a?title=my%20file").unwrap();
        assert_eq!(content.title.as_deref(), Some("my file"));
        for text in [
            "oci://r.example",
            "oci:x",
            "oci://r/a@sha256:12",
            "oci://r/a b",
            "oci:///a",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
