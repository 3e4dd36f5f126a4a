//! Firmware in the initramfs: the files that its modules and the drivers in the kernel name, and the processors' microcode, both
//! from the root: its packages, and the recipe's files over them.
//!
//! A driver asks the kernel for a file below `/lib/firmware` of the root that process 1 sees; before the handoff that is the
//! initramfs (`Documentation/driver-api/firmware/`). Microcode is read by the kernel before there is a file system, from an
//! uncompressed archive in front of the initramfs (`Documentation/arch/x86/microcode.rst`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use anyhow::{Context, Result};
use image::modules::matches;

use crate::format::cpio;
use crate::layer::merge::{Tree, merge, resolve};
use crate::layer::{Entry, Kind, Layer};

/// The folder in the root.
const ROOT: &str = "/usr/lib/firmware";
/// Names of that folder in packages and recipes: `/lib` is a link in a root with a merged `/usr`.
const NAMES: [&str; 2] = [ROOT, "/lib/firmware"];
/// The folder in the initramfs.
const INITRD: &str = "/lib/firmware";
/// Endings of a file in the order in which the kernel looks for it (`drivers/base/firmware_loader/main.c`): it unpacks the
/// compressed ones.
const FORMS: [&str; 3] = ["", ".zst", ".xz"];
/// Data of microcode begins on a multiple of this, in bytes: processors take it from no other place (Intel's manual, volume 3,
/// section "Microcode Update Resources").
const ALIGNMENT: usize = 16;

/// The firmware files of a root.
#[derive(Clone, Debug, Default)]
pub struct Firmware {
    /// All entries of the root, since links lead anywhere; empty if it has no firmware.
    tree: Tree,
}

/// One vendor's microcode: its name in the early archive, and which files belong to it.
struct Microcode {
    name: &'static str,
    folder: &'static str,
    is_one: fn(&str) -> bool,
}

const MICROCODE: [Microcode; 2] = [
    Microcode {
        name: "/kernel/x86/microcode/AuthenticAMD.bin",
        folder: "amd-ucode/",
        is_one: |name| name.starts_with("microcode_amd") && name.ends_with(".bin"),
    },
    Microcode {
        name: "/kernel/x86/microcode/GenuineIntel.bin",
        folder: "intel-ucode/",
        // Family, model and stepping of the processor; other names are texts. Debian adds an ending to updates that a running
        // system must not load, so that only an initramfs has them (NEWS.Debian of intel-microcode 1.20140913.1): those of
        // Haswell, Broadwell and the Xeons of their time.
        is_one: |name| {
            let name = name.strip_suffix(".initramfs").unwrap_or(name);
            let parts: Vec<&str> = name.split('-').collect();
            let is_number = |part: &&str| u8::from_str_radix(part, 16).is_ok() && part.len() == 2;
            parts.len() == 3 && parts.iter().all(is_number)
        },
    },
];

impl Firmware {
    /// The firmware of a root: packages, and layers over them.
    ///
    /// # Errors
    /// If the layers do not fit over the packages.
    pub fn of(packages: &[Entry], layers: &[Layer]) -> Result<Self> {
        let of_layers = layers.iter().flat_map(|layer| &layer.entries);
        if !packages.iter().chain(of_layers).any(is_firmware) {
            return Ok(Self::default());
        }
        Ok(Self {
            tree: merge(packages, layers, &[])?.tree,
        })
    }

    /// Whether the root has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Adds the files that drivers name, as far as the root has them, in the form that they have there. A name may be a
    /// pattern with `*`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn add(&self, archive: &mut cpio::Archive, wanted: &BTreeSet<String>) -> Result<()> {
        let mut found = BTreeMap::new();
        for name in wanted.iter().flat_map(|name| self.named(name)) {
            if let Some((entry, form)) = self.file(&name) {
                found.insert(format!("{name}{form}"), entry);
            }
        }
        for (file, entry) in found {
            let content = content(entry)?;
            archive.file(&format!("{INITRD}/{file}"), 0o644, &content)?;
        }
        Ok(())
    }

    /// The early archive with the microcode of all processors; empty if the root has none.
    ///
    /// # Errors
    /// If a file cannot be read or unpacked.
    pub(super) fn early(&self) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::new();
        let mut is_empty = true;
        for vendor in MICROCODE {
            let bytes = self.microcode(&vendor)?;
            if !bytes.is_empty() {
                archive.aligned_file(vendor.name, 0o644, &bytes, ALIGNMENT)?;
                is_empty = false;
            }
        }
        if is_empty {
            return Ok(Vec::new());
        }
        archive.finish_for_another()
    }

    /// The updates of one vendor, sorted by name: the kernel takes the one for its processor. Nothing lies between two, since it
    /// looks for the next one where one ends; Intel's have multiples of 1024 bytes.
    fn microcode(&self, vendor: &Microcode) -> Result<Vec<u8>> {
        let mut names = self.below(vendor.folder);
        names.retain(|name| (vendor.is_one)(name));
        let mut out = Vec::new();
        for name in names {
            let form = self.file(&format!("{}{name}", vendor.folder));
            let Some((entry, form)) = form else { continue };
            out.extend(
                unpacked(&content(entry)?, form)
                    .with_context(|| format!("unpacking {}", entry.path))?,
            );
        }
        Ok(out)
    }

    /// The names that a driver's word stands for: itself, or those of the root that match it.
    fn named(&self, wanted: &str) -> Vec<String> {
        let Some(star) = wanted.find('*') else {
            return vec![wanted.to_owned()];
        };
        let folder = &wanted[..wanted[..star].rfind('/').map_or(0, |slash| slash + 1)];
        let names = self.below(folder).into_iter();
        names
            .map(|name| format!("{folder}{name}"))
            .filter(|name| matches(wanted, name))
            .collect()
    }

    /// The names below a folder of [`ROOT`] (empty, or with a slash at its end), without the endings of compressed forms.
    fn below(&self, folder: &str) -> BTreeSet<String> {
        let Ok(folder) = resolve(&self.tree, &format!("{ROOT}/{folder}"), true) else {
            return BTreeSet::new();
        };
        let folder = format!("{folder}/");
        let paths = self.tree.range(folder.clone()..).map(|(path, _)| path);
        paths
            .map_while(|path| path.strip_prefix(folder.as_str()))
            .map(|name| bare(name).to_owned())
            .collect()
    }

    /// The file of a name, links followed inside the root, with the ending of the form in which the root has it.
    fn file(&self, name: &str) -> Option<(&Entry, &'static str)> {
        FORMS.into_iter().find_map(|form| {
            let path = resolve(&self.tree, &format!("{ROOT}/{name}{form}"), true).ok()?;
            let entry = self.tree.get(&path)?;
            matches!(entry.kind, Kind::File(_)).then_some((entry, form))
        })
    }
}

/// Whether an entry is a file or a link of the folder, or a link in its place.
fn is_firmware(entry: &Entry) -> bool {
    let below = |name: &str| {
        let rest = entry.path.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    !matches!(entry.kind, Kind::Directory | Kind::Remove) && NAMES.into_iter().any(below)
}

/// A name without the ending of a compressed form.
fn bare(name: &str) -> &str {
    let forms = FORMS.iter().filter(|form| !form.is_empty());
    let stripped = forms.filter_map(|form| name.strip_suffix(form)).next();
    stripped.unwrap_or(name)
}

fn content(entry: &Entry) -> Result<Vec<u8>> {
    let naming = || format!("reading {}", entry.path);
    match &entry.kind {
        Kind::File(source) => source.read().with_context(naming),
        _ => anyhow::bail!("{} is not a file", entry.path),
    }
}

fn unpacked(bytes: &[u8], form: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match form {
        ".xz" => liblzma::read::XzDecoder::new(bytes).read_to_end(&mut out)?,
        ".zst" => zstd::stream::read::Decoder::new(bytes)?.read_to_end(&mut out)?,
        _ => return Ok(bytes.to_vec()),
    };
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Vec<Entry> {
        let zst = zstd::encode_all(&b"MODERN"[..], 1).unwrap();
        vec![
            Entry::symlink("/lib", "usr/lib"),
            Entry::directory("/usr/lib/firmware", 0o755),
            Entry::file("/usr/lib/firmware/bnx2x/b-1.fw", 0o644, "one"),
            Entry::file("/usr/lib/firmware/bnx2x/b-2.fw.zst", 0o644, zst.clone()),
            Entry::file("/usr/lib/firmware/bnx2x/unused.fw", 0o644, "unused"),
            Entry::symlink("/usr/lib/firmware/qed/latest.bin", "../bnx2x/b-1.fw"),
            Entry::symlink("/usr/lib/firmware/circle", "circle"),
            Entry::file("/usr/lib/firmware/intel-ucode/06-55-04", 0o644, "intel 2"),
            Entry::file("/usr/lib/firmware/intel-ucode/06-0f-02.zst", 0o644, zst),
            Entry::file(
                "/usr/lib/firmware/intel-ucode/06-4f-01.initramfs",
                0o644,
                "intel 1",
            ),
            Entry::file("/usr/lib/firmware/intel-ucode/LICENSE", 0o644, "text"),
            Entry::file(
                "/usr/lib/firmware/amd-ucode/microcode_amd.bin",
                0o644,
                "amd",
            ),
            Entry::file(
                "/usr/lib/firmware/amd-ucode/microcode_amd.bin.asc",
                0o644,
                "text",
            ),
        ]
    }

    /// The files of an archive with their contents.
    fn files(archive: &[u8]) -> Vec<(&str, &[u8])> {
        cpio::read(archive)
            .unwrap()
            .into_iter()
            .filter(|entry| entry.mode & 0o170_000 == 0o100_000)
            .map(|entry| (entry.name, entry.content))
            .collect()
    }

    #[test]
    fn firmware_of_the_recipes_files_and_behind_links_to_folders_goes_into_the_initramfs() {
        let packages = [
            Entry::symlink("/lib", "usr/lib"),
            Entry::directory("/usr/lib/firmware", 0o755),
            Entry::file("/usr/lib/firmware/old.fw", 0o644, "packages"),
            Entry::file("/usr/lib/firmware/gone.fw", 0o644, "packages"),
            Entry::directory("/usr/share/card-2.0", 0o755),
            Entry::file("/usr/share/card-2.0/a.fw", 0o644, "a"),
            Entry::symlink("/usr/lib/firmware/card", "../../share/card-2.0"),
        ];
        let recipe = vec![
            Entry::file("/lib/firmware/own.fw", 0o644, "own"),
            Entry::file("/usr/lib/firmware/old.fw", 0o644, "recipe's"),
            Entry::remove("/usr/lib/firmware/gone.fw"),
            Entry::symlink("/usr/lib/firmware/amd-ucode", "/usr/share/ucode"),
            Entry::file("/usr/share/ucode/microcode_amd.bin", 0o644, "amd"),
        ];
        let key = crate::host::cache::Key::of_data("layer", 1).finish();
        let layer = Layer::with_key(recipe, key).unwrap();
        let made = |wanted: &[&str]| {
            let firmware = Firmware::of(&packages, std::slice::from_ref(&layer)).unwrap();
            let wanted = wanted.iter().map(|&name| name.to_owned()).collect();
            let mut archive = cpio::Archive::new();
            firmware.add(&mut archive, &wanted).unwrap();
            (archive.finish().unwrap(), firmware.early().unwrap())
        };
        let all: &[(&str, &[u8])] = &[
            ("lib/firmware/card/a.fw", b"a"),
            ("lib/firmware/old.fw", b"recipe's"),
            ("lib/firmware/own.fw", b"own"),
        ];
        let (archive, early) = made(&["card/a.fw", "old.fw", "own.fw", "gone.fw"]);
        assert_eq!(files(&archive), all);
        assert_eq!(files(&made(&["card/*", "o*.fw"]).0), all);
        assert_eq!(
            files(&early),
            [("kernel/x86/microcode/AuthenticAMD.bin", &b"amd"[..])]
        );
        // A recipe's files alone are firmware enough.
        let alone = Firmware::of(&[], &[layer]).unwrap();
        assert!(!alone.is_empty());
    }

    #[test]
    fn what_modules_name_and_the_root_has_goes_into_the_initramfs_in_its_form() {
        let entries = root();
        let firmware = Firmware::of(&entries, &[]).unwrap();
        let wanted = [
            "bnx2x/b-1.fw",
            "bnx2x/b-2.fw",
            "qed/*",
            "circle",
            "absent.bin",
        ];
        let wanted = wanted.map(str::to_owned).into();
        let made = || {
            let mut archive = cpio::Archive::new();
            firmware.add(&mut archive, &wanted).unwrap();
            archive.finish().unwrap()
        };
        let bytes = made();
        let files = files(&bytes);
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "lib/firmware/bnx2x/b-1.fw",
                "lib/firmware/bnx2x/b-2.fw.zst",
                "lib/firmware/qed/latest.bin"
            ]
        );
        assert_eq!((files[0].1, files[2].1), (&b"one"[..], &b"one"[..]));
        assert_eq!(zstd::decode_all(files[1].1).unwrap(), b"MODERN");
        assert!(bytes == made());
    }

    #[test]
    fn microcode_is_unpacked_sorted_and_aligned_in_front_of_the_initramfs() {
        let entries = root();
        let early = Firmware::of(&entries, &[]).unwrap().early().unwrap();
        assert_eq!(early.len() % 512, 0);
        let files = cpio::read(&early).unwrap();
        let content = |vendor: &str| {
            let name = format!("kernel/x86/microcode/{vendor}.bin");
            files.iter().find(|file| file.name == name).unwrap().content
        };
        assert_eq!(content("AuthenticAMD"), b"amd");
        let intel = content("GenuineIntel");
        assert_eq!(intel, b"MODERNintel 1intel 2");
        for content in [content("AuthenticAMD"), intel] {
            let at = content.as_ptr() as usize - early.as_ptr() as usize;
            assert_eq!(at % ALIGNMENT, 0);
        }
        // The initramfs behind it is found again.
        let both = [&early[..], b"(compressed)"].concat();
        assert_eq!(cpio::behind(&both).unwrap(), b"(compressed)");
        assert_eq!(cpio::behind(b"(compressed)").unwrap(), b"(compressed)");
    }

    #[test]
    fn a_root_without_firmware_adds_nothing() {
        let entries = [
            Entry::directory("/usr/lib/firmware", 0o755),
            Entry::file("/usr/lib/firmware.txt", 0o644, "x"),
        ];
        let firmware = Firmware::of(&entries, &[]).unwrap();
        assert!(firmware.is_empty());
        assert_eq!(firmware.early().unwrap(), b"");
    }
}
