//! The manifest: one JSON file in the initramfs that describes the image to the init.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layout::{Architecture, Sizes};
use crate::node::NodeSettings;
use crate::platform::PlatformId;

/// The contract's version. A node refuses a manifest of a version that it does not know, by name.
pub const CONTRACT: u32 = 2;

/// The description of an image. Written by the tool, read by the init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// Version of the contract between builder and node, [`CONTRACT`].
    pub contract: u32,
    /// Name and version from the recipe.
    pub image: ImageId,
    /// Machine architecture.
    pub architecture: Architecture,
    /// `uname -r` of the image's kernel.
    pub kernel: String,
    /// Time of the newest locked archive index, seconds since 1970: the clock never runs behind it.
    pub epoch: u64,
    /// Partition sizes for what the first boot makes, in bytes.
    pub sizes: Sizes,
    /// The Kubernetes release, when the image has a kubelet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kubernetes: Option<Kubernetes>,
    /// The machines that the image was built for, in the recipe's order. The node's own platform is one of them, unless
    /// the command line names another.
    pub platforms: Vec<PlatformId>,
    /// Defaults of the node settings.
    pub node: NodeSettings,
}

/// Name and version of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageId {
    /// Recipe's name.
    pub name: String,
    /// Recipe's version.
    pub version: String,
}

/// The Kubernetes part of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kubernetes {
    /// Release, as `v1.36.3`.
    pub version: String,
    /// SHA-256 of the kubelet program, hexadecimal.
    pub kubelet_sha256: String,
    /// The container images that the image brings for a control plane: name of the component (`etcd`, `kube-apiserver`)
    /// to the full reference (`slipway.local/etcd:3.5.16-0`). Empty if it brings none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub images: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads a manifest. An unknown contract version is refused before any other field is read.
    ///
    /// # Errors
    /// Names the unknown contract version, or what does not parse.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            contract: u32,
        }
        let version: Version =
            serde_json::from_str(text).map_err(|e| format!("the manifest does not parse: {e}"))?;
        if version.contract != CONTRACT {
            return Err(format!(
                "the manifest is of contract version {}; this init knows version {CONTRACT}",
                version.contract
            ));
        }
        serde_json::from_str(text).map_err(|e| format!("the manifest does not parse: {e}"))
    }

    /// The manifest's text: stable key order, two-space indentation, a final newline.
    ///
    /// # Panics
    /// Never: JSON can represent every manifest.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|e| unreachable!("{e}"));
        text.push('\n');
        text
    }
}
