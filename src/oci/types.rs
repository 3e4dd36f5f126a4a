//! Names of an OCI layout, media types, and the config of an image. [`fetch::oci`] has the other documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The folder of blobs in an OCI layout, named by the digest's algorithm.
pub(super) const BLOBS: &str = "blobs/sha256";
/// The file that marks a folder as a layout.
pub(super) const LAYOUT: &str = "oci-layout";
/// Its content.
pub(super) const LAYOUT_TEXT: &str = "{\"imageLayoutVersion\":\"1.0.0\"}";
/// The file that lists the images of a layout.
pub(super) const INDEX: &str = "index.json";

/// Media type of a manifest.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index.
pub(super) const IMAGE_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of a config.
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of an uncompressed layer.
pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// User, entry point, variables and labels of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RunConfig {
    /// User and group as numbers, `1000:1000`; root if it is empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Program and first arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Default arguments, in place of which a pod may give others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Variables, as `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An image's config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) architecture: String,
    pub(super) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<String>,
    #[serde(default)]
    pub(super) config: RunConfig,
    pub(super) rootfs: DiffIds,
}

/// Digests of the unpacked layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DiffIds {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) diff_ids: Vec<String>,
}
