//! `[containers]`: the images that are baked in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;

/// Container images that are baked into the image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawContainers {
    /// Images that are built from Debian packages and imported on first boot.
    pub images: Vec<ContainerImage>,
}

/// Container images that the tool builds from Debian packages and bakes into the root.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerImage {
    /// The container that holds a pod's namespaces.
    Pause,
    /// etcd's server.
    Etcd,
}

impl ContainerImage {
    /// The Debian packages that the image is made of.
    #[must_use]
    pub const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Pause => &["catatonit"],
            Self::Etcd => &["etcd-server"],
        }
    }
}

impl Check<'_> {
    pub(super) fn containers(&mut self, raw: RawContainers) -> Vec<ContainerImage> {
        let RawContainers { images } = raw;
        self.unique("containers.images");
        images
    }
}
