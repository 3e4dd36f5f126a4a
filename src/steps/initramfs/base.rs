//! The part of an initramfs that follows from kernel, init and platforms alone: it is packed while the root is made, and once for
//! all images that have it in common.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::modules::ModuleIndex;
use image::paths::{INITRD_MODULES, INITRD_MODULES_INDEX};

use super::modprobe::Rules;
use super::{LEVEL, drivers, modinfo};
use crate::INIT_PROGRAM;
use crate::code;
use crate::format::cpio;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::recipe::{FileEntry, Platform, Recipe};
use crate::steps::kernel::Kernel;
use crate::steps::kernel::catalogue::Catalogue;

/// The packed archives in the step's folder.
const ARCHIVE: &str = "base.zst";
/// The names of the firmware that its modules and the kernel ask for, as JSON.
const FIRMWARE: &str = "firmware.json";
/// Mount points and folders that the init expects.
const FOLDERS: &[&str] = &["/dev", "/etc", "/proc", "/run", "/sys", "/sysroot", "/tmp"];

/// The content of the part.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// `slipway-init`, static.
    pub init: &'a [u8],
    /// Platforms whose drivers are included.
    pub platforms: &'a [Platform],
    /// Additional modules from the recipe.
    pub modules: &'a [String],
    /// The recipe's files, of which those of modprobe.d(5) concern the modules.
    pub files: &'a [FileEntry],
    /// What becomes of the modules' signatures.
    pub signatures: Signatures,
}

/// Whether the modules in the initramfs keep the signatures that Debian appends to them.
///
/// A kernel that is not locked down loads modules without a signature, but checks every existing one: an ECDSA
/// verification of some 40 million instructions for each module, three quarters of the time from `/init` to the
/// handoff. Signatures would not protect the initramfs, since an attacker who can replace a module in it can replace
/// the init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// For a kernel that is locked down, by the recipe or by Secure Boot, which loads no module without one.
    Kept,
    /// For all others.
    LeftOut,
}

impl<'a> Base<'a> {
    /// That of a recipe's image.
    #[must_use]
    pub fn of(recipe: &'a Recipe) -> Self {
        Self {
            init: INIT_PROGRAM,
            platforms: &recipe.kernel.platforms,
            modules: &recipe.kernel.modules,
            files: &recipe.files,
            signatures: match recipe.kernel.loads_signed_only() {
                true => Signatures::Kept,
                false => Signatures::LeftOut,
            },
        }
    }
}

/// The packed part.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Compressed archives, one behind the other.
    pub(super) archive: Vec<u8>,
    /// The names of the firmware that its modules and the kernel ask for.
    pub(super) firmware: BTreeSet<String>,
    /// Hash of all inputs.
    pub(super) key: Key,
}

/// Packs the part, so that [`super::pack`] finds it.
///
/// # Errors
/// When the kernel lacks a wanted module, naming all such modules, or a file cannot be read.
pub fn prepare(session: &Session, kernel: &Kernel, base: &Base<'_>) -> Result<()> {
    let step = session.progress.step("initramfs modules");
    let (packed, hit) = packed(session, kernel, base)?;
    step.done(hit, Some(u64::try_from(packed.archive.len())?));
    Ok(())
}

/// The packed part, and whether it came from the cache.
pub(super) fn packed(
    session: &Session,
    kernel: &Kernel,
    base: &Base<'_>,
) -> Result<(Packed, bool)> {
    let rules = Rules::read(base.files)?;
    let mut key = Key::of("initramfs base", code::INITRAMFS)
        .key("kernel", &kernel.key)
        .bytes("init", base.init)
        .text("modprobe.d", &rules.text)
        .text("level", &LEVEL.to_string());
    for name in module_names(base) {
        key = key.text("module", &name);
    }
    if base.signatures == Signatures::Kept {
        key = key.text("signatures", "kept");
    }
    let key = key.finish();
    let made = session.cache.step("initramfs", &key, |folder| {
        let (archive, firmware) = archive(kernel, base, &rules)?;
        let init = zstd::bulk::compress(&init(base)?, LEVEL).context("compressing the init")?;
        let modules = zstd::bulk::compress(&archive, LEVEL).context("compressing the initramfs")?;
        let packed = [init, modules].concat();
        fs::write(folder.join(FIRMWARE), serde_json::to_vec(&firmware)?)
            .context("writing the names of the firmware")?;
        fs::write(folder.join(ARCHIVE), packed).context("writing the initramfs")
    })?;
    let read = |name: &str| {
        let path = made.path.join(name);
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    };
    let packed = Packed {
        archive: read(ARCHIVE)?,
        firmware: serde_json::from_slice(&read(FIRMWARE)?)
            .context("reading the names of the firmware")?,
        key,
    };
    Ok((packed, made.hit))
}

/// Names of all requested modules, sorted, without duplicates.
fn module_names(base: &Base<'_>) -> Vec<String> {
    let platforms = base
        .platforms
        .iter()
        .flat_map(|platform| platform.provider().drivers);
    let mut out: Vec<String> = drivers::REQUIRED
        .iter()
        .chain(platforms)
        .map(|name| (*name).to_owned())
        .chain(base.modules.iter().cloned())
        .collect();
    out.sort();
    out.dedup();
    out
}

/// The init in an archive of its own, which the kernel unpacks first.
fn init(base: &Base<'_>) -> Result<Vec<u8>> {
    let mut archive = cpio::Archive::new();
    archive.file("/init", 0o755, base.init)?;
    archive.finish_for_another()
}

/// The archive of everything else, and the names of the firmware that its modules and the kernel ask for.
fn archive(kernel: &Kernel, base: &Base<'_>, rules: &Rules) -> Result<(Vec<u8>, BTreeSet<String>)> {
    let mut catalogue = Catalogue::read(&kernel.modules, &kernel.release)?;
    catalogue.add_soft(&rules.soft);
    let mut names = module_names(base);
    let optional = drivers::optional()
        .into_iter()
        .filter(|name| catalogue.knows(name));
    names.extend(optional.map(str::to_owned));
    let mut index = catalogue
        .choose(names.iter().map(String::as_str))
        .context("choosing modules for the initramfs")?;
    rules.mark(&mut index);
    index.signed = base.signatures == Signatures::Kept;
    let mut archive = cpio::Archive::new();
    for folder in FOLDERS {
        archive.directory(folder)?;
    }
    archive.character("/dev/console", 0o600, 5, 1)?;
    // Without a console that it can open, the kernel starts the init with no descriptor; its runtime opens this in the place of the three.
    archive.character("/dev/null", 0o666, 1, 3)?;
    let mut wanted = add_modules(&mut archive, kernel, &catalogue, &index)?;
    let builtin = catalogue.builtin_firmware();
    let builtin = builtin.filter(|name| modinfo::is_firmware_name(name));
    wanted.extend(builtin.map(str::to_owned));
    Ok((archive.finish_for_another()?, wanted))
}

/// Adds the modules and their index. Gives the names of the firmware that they ask for.
///
/// # Errors
/// If a module cannot be read, or has no signature although the index says that all have one.
fn add_modules(
    archive: &mut cpio::Archive,
    kernel: &Kernel,
    catalogue: &Catalogue,
    index: &ModuleIndex,
) -> Result<BTreeSet<String>> {
    let folder = format!("{INITRD_MODULES}/{}", kernel.release);
    let text = serde_json::to_vec(index).context("writing the index of modules")?;
    archive.file(&format!("{folder}/{INITRD_MODULES_INDEX}"), 0o644, &text)?;
    let mut wanted = BTreeSet::new();
    for module in &index.modules {
        let path = catalogue
            .path(&module.name)
            .with_context(|| format!("finding module {}", module.name))?;
        let mut bytes = module_bytes(&kernel.modules.join(path))?;
        let length = unsigned_length(&bytes);
        ensure!(
            !index.signed || length < bytes.len(),
            "module {} has no signature; expected one for a kernel in lockdown: leave `lockdown` and `module-signatures` out of \
             [kernel], or name a kernel package with signed modules",
            module.name
        );
        if !index.signed {
            bytes.truncate(length);
        }
        archive.file(&format!("{folder}/{}", module.path), 0o644, &bytes)?;
        let names = modinfo::firmware(&bytes);
        wanted.extend(names.with_context(|| format!("reading module {}", module.name))?);
    }
    Ok(wanted)
}

/// A module file's content, decompressed.
fn module_bytes(path: &Path) -> Result<Vec<u8>> {
    let naming = || format!("reading module {}", path.display());
    let packed = fs::read(path).with_context(naming)?;
    let mut out = Vec::new();
    match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("xz") => liblzma::read::XzDecoder::new(packed.as_slice())
            .read_to_end(&mut out)
            .with_context(naming)?,
        Some("zst") => zstd::stream::read::Decoder::new(packed.as_slice())
            .and_then(|mut decoder| decoder.read_to_end(&mut out))
            .with_context(naming)?,
        Some("gz") => flate2::read::GzDecoder::new(packed.as_slice())
            .read_to_end(&mut out)
            .with_context(naming)?,
        _ => {
            out = packed;
            out.len()
        }
    };
    ensure!(
        out.starts_with(b"\x7fELF"),
        "{}: expected a kernel module, found no ELF file",
        path.display()
    );
    Ok(out)
}

/// Bytes of a module without the signature that is appended to it (`include/linux/module_signature.h`).
fn unsigned_length(module: &[u8]) -> usize {
    const MAGIC: &[u8] = b"~Module signature appended~\n";
    const TRAILER: usize = 12;
    let signature = || {
        let rest = module.strip_suffix(MAGIC)?;
        let (_, trailer) = rest.split_at_checked(rest.len().checked_sub(TRAILER)?)?;
        let [_, _, _, signer, key, _, _, _, length @ ..] = trailer else {
            return None;
        };
        let length = u32::from_be_bytes(length.try_into().ok()?);
        let length = usize::try_from(length).ok()? + usize::from(*signer) + usize::from(*key);
        rest.len().checked_sub(TRAILER + length)
    };
    signature().unwrap_or(module.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;

    #[test]
    fn an_appended_signature_is_left_out_and_nothing_else() {
        let module = b"\x7fELF module";
        let signed = |length: u32| {
            let mut out = module.to_vec();
            out.extend_from_slice(&[7; 300]);
            out.extend_from_slice(&[0, 0, 2, 1, 2, 0, 0, 0]);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(b"~Module signature appended~\n");
            out
        };
        assert_eq!(unsigned_length(&signed(297)), module.len());
        assert_eq!(unsigned_length(module), module.len());
        let broken = signed(u32::MAX);
        assert_eq!(unsigned_length(&broken), broken.len());
        assert_eq!(unsigned_length(b"~Module signature appended~\n"), 28);
    }

    /// A kernel with one module.
    fn kernel(folder: &Path, module: &[u8]) -> Kernel {
        for list in ["softdep", "alias", "builtin", "builtin.modinfo"] {
            fs::write(folder.join(format!("modules.{list}")), "").unwrap();
        }
        fs::write(folder.join("modules.dep"), "nvme.ko:\n").unwrap();
        fs::write(folder.join("nvme.ko"), module).unwrap();
        Kernel {
            release: "6.12".to_owned(),
            vmlinuz: folder.join("vmlinuz"),
            modules: folder.to_owned(),
            layer: Layer::with_key(Vec::new(), Key::of_data("layer", 1).finish()).unwrap(),
            compiled: Vec::new(),
            key: Key::of_data("kernel", 1).finish(),
        }
    }

    #[test]
    fn modules_keep_their_signatures_for_a_kernel_that_asks_for_them() {
        let module = modinfo::tests::module(b"license=GPL\0");
        let mut signed = module.clone();
        signed.extend([0; 8]);
        signed.extend([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        signed.extend(b"~Module signature appended~\n");
        let packed = |file: &[u8], is_signed: bool| {
            let folder = tempfile::tempdir().unwrap();
            let kernel = kernel(folder.path(), file);
            let catalogue = Catalogue::read(&kernel.modules, &kernel.release)?;
            let mut index = catalogue.choose(["nvme"])?;
            index.signed = is_signed;
            let mut archive = cpio::Archive::new();
            add_modules(&mut archive, &kernel, &catalogue, &index)?;
            let bytes = archive.finish()?;
            let entries = cpio::read(&bytes)?;
            let content = |name: &str| {
                let found = entries.iter().find(|entry| entry.name.ends_with(name));
                found.unwrap().content.to_vec()
            };
            let index: ModuleIndex = serde_json::from_slice(&content(INITRD_MODULES_INDEX))?;
            anyhow::Ok((content("nvme.ko"), index.signed))
        };
        assert_eq!(packed(&signed, true).unwrap(), (signed.clone(), true));
        assert_eq!(packed(&signed, false).unwrap(), (module.clone(), false));
        assert_eq!(packed(&module, false).unwrap(), (module.clone(), false));
        let unsigned = packed(&module, true).unwrap_err().to_string();
        assert!(unsigned.contains("nvme has no signature"), "{unsigned}");
    }
}
