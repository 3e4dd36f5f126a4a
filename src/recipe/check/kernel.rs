//! `[kernel]`: the kernel, its command line, and the image's platforms.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::made::Made;
use super::names::Rule;
use crate::recipe::Platform;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::{Node, Value};

/// What modules-load.d(5) names beside the packages.
pub(crate) const LOAD: &str = "/etc/modules-load.d/recipe.conf";
/// What modprobe.d(5) says beside the packages. modprobe joins the options of all files in the order of their names, and the kernel takes the
/// last: systemd's `systemd.conf` has some of `bonding` and `dummy`.
const MODPROBE: &str = "/etc/modprobe.d/zz-recipe.conf";

/// The kernel, its modules and its command line.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKernel {
    /// Kernel metapackage, as linux-image-cloud-amd64. Required.
    pub package: Option<String>,
    /// Packages whose modules DKMS compiles for this kernel when the image is built, as acpi-call-dkms. Neither they nor the compiler
    /// are in the image. Their modules have no signatures.
    pub dkms: Vec<String>,
    /// Machines that the image is for: drivers in the initramfs, and where the node looks for its config. Required.
    pub platforms: Vec<Platform>,
    /// Modules that go into the initramfs beside the platforms', by name.
    pub modules: Vec<String>,
    /// Modules that the running node loads at each boot, by name or alias.
    pub load: Vec<String>,
    /// Options of loadable modules, by the module's name, in the initramfs too: `bonding = "max_bonds=0"`.
    pub options: BTreeMap<String, String>,
    /// Modules that no device loads by itself, in the initramfs neither.
    pub blacklist: Vec<String>,
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
    /// Packages whose modules DKMS compiles for this kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dkms: Vec<String>,
    /// Platforms of the image: their drivers go into the initramfs, and the node looks for its config on them.
    pub platforms: Vec<Platform>,
    /// Modules that go into the initramfs beside the platforms'.
    pub modules: Vec<String>,
    /// Modules that the running node loads at each boot.
    pub load: Vec<String>,
    /// Options of modules, by name.
    pub options: BTreeMap<String, String>,
    /// Modules that no device loads by itself.
    pub blacklist: Vec<String>,
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
            dkms,
            platforms,
            modules,
            load,
            options,
            blacklist,
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
        self.list("kernel.dkms", Rule::Package);
        self.apart("kernel.dkms", "debian.packages");
        self.unique("kernel.platforms");
        self.list("kernel.modules", Rule::Module);
        self.list("kernel.load", Rule::ModuleAlias);
        self.list("kernel.blacklist", Rule::Module);
        // systemd-modules-load passes over what is blacklisted.
        self.apart("kernel.blacklist", "kernel.load");
        self.options();
        self.list("kernel.cmdline", Rule::CmdlineWord);
        let kernel = Kernel {
            package: package.unwrap_or_default(),
            dkms,
            platforms,
            modules,
            load,
            options,
            blacklist,
            cmdline,
            lockdown,
            module_signatures,
        };
        self.words_of_lockdown(kernel.loads_signed_only());
        self.unsigned_modules(&kernel);
        kernel
    }

    /// Refuses modules of DKMS for a kernel that would load none of them: there is no key to sign them with.
    fn unsigned_modules(&mut self, kernel: &Kernel) {
        if kernel.dkms.is_empty() || !kernel.loads_signed_only() {
            return;
        }
        let (word, signed) = match kernel.lockdown {
            Some(_) => ("lockdown", self.place("kernel.lockdown")),
            None => ("module-signatures", self.place("kernel.module-signatures")),
        };
        let mistake = Mistake::at(
            &self.place("kernel.dkms"),
            format!(
                "the modules that DKMS compiles have no signature, and with `{word}` the kernel loads none of them"
            ),
            format!("expected `dkms` without `{word}`, or signed modules in the kernel's package"),
        );
        self.add(mistake.also(&signed, "the kernel loads signed modules only"));
    }

    /// Names and values in `[kernel.options]`.
    fn options(&mut self) {
        let Some(Value::Table(table)) = self.find("kernel.options").map(|node| &node.value) else {
            return;
        };
        for (name, entry) in table {
            if let Err(why) = Rule::Module.check(name) {
                self.add(why.mistake(&entry.key));
            }
            let value = entry
                .node
                .text()
                .map(|text| Rule::ModuleOptions.check(text));
            if let Some(Err(why)) = value {
                self.add(why.mistake(&entry.node.place));
            }
        }
    }

    /// The files that the words about modules come to. The initramfs reads the second one too.
    pub(super) fn files_of_modules(&mut self, kernel: &Kernel) -> Vec<Made> {
        let mut made = Vec::new();
        if !kernel.load.is_empty() {
            let place = self.place("kernel.load");
            let text = kernel.load.iter().map(|name| format!("{name}\n"));
            let text: String = text.collect();
            made.push(Made::text(self, LOAD, "`kernel.load`", &place, &text));
        }
        let options = kernel.options.iter();
        let mut lines: Vec<String> = options
            .map(|(name, words)| format!("options {name} {}\n", words.trim()))
            .collect();
        let key = match lines.is_empty() {
            true => "kernel.blacklist",
            false => "kernel.options",
        };
        lines.extend(
            kernel
                .blacklist
                .iter()
                .map(|name| format!("blacklist {name}\n")),
        );
        if !lines.is_empty() {
            let (place, text) = (self.place(key), lines.concat());
            let word = "[kernel] `options` and `blacklist`";
            made.push(Made::text(self, MODPROBE, word, &place, &text));
        }
        made
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
