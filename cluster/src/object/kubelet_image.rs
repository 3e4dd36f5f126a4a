//! `[kubelet] image`: a kubelet's container in a registry, by the digest of its image.

use std::fmt;

use crate::release::Version;
use crate::report::Report;
use crate::yaml::Node;

/// The field.
const FIELD: &str = "kubelet.image";
/// What is expected there.
const FORM: &str = "expected REGISTRY/REPOSITORY@sha256: and 64 hexadecimal digits";
/// A kubelet may be so many minor versions older than the API server
/// (<https://kubernetes.io/releases/version-skew-policy/#kubelet>).
const OLDER: u32 = 3;

/// An image by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletImage {
    /// Host, with port if one is given.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// SHA-256 of the manifest or the index: 64 lower-case hexadecimal digits.
    pub digest: String,
}

impl KubeletImage {
    /// Reads `REGISTRY/REPOSITORY[:TAG]@sha256:…`. A tag says nothing beside the digest, and is dropped.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("{text:?}: {why}; {FORM}"));
        let Some((name, digest)) = text.split_once('@') else {
            return wrong("a tag may become another image");
        };
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        let digits = digest.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.chars().all(is_digit) {
            return wrong("its digest is not SHA-256");
        }
        let (registry, path) = name.split_once('/').unwrap_or_default();
        if !(registry.contains(['.', ':']) || registry == "localhost") {
            return wrong("it names no registry");
        }
        let repository = path.rsplit_once(':').map_or(path, |(path, _)| path);
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        if repository.is_empty() || !repository.chars().all(is_plain) || repository.contains("..") {
            return wrong("its repository has other characters than a-z 0-9 . _ - /");
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            digest: digits.to_owned(),
        })
    }
}

impl fmt::Display for KubeletImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            registry,
            repository,
            digest,
        } = self;
        write!(f, "{registry}/{repository}@sha256:{digest}")
    }
}

pub(super) fn read(node: &Node, report: &mut Report) -> Option<KubeletImage> {
    let read = node
        .text()
        .ok_or_else(|| FORM.to_owned())
        .and_then(KubeletImage::parse);
    match read {
        Ok(image) => Some(image),
        Err(message) => {
            report.refuse_at(FIELD, node.at, message);
            None
        }
    }
}

/// Whether a kubelet of one version works with the API server of another.
///
/// # Errors
/// The reason why not.
pub fn skew(kubelet: &Version, api_server: &Version) -> Result<(), String> {
    let (own, served) = (kubelet.minor(), api_server.minor());
    if kubelet.numbers[0] != api_server.numbers[0] || own > served {
        return Err(format!(
            "the kubelet {kubelet} is newer than the API server, {api_server}; expected the same minor version or an older one"
        ));
    }
    if served - own > OLDER {
        return Err(format!(
            "the kubelet {kubelet} is more than {OLDER} minor versions older than the API server, {api_server}"
        ));
    }
    Ok(())
}

/// As [`skew`] of the kubelet that an image brings: the error says which image or version works.
///
/// # Errors
/// The reason why not, and what works.
pub fn own_skew(kubelet: &Version, api_server: &Version) -> Result<(), String> {
    skew(kubelet, api_server).map_err(|why| {
        let ([major, newest, _], own) = (api_server.numbers, kubelet.minor());
        let (oldest, last) = (newest.saturating_sub(OLDER), own + OLDER);
        format!(
            "{why}; what works: an image, or {FIELD}, with a kubelet of {major}.{oldest} to {major}.{newest}, or API servers of \
             {major}.{own} to {major}.{last} with this image"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_registry_and_a_digest() {
        let digest = "a1".repeat(32);
        let image = KubeletImage::parse(&format!("r.example:5000/a/kubelet:v1@sha256:{digest}"));
        let image = image.unwrap();
        assert_eq!(
            (image.registry.as_str(), image.repository.as_str()),
            ("r.example:5000", "a/kubelet")
        );
        assert_eq!(
            image.to_string(),
            format!("r.example:5000/a/kubelet@sha256:{digest}")
        );
        for (text, expected) in [
            (
                "r.example/kubelet:v1.36.3".to_owned(),
                "a tag may become another image",
            ),
            (
                "r.example/kubelet@sha256:ab".to_owned(),
                "its digest is not SHA-256",
            ),
            (
                format!("r.example/kubelet@sha256:{}", "A1".repeat(32)),
                "its digest is not SHA-256",
            ),
            (format!("kubelet@sha256:{digest}"), "it names no registry"),
            (
                format!("library/kubelet@sha256:{digest}"),
                "it names no registry",
            ),
            (
                format!("r.example/../x@sha256:{digest}"),
                "its repository has other characters",
            ),
        ] {
            let why = KubeletImage::parse(&text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn a_kubelet_is_not_newer_than_the_api_server() {
        let at = |text: &str| Version::parse(text).unwrap();
        for (kubelet, api_server, expected) in [
            ("v1.36.3", "v1.36.0", None),
            ("v1.33.0", "v1.36.3", None),
            ("v1.37.0", "v1.36.3", Some("is newer than the API server")),
            (
                "v1.32.9",
                "v1.36.3",
                Some("more than 3 minor versions older"),
            ),
            ("v2.36.0", "v1.36.3", Some("is newer")),
        ] {
            let found = skew(&at(kubelet), &at(api_server));
            assert_eq!(found.is_err(), expected.is_some(), "{kubelet}");
            if let Some(expected) = expected {
                assert!(found.unwrap_err().contains(expected));
            }
        }
    }
}
