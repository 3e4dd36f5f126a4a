//! The table of the programs and libraries of the root that disks need, each with its Debian package.

use anyhow::{Context, Result};

use crate::programs::{self, Programs};

/// A program or library of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `clevis`: the front of its pins.
    Clevis,
    /// `clevis-luks-askpass`: answers when the running system asks for a volume's key.
    ClevisAgent,
    /// `clevis-luks-bind`.
    ClevisLuks,
    /// `clevis-encrypt-sss`, a pin.
    ClevisSss,
    /// `clevis-encrypt-tang`, a pin.
    ClevisTang,
    /// `clevis-encrypt-tpm2`, a pin.
    ClevisTpm2,
    /// `systemd-cryptenroll`.
    Cryptenroll,
    /// `cryptsetup`.
    Cryptsetup,
    /// `systemd-cryptsetup-generator`.
    CryptsetupGenerator,
    /// `e2fsck`.
    E2fsck,
    /// `mdadm`.
    Mdadm,
    /// `mkfs.btrfs`.
    MkfsBtrfs,
    /// `mkfs.ext4`.
    MkfsExt4,
    /// `mkfs.fat`.
    MkfsFat,
    /// `mkfs.xfs`.
    MkfsXfs,
    /// `mkswap`.
    Mkswap,
    /// `modprobe`.
    Modprobe,
    /// `systemd-cryptsetup`.
    SystemdCryptsetup,
    /// `libtss2-esys.so.0`.
    TssEsys,
    /// `libtss2-rc.so.0`.
    TssRc,
    /// `wipefs`.
    Wipefs,
}

/// Their folders, in Debian and in other distributions' initrds.
const FOLDERS: [&str; 7] = [
    "/usr/sbin",
    "/usr/bin",
    "/usr/libexec",
    "/usr/lib/systemd/system-generators",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/systemd",
];

impl Tool {
    /// Its name, and Debian's package.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Clevis => ("clevis", "clevis"),
            Self::ClevisAgent => ("clevis-luks-askpass", "clevis-systemd"),
            Self::ClevisLuks => ("clevis-luks-bind", "clevis-luks"),
            Self::ClevisSss => ("clevis-encrypt-sss", "clevis"),
            Self::ClevisTang => ("clevis-encrypt-tang", "clevis"),
            Self::ClevisTpm2 => ("clevis-encrypt-tpm2", "clevis-tpm2"),
            Self::Cryptenroll => ("systemd-cryptenroll", "systemd-cryptsetup"),
            Self::Cryptsetup => ("cryptsetup", "cryptsetup-bin"),
            // The programs that open volumes on the running system, by crypttab.
            Self::CryptsetupGenerator => ("systemd-cryptsetup-generator", "systemd-cryptsetup"),
            Self::E2fsck => ("e2fsck", "e2fsprogs"),
            Self::Mdadm => ("mdadm", "mdadm"),
            Self::MkfsBtrfs => ("mkfs.btrfs", "btrfs-progs"),
            Self::MkfsExt4 => ("mkfs.ext4", "e2fsprogs"),
            Self::MkfsFat => ("mkfs.fat", "dosfstools"),
            Self::MkfsXfs => ("mkfs.xfs", "xfsprogs"),
            Self::Mkswap => ("mkswap", "util-linux"),
            Self::Modprobe => ("modprobe", "kmod"),
            Self::SystemdCryptsetup => ("systemd-cryptsetup", "systemd-cryptsetup"),
            // Libraries that systemd opens by name when it uses a TPM.
            Self::TssEsys => ("libtss2-esys.so.0", "libtss2-esys-3.0.2-0t64"),
            Self::TssRc => ("libtss2-rc.so.0", "libtss2-rc0t64"),
            Self::Wipefs => ("wipefs", "util-linux"),
        }
    }

    /// Its path inside the root.
    ///
    /// # Errors
    /// If the root does not have it; names the package.
    pub fn find(self, root: &Programs) -> Result<String> {
        let (name, package) = self.names();
        FOLDERS
            .iter()
            .map(|folder| format!("{folder}/{name}"))
            .find(|path| root.sysroot.join(path.trim_start_matches('/')).exists())
            .with_context(|| match root.in_image {
                true => format!(
                    "the image has no {name}; add the package {package} to [debian] packages in its recipe"
                ),
                false => format!("{name} is not in {}", FOLDERS.join(", ")),
            })
    }
}

/// Loads a module of the root's kernel, if it is not built in. The kernel cannot request it itself here.
///
/// # Errors
/// If it does not load.
pub fn load_module(root: &Programs, name: &str) -> Result<()> {
    if is_loaded(root, name) {
        return Ok(());
    }
    let program = Tool::Modprobe.find(root)?;
    programs::succeed(root, &program, &["-q", name])
        .with_context(|| format!("loading the kernel's module {name}"))?;
    Ok(())
}

/// Whether the root's kernel has a module, built in or not.
///
/// # Errors
/// If modprobe does not exist or does not start.
pub fn has_module(root: &Programs, name: &str) -> Result<bool> {
    if is_loaded(root, name) {
        return Ok(true);
    }
    let program = Tool::Modprobe.find(root)?;
    let output = programs::run(root, &program, &["-n", "-q", name])?;
    Ok(output.status.success())
}

/// Whether the kernel has a module already: the current root may have no modules.
fn is_loaded(root: &Programs, name: &str) -> bool {
    root.world.sys.join("module").join(name).exists()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::world::{Clock, World};

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let root = Programs {
            world: Arc::new(World::below(Path::new("/nowhere"), Clock::Real)),
            sysroot: folder.path().to_owned(),
            in_image: true,
        };
        let error = Tool::MkfsXfs.find(&root).unwrap_err().to_string();
        assert!(
            error.contains("mkfs.xfs") && error.contains("xfsprogs"),
            "{error}"
        );
        std::fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        std::fs::write(folder.path().join("usr/bin/mkfs.xfs"), "").unwrap();
        assert_eq!(Tool::MkfsXfs.find(&root).unwrap(), "/usr/bin/mkfs.xfs");
    }
}
