//! A store in a repository of a registry.
//!
//! A note is the annotation of the manifest's config, which is the empty document that artifacts have in its place:
//! <https://github.com/opencontainers/image-spec/blob/v1.1.1/manifest.md#guidelines-for-artifact-usage>

use std::path::Path;

use anyhow::Result;
use data_encoding::HEXLOWER;
use fetch::oci::{Descriptor, Document};
use fetch::{Content, Failure, Patience, Repository, blocking};
use sha2::{Digest as _, Sha256};

use super::Object;

/// The annotation with a note's text.
const NOTE: &str = "dev.slipway.note";
/// What the manifest is for.
const ARTIFACT_TYPE: &str = "application/vnd.slipway.store.v1";
/// The media type of a file.
const FILE: &str = "application/octet-stream";
/// The empty document, and its media type.
const EMPTY: &str = "{}";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// The longest tag, which the specification of registries sets.
const LONGEST_TAG: usize = 128;

/// A repository.
#[derive(Debug)]
pub(super) struct Registry {
    name: String,
    repository: Repository,
}

impl Registry {
    /// Reads `HOST[:PORT]/REPOSITORY`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let plain = |text: &str, also: &[u8]| {
            let good =
                |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b) || also.contains(&b);
            !text.is_empty() && text.bytes().all(good)
        };
        match text.split_once('/') {
            Some((host, name)) if plain(host, b":[]") && plain(name, b"/") => Ok(Self {
                name: format!("oci://{text}"),
                repository: Repository::new(host, name),
            }),
            _ => Err("expected oci://HOST/REPOSITORY, without a tag".to_owned()),
        }
    }

    /// The repository, as patient as it should be for the next request.
    fn at(&mut self, patience: Patience) -> &mut Repository {
        self.repository = self.repository.clone().with_patience(patience);
        &mut self.repository
    }

    pub(super) fn get(
        &mut self,
        client: &blocking::Client,
        (sha256, most): (&str, u64),
        patience: Patience,
        target: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        let blob = file(sha256, most);
        client.blob(self.at(patience), &blob, target, on_bytes)
    }

    pub(super) fn put(
        &mut self,
        client: &blocking::Client,
        sha256: &str,
        patience: Patience,
        content: Content<'_>,
    ) -> Result<bool> {
        let digest = format!("sha256:{sha256}");
        let repository = self.at(patience);
        client.run(async |client| {
            if repository.has_blob(client, &digest).await? {
                return Ok(false);
            }
            repository.push_blob(client, &digest, content).await?;
            Ok(true)
        })
    }

    pub(super) fn note(
        &mut self,
        client: &blocking::Client,
        name: &str,
        patience: Patience,
    ) -> Result<Vec<u8>, Failure> {
        let text = client.document(self.at(patience), name)?;
        let manifest = match Document::read(&text) {
            Ok(Document::Manifest(manifest)) => manifest,
            Ok(Document::Index(_)) => return Err(self.refuse(name, "it is an index of images")),
            Err(error) => return Err(self.refuse(name, &error.to_string())),
        };
        match manifest.config.annotations.get(NOTE) {
            Some(note) => Ok(note.clone().into_bytes()),
            None => Err(self.refuse(name, "it has no note of Slipway")),
        }
    }

    fn refuse(&self, tag: &str, why: &str) -> Failure {
        Failure::Refused {
            url: format!("{}:{tag}", self.name),
            why: why.to_owned(),
        }
    }

    pub(super) fn put_note(
        &mut self,
        client: &blocking::Client,
        (name, text): (&str, &str),
        objects: &[Object],
        patience: Patience,
    ) -> Result<()> {
        let tag = name.get(..LONGEST_TAG).unwrap_or(name);
        let empty = HEXLOWER.encode(&Sha256::digest(EMPTY));
        let mut config = Descriptor {
            media_type: EMPTY_TYPE.to_owned(),
            ..file(&empty, EMPTY.len() as u64)
        };
        config.annotations.insert(NOTE.to_owned(), text.to_owned());
        let layers: Vec<Descriptor> = objects
            .iter()
            .map(|object| file(&object.sha256, object.size))
            .collect();
        let manifest = serde_json::to_vec(&serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": ARTIFACT_TYPE,
            "config": config,
            "layers": layers,
        }))?;
        let digest = config.digest;
        let repository = self.at(patience);
        client.run(async |client| {
            let empty = Content::Bytes(EMPTY.as_bytes());
            repository.push_blob(client, &digest, empty).await?;
            repository.push_manifest(client, tag, &manifest).await
        })?;
        Ok(())
    }
}

fn file(sha256: &str, size: u64) -> Descriptor {
    Descriptor {
        media_type: FILE.to_owned(),
        digest: format!("sha256:{sha256}"),
        size,
        annotations: std::collections::BTreeMap::new(),
        platform: None,
    }
}
