//! The kernel modules of an initramfs: the index that the builder writes and the init reads.
//!
//! The init has no `modprobe`, no `depmod` data and no program that the kernel could call for `request_module`. Its
//! only source is one JSON file, [`crate::paths::INITRD_MODULES_INDEX`], which the builder makes from the modules' own
//! `.modinfo` sections.

use serde::{Deserialize, Serialize};

/// Loaded by every boot from a disk, in this order, for the verified root and the overlay on `/etc`. A built-in one is
/// skipped; an image whose kernel has one in neither form does not boot.
pub const ROOT: &[&str] = &["erofs", "dm_verity", "ext4", "overlay"];
/// Loaded if the initramfs has them: faster hashes, and the loop device for a boot without a disk.
pub const OPTIONAL: &[&str] = &["sha256_ssse3", "crc32c_intel", "loop"];
/// A boot from the network keeps the root in memory behind this one.
pub const LOOP: &str = "loop";
/// The firmware's variables, one of which names the partition of the boot loader. Loaded on UEFI machines.
pub const EFIVARS: &str = "efivarfs";
/// QEMU's configuration device, which may hold a config.
pub const FW_CFG: &str = "qemu_fw_cfg";
/// VLANs. Loaded if the network configuration has one.
pub const VLAN: &str = "8021q";
/// Bonds. Loaded if the network configuration has one.
pub const BOND: &str = "bonding";
/// For config drives: optical drives, their file system and that of small disks, and the character sets that VFAT requests
/// by itself. Loaded only on platforms with such a drive.
pub const MEDIA: &[&str] = &["sr_mod", "isofs", "vfat", "nls_cp437", "nls_ascii"];
/// The file system of Azure's provisioning disc.
pub const UDF: &str = "udf";
/// Ports beside the console, one of which may hold a config.
pub const PORTS: &str = "virtio_console";
/// The watchdog that every machine has when it has no other.
pub const SOFT_WATCHDOG: &str = "softdog";

/// All modules of one initramfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleIndex {
    /// `uname -r` of the kernel that they belong to.
    pub release: String,
    /// The loadable modules that the initramfs holds, sorted by name.
    pub modules: Vec<Module>,
    /// The modules that are built into the kernel, sorted by name.
    pub builtin: Vec<Builtin>,
    /// Whether the loadable modules have signatures: without, a kernel in lockdown loads none of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signed: bool,
}

/// One loadable module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// The kernel's name of it, with underscores, as in `/proc/modules`.
    pub name: String,
    /// The uncompressed file, relative to `/lib/modules/<release>/`.
    pub path: String,
    /// Names of the modules that must be loaded before, all of them (theirs too), in a working order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
    /// Names of modules that should be loaded before (`softdep pre`), each with its own dependencies. A failure to load
    /// them is not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub soft: Vec<String>,
    /// Names of modules that should be loaded after (`softdep post`). A failure to load them is not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<String>,
    /// Patterns of the devices and names that it serves, as in `modules.alias`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Its options by the recipe's modprobe.d(5); those of the kernel command line come behind them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
    /// Whether the recipe's modprobe.d(5) keeps devices from loading it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blacklisted: bool,
}

/// One module that is part of the kernel itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Builtin {
    /// The kernel's name of it, with underscores.
    pub name: String,
    /// Patterns that it serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}

impl Module {
    /// Whether it drives a network card or is part of the network stack: loaded only when a source needs the network.
    #[must_use]
    pub fn is_network(&self) -> bool {
        self.path.starts_with("kernel/drivers/net/") || self.path.starts_with("kernel/net/")
    }
}

impl ModuleIndex {
    /// The loadable module of this name; `-` and `_` are the same, as for the kernel.
    #[must_use]
    pub fn module(&self, name: &str) -> Option<&Module> {
        let name = canonical(name);
        self.modules.iter().find(|module| module.name == name)
    }

    /// Whether the kernel has it built in.
    #[must_use]
    pub fn is_builtin(&self, name: &str) -> bool {
        let name = canonical(name);
        self.builtin.iter().any(|builtin| builtin.name == name)
    }

    /// The loadable modules for a device's `modalias`, in the order of the index.
    pub fn serving(&self, modalias: &str) -> impl Iterator<Item = &Module> {
        self.modules.iter().filter(move |module| {
            module
                .aliases
                .iter()
                .any(|pattern| matches(pattern, modalias))
        })
    }

    /// The modules to load for one module, itself included, each once and in the order of `modprobe`: for each
    /// dependency and then for the module itself, its `softdep pre`, then it, then its `softdep post`. Soft
    /// dependencies are marked as not required.
    #[must_use]
    pub fn order<'a>(&'a self, module: &'a Module) -> Vec<Load<'a>> {
        let mut out = Vec::new();
        self.add(module, true, &mut Vec::new(), &mut out);
        out
    }

    fn add<'a>(
        &'a self,
        module: &'a Module,
        required: bool,
        open: &mut Vec<&'a str>,
        out: &mut Vec<Load<'a>>,
    ) {
        // Soft dependencies may go in circles.
        if open.contains(&module.name.as_str()) {
            return;
        }
        open.push(&module.name);
        let found = |name: &String| self.module(name);
        for needed in module.dependencies.iter().filter_map(found) {
            self.add(needed, required, open, out);
        }
        for wished in module.soft.iter().filter_map(found) {
            self.add(wished, false, open, out);
        }
        match out.iter_mut().find(|load| load.module.name == module.name) {
            Some(load) => load.required |= required,
            None => out.push(Load { module, required }),
        }
        for after in module.post.iter().filter_map(found) {
            self.add(after, false, open, out);
        }
        open.pop();
    }
}

/// One step of [`ModuleIndex::order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load<'a> {
    /// The module to load.
    pub module: &'a Module,
    /// Whether the requested module cannot work without it.
    pub required: bool,
}

/// A module's name as the kernel writes it.
#[must_use]
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether an alias pattern fits a device's alias: `*`, `?` and `[…]` as in `fnmatch(3)` without flags.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to resume after a mismatch: behind the last star, which then matches one more byte of the text.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(p + 1),
            Some(b'[') => bracket(pattern, p, text[t]),
            Some(&byte) if byte == text[t] => Some(p + 1),
            _ => None,
        };
        match (step, retry) {
            (Some(next), _) => (p, t) = (next, t + 1),
            (None, Some((after, at))) => {
                retry = Some((after, at + 1));
                (p, t) = (after, at + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Where the pattern continues after the bracket at `at` if `byte` is in its set.
fn bracket(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    let negated = matches!(pattern.get(at + 1), Some(b'!' | b'^'));
    let mut p = at + 1 + usize::from(negated);
    let first = p;
    let mut inside = false;
    loop {
        let low = *pattern.get(p)?;
        if low == b']' && p > first {
            break;
        }
        match (pattern.get(p + 1), pattern.get(p + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                inside |= (low..=high).contains(&byte);
                p += 3;
            }
            _ => {
                inside |= low == byte;
                p += 1;
            }
        }
    }
    (inside != negated).then_some(p + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_fnmatch_does() {
        for (pattern, text, expected) in [
            ("virtio:d00000002v*", "virtio:d00000002v00001AF4", true),
            ("virtio:d00000002v*", "virtio:d00000001v00001AF4", false),
            (
                "pci:v00008086d000025ABsv*sd*bc*sc*i*",
                "pci:v00008086d000025ABsv00001AF4sd00001100bc08sc80i00",
                true,
            ),
            ("acpi*:QEMU0002:*", "acpi:QEMU0002:", true),
            ("usb:v1[0-9A-C]d", "usb:v1Bd", true),
            ("usb:v1[0-9A-C]d", "usb:v1Dd", false),
            ("a[!b]c", "adc", true),
            ("a[!b]c", "abc", false),
            ("a[]]c", "a]c", true),
            ("*a*b*", "xxaxxcxb", true),
            ("*a*b", "xxaxxcxbx", false),
            ("", "", true),
            ("", "x", false),
            ("fs-ext4", "fs-ext4", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn index() -> ModuleIndex {
        let module = |name: &str, dependencies: &[&str], soft: &[&str]| Module {
            name: name.into(),
            path: format!("kernel/{name}.ko"),
            dependencies: dependencies.iter().map(|s| (*s).to_owned()).collect(),
            soft: soft.iter().map(|s| (*s).to_owned()).collect(),
            ..Module::default()
        };
        ModuleIndex {
            release: "6.12".into(),
            modules: vec![
                module("crc32c_intel", &[], &[]),
                module("dm_bufio", &["dm_mod"], &[]),
                module("dm_mod", &[], &[]),
                module(
                    "dm_verity",
                    &["dm_mod", "dm_bufio"],
                    &["crc32c_intel", "absent"],
                ),
            ],
            builtin: vec![Builtin {
                name: "ext4".into(),
                aliases: vec!["fs-ext4".into()],
            }],
            signed: false,
        }
    }

    #[test]
    fn order_has_each_once_and_marks_what_may_fail() {
        let index = index();
        let order: Vec<(&str, bool)> = index
            .order(index.module("dm-verity").unwrap())
            .into_iter()
            .map(|load| (load.module.name.as_str(), load.required))
            .collect();
        assert_eq!(
            order,
            [
                ("dm_mod", true),
                ("dm_bufio", true),
                ("crc32c_intel", false),
                ("dm_verity", true)
            ]
        );
        assert!(index.is_builtin("ext4"));
    }

    #[test]
    fn index_round_trips() {
        let text = serde_json::to_string(&index()).unwrap();
        assert_eq!(serde_json::from_str::<ModuleIndex>(&text).unwrap(), index());
    }
}
