//! Firmware in the initramfs: the files that its modules name, and the processors' microcode, both from the root's packages.
//!
//! A driver asks the kernel for a file below `/lib/firmware` of the root that process 1 sees; before the handoff that is the
//! initramfs (`Documentation/driver-api/firmware/`). Microcode is read by the kernel before there is a file system, from an
//! uncompressed archive in front of the initramfs (`Documentation/arch/x86/microcode.rst`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Bound;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use image::modules::matches;

use crate::format::cpio;
use crate::layer::{Entry, Kind, Source};

/// The folder of the root's packages.
const ROOT: &str = "/usr/lib/firmware/";
/// The folder in the initramfs.
const INITRD: &str = "/lib/firmware";
/// Endings of a file in the order in which the kernel looks for it (`drivers/base/firmware_loader/main.c`): it unpacks the
/// compressed ones.
const FORMS: [&str; 3] = ["", ".zst", ".xz"];
/// Links that lead from one to the next at most, as in the kernel.
const MOST_LINKS: usize = 40;
/// Data of microcode begins on a multiple of this, in bytes: processors take it from no other place (Intel's manual, volume 3,
/// section "Microcode Update Resources").
const ALIGNMENT: usize = 16;
/// The early archive is a multiple of this, in bytes, as cpio's own: programs that unpack an initramfs expect the next one
/// there.
const BLOCK: usize = 512;

/// The firmware files of a root.
#[derive(Clone, Debug, Default)]
pub struct Firmware<'a> {
    /// All entries below [`ROOT`], and what links there lead to, by path.
    entries: BTreeMap<&'a str, &'a Entry>,
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

impl<'a> Firmware<'a> {
    /// The firmware among the entries of a root.
    #[must_use]
    pub fn of(entries: &'a [Entry]) -> Self {
        let is_file = |entry: &&Entry| !matches!(entry.kind, Kind::Directory | Kind::Remove);
        let below = entries.iter().filter(|entry| entry.path.starts_with(ROOT));
        if below.filter(is_file).count() == 0 {
            return Self::default();
        }
        let all = entries.iter().filter(is_file);
        Self {
            entries: all.map(|entry| (entry.path.as_str(), entry)).collect(),
        }
    }

    /// Whether the root has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the files that modules name, as far as the root has them, in the form that they have there. A name may be a
    /// pattern with `*`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn add(&self, archive: &mut cpio::Archive, wanted: &BTreeSet<String>) -> Result<()> {
        let mut found = BTreeMap::new();
        for name in wanted.iter().flat_map(|name| self.named(name)) {
            let form = FORMS
                .iter()
                .map(|form| format!("{name}{form}"))
                .find_map(|file| Some((self.file(&format!("{ROOT}{file}"))?, file)));
            if let Some((entry, file)) = form {
                found.insert(file, entry);
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
        let mut bytes = archive.finish()?;
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        Ok(bytes)
    }

    /// The updates of one vendor, sorted by name: the kernel takes the one for its processor. Nothing lies between two, since it
    /// looks for the next one where one ends; Intel's have multiples of 1024 bytes.
    fn microcode(&self, vendor: &Microcode) -> Result<Vec<u8>> {
        let folder = format!("{ROOT}{}", vendor.folder);
        let names: BTreeSet<&str> = self
            .below(&folder)
            .map(bare)
            .filter(|name| (vendor.is_one)(name))
            .collect();
        let mut out = Vec::new();
        for name in names {
            let form = FORMS.iter().find_map(|form| {
                let entry = self.file(&format!("{folder}{name}{form}"))?;
                Some((entry, *form))
            });
            let Some((entry, form)) = form else { continue };
            out.extend(
                unpacked(&content(entry)?, form)
                    .with_context(|| format!("unpacking {}", entry.path))?,
            );
        }
        Ok(out)
    }

    /// The names that a module's word stands for: itself, or those of the root that match it.
    fn named(&self, wanted: &str) -> Vec<String> {
        if !wanted.contains('*') {
            return vec![wanted.to_owned()];
        }
        let names = self.below(ROOT).map(bare);
        names
            .filter(|name| matches(wanted, name))
            .map(str::to_owned)
            .collect()
    }

    /// What follows `folder` in the paths below it.
    fn below(&self, folder: &str) -> impl Iterator<Item = &'a str> {
        let paths: Vec<&'a str> = self
            .entries
            .range::<str, _>((Bound::Included(folder), Bound::Unbounded))
            .map_while(|(path, _)| path.strip_prefix(folder))
            .collect();
        paths.into_iter()
    }

    /// The file at a path, links followed inside the root.
    fn file(&self, path: &str) -> Option<&'a Entry> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let entry = *self.entries.get(path.as_str())?;
            path = match &entry.kind {
                Kind::File(_) => return Some(entry),
                Kind::HardLink(target) => target.clone(),
                Kind::Symlink(target) => joined(&path, target),
                Kind::Directory | Kind::Remove => return None,
            };
        }
        None
    }
}

/// A name without the ending of a compressed form.
fn bare(name: &str) -> &str {
    let forms = FORMS.iter().filter(|form| !form.is_empty());
    let stripped = forms.filter_map(|form| name.strip_suffix(form)).next();
    stripped.unwrap_or(name)
}

/// The path that a link's target leads to, without `.` and `..`.
fn joined(link: &str, target: &str) -> String {
    let folder = match target.starts_with('/') {
        true => "",
        false => link.rsplit_once('/').map_or("", |(folder, _)| folder),
    };
    let mut parts = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    // Of a root with a merged `/usr`, whose folders are links.
    match path.starts_with("/lib/") {
        true => format!("/usr{path}"),
        false => path,
    }
}

fn content(entry: &Entry) -> Result<Vec<u8>> {
    let naming = || format!("reading {}", entry.path);
    match &entry.kind {
        Kind::File(Source::Bytes(bytes)) => Ok(bytes.clone()),
        Kind::File(Source::Path(path)) => std::fs::read(path).with_context(naming),
        Kind::File(Source::Range { file, offset, size }) => {
            let mut bytes = vec![0; usize::try_from(*size)?];
            let file = File::open(file).with_context(naming)?;
            file.read_exact_at(&mut bytes, *offset)
                .with_context(naming)?;
            Ok(bytes)
        }
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

    #[test]
    fn what_modules_name_and_the_root_has_goes_into_the_initramfs_in_its_form() {
        let entries = root();
        let firmware = Firmware::of(&entries);
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
        let files: Vec<(&str, &[u8])> = cpio::read(&bytes)
            .unwrap()
            .into_iter()
            .filter(|entry| entry.mode & 0o170_000 == 0o100_000)
            .map(|entry| (entry.name, entry.content))
            .collect();
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
        let early = Firmware::of(&entries).early().unwrap();
        assert_eq!(early.len() % BLOCK, 0);
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
        let firmware = Firmware::of(&entries);
        assert!(firmware.is_empty());
        assert_eq!(firmware.early().unwrap(), b"");
    }
}
