//! Bootable: kernel, initramfs and command line, as a unified kernel image and as separate files for a boot
//! from the network.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use image::addon;
use image::cmdline::{BACKUP_GPT, Cmdline, LIMIT};
use image::layout::Architecture;

use crate::code;
use crate::format::uki;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::install::tools::Tools;
use crate::recipe::Recipe;
use crate::steps::identity::Identity;
use crate::steps::initramfs::Initramfs;
use crate::steps::kernel::Kernel;
use crate::steps::root::Root;

/// The UKI's name in its step's folder.
const FILE: &str = "linux.efi";

/// The files that firmware or a loader starts.
#[derive(Clone, Debug)]
pub struct Bootable {
    /// The unified kernel image.
    pub uki: PathBuf,
    /// The kernel alone.
    pub vmlinuz: PathBuf,
    /// The initramfs alone.
    pub initrd: PathBuf,
    /// The complete command line.
    pub cmdline: String,
    /// Hash of all inputs.
    pub key: Key,
}

/// The kernel command line, and the `os-release` that boot loaders read.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Words of the command line, in order.
    pub cmdline: Vec<String>,
    /// Text of the root's `os-release`.
    pub os_release: &'a str,
    /// The machines that the image is for.
    pub architecture: Architecture,
}

/// Path of systemd's stub in the tools tree.
const fn stub(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "usr/lib/systemd/boot/efi/linuxx64.efi.stub",
        Architecture::Arm64 => "usr/lib/systemd/boot/efi/linuxaa64.efi.stub",
    }
}

/// Path of systemd's stub for addons in the tools tree.
const fn addon_stub(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "usr/lib/systemd/boot/efi/addonx64.efi.stub",
        Architecture::Arm64 => "usr/lib/systemd/boot/efi/addonaa64.efi.stub",
    }
}

/// The template that the init fills with a config's kernel arguments: an addon without words.
///
/// # Errors
/// When systemd's stub for addons is missing or does not take the section.
pub fn addon(tools: &Tools, architecture: Architecture) -> Result<Vec<u8>> {
    let file = tools.root.join(addon_stub(architecture));
    let stub = fs::read(&file)
        .with_context(|| format!("reading systemd's stub for addons {}", file.display()))?;
    uki::addon(&stub, &addon::reserved()).context("writing the addon of the command line")
}

/// The command line of a recipe's image: the hash of its root, the word for damaged partition tables, then the recipe's words.
#[must_use]
pub fn options<'a>(recipe: &Recipe, identity: &'a Identity, root: &Root) -> Options<'a> {
    let own = Cmdline {
        roothash: Some(root.hash),
        ..Cmdline::default()
    };
    let lockdown = recipe.kernel.lockdown.map(|mode| mode.word().to_owned());
    Options {
        cmdline: [
            own.to_words(),
            vec![BACKUP_GPT.to_owned()],
            lockdown.into_iter().collect(),
            recipe.kernel.cmdline.clone(),
        ]
        .concat(),
        os_release: &identity.os_release,
        architecture: recipe.image.architecture,
    }
}

/// Links kernel, initramfs and command line to a UKI.
///
/// # Errors
/// When the command line is too long for the kernel, or the stub does not take the sections.
pub fn link(
    session: &Session,
    tools: &Tools,
    kernel: &Kernel,
    initramfs: &Initramfs,
    options: &Options,
) -> Result<Bootable> {
    let step = session.progress.step("bootable");
    let cmdline = options.cmdline.join(" ");
    ensure!(
        cmdline.len() < LIMIT && !cmdline.chars().any(char::is_control),
        "the kernel command line has {} bytes; expected less than {LIMIT}, all printable: {cmdline}",
        cmdline.len()
    );
    let stub_file = tools.root.join(stub(options.architecture));
    let stub = fs::read(&stub_file)
        .with_context(|| format!("reading systemd's stub {}", stub_file.display()))?;
    let key = Key::of("bootable", code::BOOTABLE)
        .key("kernel", &kernel.key)
        .key("initramfs", &initramfs.key)
        .bytes("stub", &stub)
        .text("cmdline", &cmdline)
        .text("os-release", options.os_release)
        .finish();
    let made = session.cache.step("bootable", &key, |folder| {
        let vmlinuz = fs::read(&kernel.vmlinuz)
            .with_context(|| format!("reading the kernel {}", kernel.vmlinuz.display()))?;
        let initrd = fs::read(&initramfs.path)
            .with_context(|| format!("reading the initramfs {}", initramfs.path.display()))?;
        let image = uki::write(&uki::Parts {
            stub: &stub,
            os_release: options.os_release,
            cmdline: &cmdline,
            release: &kernel.release,
            kernel: &vmlinuz,
            initrd: &initrd,
        })
        .context("writing the UKI")?;
        fs::write(folder.join(FILE), image).context("writing the UKI")
    })?;
    let uki = made.path.join(FILE);
    let size = fs::metadata(&uki).context("reading the UKI")?.len();
    step.done(made.hit, Some(size));
    Ok(Bootable {
        uki,
        vmlinuz: kernel.vmlinuz.clone(),
        initrd: initramfs.path.clone(),
        cmdline,
        key,
    })
}
