//! The JSON documents of OCI images and artifacts. Unused fields are dropped.
//!
//! <https://github.com/opencontainers/image-spec/tree/v1.1.1>

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A blob by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the blob.
    pub media_type: String,
    /// As `sha256:…`.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Names and notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The platform that an image is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// The platform that an image is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// As `amd64`.
    pub architecture: String,
    /// As `linux`.
    pub os: String,
}

/// An image index: the same image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The manifests of the images.
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The image for Linux on this architecture, by the registries' name of it. An entry without a platform fits every
    /// machine that none is for: it may be a note about the images, such as a list of what is in them.
    ///
    /// # Errors
    /// If no entry fits; lists the platforms of the index.
    pub fn for_linux(&self, architecture: &str) -> Result<&Descriptor, String> {
        let is_for = |descriptor: &&Descriptor| {
            let platform = descriptor.platform.as_ref();
            platform.is_some_and(|p| p.architecture == architecture && p.os == "linux")
        };
        let is_for_all = |descriptor: &&Descriptor| descriptor.platform.is_none();
        let mut all = self.manifests.iter();
        let found = all.clone().find(is_for).or_else(|| all.find(is_for_all));
        found.ok_or_else(|| {
            let platforms = self.manifests.iter().filter_map(|m| m.platform.as_ref());
            let found: Vec<String> = platforms
                .map(|p| format!("{}/{}", p.os, p.architecture))
                .collect();
            format!(
                "no image for linux/{architecture}; the index has {}",
                found.join(", ")
            )
        })
    }
}

/// An image manifest: one image, or one artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The configuration of the image.
    pub config: Descriptor,
    /// Its layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// A document that a tag or a digest refers to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Document {
    /// Several images.
    Index(Index),
    /// One image.
    Manifest(Manifest),
}

impl Document {
    /// Reads either document. Its fields distinguish the two: old documents have no media type.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn read(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }
}

/// This machine's architecture, as registries name it.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads `sha256:` and 64 hexadecimal digits.
#[must_use]
pub fn sha256(digest: &str) -> Option<Digest> {
    Digest::sha256(digest.strip_prefix("sha256:")?)
}

/// The digest that the document of this version must have; none for a tag.
///
/// # Errors
/// If the version is a digest of another kind: its document would pass unverified.
pub(crate) fn digest_of(version: &str) -> Result<Option<Digest>, String> {
    match sha256(version) {
        None if version.contains(':') => Err(format!(
            "{version:?}: expected sha256: and 64 hexadecimal digits"
        )),
        digest => Ok(digest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_cannot_be_verified_is_refused() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(digest_of(&digest), Ok(sha256(&digest)));
        assert_eq!(digest_of("v1"), Ok(None));
        for version in ["sha512:aa", "sha256:aa", "sha256:"] {
            assert!(digest_of(version).is_err(), "{version}");
        }
    }

    const DESCRIPTOR: &str = r#"{"mediaType":"m","digest":"sha256:x","size":1}"#;

    #[test]
    fn an_index_and_a_manifest_are_told_apart() {
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{DESCRIPTOR}]}}"#);
        let manifest = format!(r#"{{"schemaVersion":2,"config":{DESCRIPTOR},"layers":[]}}"#);
        let read = |text: &str| Document::read(text.as_bytes());
        assert!(matches!(read(&index), Ok(Document::Index(_))));
        assert!(matches!(read(&manifest), Ok(Document::Manifest(_))));
        assert!(read("{}").is_err());
    }

    #[test]
    fn the_image_of_an_architecture_is_chosen() {
        let one = |architecture: &str| {
            let platform =
                format!(r#","platform":{{"os":"linux","architecture":"{architecture}"}}}}"#);
            DESCRIPTOR.replace('}', &platform)
        };
        let index = |manifests: &[String]| -> Index {
            let text = format!(
                r#"{{"schemaVersion":2,"manifests":[{}]}}"#,
                manifests.join(",")
            );
            serde_json::from_str(&text).unwrap()
        };
        let both = index(&[one("arm64"), one("amd64")]);
        assert_eq!(both.for_linux("amd64"), Ok(&both.manifests[1]));
        let why = both.for_linux("riscv64").unwrap_err();
        assert!(why.contains("linux/arm64, linux/amd64"), "{why}");
        let note = DESCRIPTOR.to_owned();
        let noted = index(&[note.clone(), one("amd64")]);
        assert_eq!(noted.for_linux("amd64"), Ok(&noted.manifests[1]));
        assert!(index(&[note]).for_linux("riscv64").is_ok());
    }
}
