//! `[kernel]`: the kernel, its command line, and the image's platforms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use crate::recipe::Platform;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

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
    /// Words of the kernel command line; the build adds roothash= and gpt itself.
    pub cmdline: Vec<String>,
    /// What root may not do to the running kernel; the initramfs's modules keep their signatures then.
    pub lockdown: Option<Lockdown>,
    /// Whether the initramfs's modules keep their signatures, as with `lockdown`; costs a second of each boot. An image that is
    /// signed for Secure Boot needs it: the firmware's setting puts Debian's kernel into lockdown.
    pub module_signatures: bool,
}

/// A mode of the kernel's lockdown (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lockdown {
    /// Root cannot change the running kernel: no modules without a signature, no kexec, no raw access to memory.
    Integrity,
    /// Nor read from it.
    Confidentiality,
}

impl Lockdown {
    /// The word of the kernel command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Integrity => "lockdown=integrity",
            Self::Confidentiality => "lockdown=confidentiality",
        }
    }
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
    /// The kernel's lockdown; none by default.
    pub lockdown: Option<Lockdown>,
    /// Whether the initramfs's modules keep their signatures without a lockdown too.
    pub module_signatures: bool,
}

impl Kernel {
    /// Whether the kernel may load modules with a signature only, so that the initramfs's must keep theirs.
    #[must_use]
    pub const fn loads_signed_only(&self) -> bool {
        self.module_signatures || self.lockdown.is_some()
    }
}

impl Check<'_> {
    pub(super) fn kernel(&mut self, raw: RawKernel) -> Kernel {
        let RawKernel {
            package,
            platforms,
            modules,
            cmdline,
            lockdown,
            module_signatures,
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
        let kernel = Kernel {
            package: package.unwrap_or_default(),
            platforms,
            modules,
            cmdline,
            lockdown,
            module_signatures,
        };
        self.words_of_lockdown(kernel.loads_signed_only());
        kernel
    }

    /// Refuses words with which the kernel loads none of the initramfs's modules, since they have no signatures: such an image
    /// would find no disk. A lockdown has a key of its own.
    fn words_of_lockdown(&mut self, keeps_signatures: bool) {
        for item in self.find("kernel.cmdline").map_or(&[][..], Node::items) {
            let key = item.text().and_then(image::module_words::signed_only);
            let Some(key) = key.filter(|key| !keeps_signatures || *key == "lockdown") else {
                continue;
            };
            let expected = match key {
                "lockdown" => "lockdown = \"integrity\" or \"confidentiality\"",
                _ => "module-signatures = true",
            };
            let mistake = Mistake::at(
                &item.place,
                format!("with `{key}` the kernel loads modules with a signature only"),
                format!("expected {expected} in [kernel], with which they keep it"),
            );
            self.add(mistake);
        }
    }
}
