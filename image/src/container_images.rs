//! The container images in the root: what the node tells containerd of them before it starts, so that they are there
//! without an import.
//!
//! An image's files are a folder of the verified root, which containerd takes for the one unpacked layer of the image: a
//! snapshot that is a link to that folder. Its config is the image's own, so that the image has its usual id; its manifest
//! names no layers, since no packed ones exist on the node.

use serde::{Deserialize, Serialize};

use crate::paths::CONTAINER_IMAGES;

/// The file of the root that lists the images.
pub const INDEX: &str = "/usr/lib/slipway/images/index.json";
/// The unit that tells containerd.
pub const IMAGES_UNIT: &str = "slipway-images.service";
/// The subcommand of [`crate::paths::NODE_PROGRAM`] that does it.
pub const IMAGES_COMMAND: &str = "container-images";

/// Where the names of the images that a build makes begin: nothing is ever pulled from there.
pub const REGISTRY: &str = "slipway.local";

/// The images of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerImages {
    /// Changes whenever the rest does.
    pub key: String,
    /// Each image once.
    pub images: Vec<ContainerImage>,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerImage {
    /// Its full names, such as `slipway.local/etcd:3.5.16-0`.
    pub names: Vec<String>,
    /// Its manifest: an OCI manifest, byte for byte.
    pub manifest: String,
    /// Its config: an OCI image config, byte for byte.
    pub config: String,
    /// The chain id of its layers, `sha256:…` (OCI image specification, config.md, "Layer `ChainID`").
    pub chain_id: String,
    /// Its files, a folder of the root below [`CONTAINER_IMAGES`].
    pub folder: String,
}

/// The folder of an image with this chain id.
#[must_use]
pub fn folder(chain_id: &str) -> String {
    let hex = chain_id.rsplit(':').next().unwrap_or_default();
    let short = hex.get(..16).unwrap_or(hex);
    format!("{CONTAINER_IMAGES}/{short}")
}
