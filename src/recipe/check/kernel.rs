//! `[kernel]`: the kernel, its command line, and the image's platforms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use crate::recipe::Platform;

/// The kernel, its modules and its command line.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKernel {
    /// Kernel metapackage, as linux-image-cloud-amd64. Required.
    pub package: Option<String>,
    /// Machines that the image is for: drivers in the initramfs, and where the node looks for its config. Required.
    pub platforms: Vec<Platform>,
    /// Modules that go into the initramfs beside the platforms', by name.
    pub modules: Vec<String>,
    /// Words of the kernel command line; the build adds roothash= itself.
    pub cmdline: Vec<String>,
}

/// The kernel, its modules and its command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Kernel metapackage, as `linux-image-cloud-amd64`.
    pub package: String,
    /// Platforms of the image: their drivers go into the initramfs, and the node looks for its config on them.
    pub platforms: Vec<Platform>,
    /// Modules that go into the initramfs beside the platforms'.
    pub modules: Vec<String>,
    /// Words of the kernel command line, beside those of the build.
    pub cmdline: Vec<String>,
}

impl Check<'_> {
    pub(super) fn kernel(&mut self, raw: RawKernel) -> Kernel {
        let RawKernel {
            package,
            platforms,
            modules,
            cmdline,
        } = raw;
        if package.is_none() {
            self.missing(
                "kernel.package",
                "expected package = \"linux-image-…\" in [kernel]",
            );
        }
        if platforms.is_empty() {
            self.missing(
                "kernel.platforms",
                "expected platforms = [\"qemu\", …] in [kernel]",
            );
        }
        self.text("kernel.package", Rule::Package);
        self.unique("kernel.platforms");
        self.list("kernel.modules", Rule::Module);
        self.list("kernel.cmdline", Rule::CmdlineWord);
        Kernel {
            package: package.unwrap_or_default(),
            platforms,
            modules,
            cmdline,
        }
    }
}
