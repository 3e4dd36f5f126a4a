//! `[image]`: name, version and architecture of the image.

use image::layout::Architecture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;

/// What the image is called.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawImage {
    /// Lower-case letters, digits and hyphens, beginning with a letter. Required.
    pub name: Option<String>,
    /// Letters, digits, dots, hyphens and tildes. Required.
    pub version: Option<String>,
    /// What machines it is for. Default: x86-64.
    pub architecture: Option<RawArchitecture>,
}

/// Architectures that images can be built for.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(super) enum RawArchitecture {
    /// 64-bit x86, Debian's amd64.
    #[serde(rename = "x86-64")]
    X86_64,
}

/// Name, version and architecture of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Image {
    /// Lower-case letters, digits and hyphens: it is part of file names and of container image names.
    pub name: String,
    /// Letters, digits, dots, hyphens and tildes.
    pub version: String,
    /// The machines that the image is for.
    pub architecture: Architecture,
}

impl Check<'_> {
    pub(super) fn image(&mut self, raw: &RawImage) -> Image {
        let RawImage {
            name,
            version,
            architecture,
        } = raw;
        if name.is_none() {
            self.missing("image.name", "expected name = \"…\" in [image]");
        }
        if version.is_none() {
            self.missing("image.version", "expected version = \"…\" in [image]");
        }
        self.text("image.name", Rule::ImageName);
        self.text("image.version", Rule::ImageVersion);
        Image {
            name: name.clone().unwrap_or_default(),
            version: version.clone().unwrap_or_default(),
            architecture: match architecture {
                None | Some(RawArchitecture::X86_64) => Architecture::X86_64,
            },
        }
    }
}
