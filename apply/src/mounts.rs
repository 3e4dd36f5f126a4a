//! Mounts of the config's file systems below the root, so that later steps can write into them: shallow ones first, and
//! all unmounted before the handoff. Later boots mount by the config's own units.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::paths;

use crate::journal::files::FileJournal;
use crate::target::Rules;
use linux::filesystem::Kind;
use linux::kernel_call;
use linux::mount;
use linux::mount::Flags;
use linux::programs::Programs;

use linux::tools::load_module;

/// Mount point of `var`.
pub const VAR: &str = "/var";

/// A file system to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSpec {
    /// Its JSON path in the config.
    pub at: String,
    /// Its kind.
    pub kind: Kind,
    /// The mount point, a clean absolute path in the root.
    pub path: String,
    /// The config's mount options.
    pub options: Vec<String>,
}

/// The mounts of this run, deepest last.
#[derive(Debug, Default)]
pub struct Mounted {
    targets: Vec<PathBuf>,
    /// Paths in the root of mount points and of folders that were made for them. A home among them becomes its user's.
    pub folders: Vec<String>,
}

/// Checks whether a file system may be mounted at this path, as far as that can be decided before `/var` is mounted.
///
/// # Errors
/// The reason, and the remedy.
pub fn check(path: &str, rules: &Rules) -> Result<(), String> {
    // A system without a read-only root has its own mount points.
    if rules.may_write("/") {
        return Ok(());
    }
    let at_or_below = |place: &str| {
        path.strip_prefix(place)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some((link, target)) = rules.var_links.iter().find(|(link, _)| at_or_below(link)) {
        let above = link.rsplit_once('/').map_or("", |(above, _)| above);
        let real = ignition::validate::clean(&format!("{above}/{target}"));
        let instead = path.replacen(link, &real, 1);
        return Err(format!(
            "{link} is a link, and nothing can be mounted on one; mount at {instead}"
        ));
    }
    if at_or_below(paths::ETCD) {
        return Err(format!(
            "{} belongs to the etcd volume; name the partition in [etcd] of {} instead",
            paths::ETCD,
            paths::NODE_SETTINGS
        ));
    }
    let own = paths::STATE
        .rsplit_once('/')
        .map_or(paths::STATE, |(above, _)| above);
    if at_or_below(own) {
        return Err(format!("{own} belongs to the node itself"));
    }
    if path == "/etc" || !rules.writable.iter().any(|place| at_or_below(place)) {
        return Err(format!(
            "{path}: the root is read-only there; file systems are mounted at /var and below {}",
            rules.writable.join(" and ")
        ));
    }
    Ok(())
}

/// Mounts the file systems below `base`, each with the device that it was found on. `root` has the programs.
///
/// # Errors
/// If a part of a path is not a folder, or the kernel refuses; then none stays mounted.
pub fn mount(
    root: &Programs,
    base: &Path,
    wanted: &[(MountSpec, PathBuf)],
    journal: &mut FileJournal,
) -> Result<Mounted> {
    let mut wanted: Vec<_> = wanted.iter().collect();
    wanted.sort_by_key(|(wanted, _)| wanted.path.matches('/').count());
    let mut mounted = Mounted::default();
    for (wanted, device) in wanted {
        let done = mount_one(root, base, wanted, device, journal, &mut mounted)
            .with_context(|| format!("{}: mounting at {}", wanted.at, wanted.path));
        if let Err(error) = done {
            if let Err(error) = mounted.unmount() {
                tracing::warn!("{error:#}");
            }
            return Err(error);
        }
    }
    Ok(mounted)
}

fn mount_one(
    root: &Programs,
    base: &Path,
    wanted: &MountSpec,
    device: &Path,
    journal: &mut FileJournal,
    mounted: &mut Mounted,
) -> Result<()> {
    let missing = missing(base, &wanted.path)?;
    // The folders of an interrupted attempt count as made too.
    let made = journal.note_folders(&missing)?;
    for folder in &missing {
        mount::folder(&base.join(folder.trim_start_matches('/')), 0o755)?;
    }
    mounted.folders.extend(made);
    mounted.folders.push(wanted.path.clone());
    let target = base.join(wanted.path.trim_start_matches('/'));
    attach(root, device, &target, wanted.kind, &wanted.options)?;
    mounted.targets.push(target);
    Ok(())
}

/// Mounts one file system, after loading the kernel's module for it. If that cannot be loaded, the module may be built
/// in, or the kernel may find it itself.
///
/// # Errors
/// If the kernel refuses.
pub fn attach(
    root: &Programs,
    device: &Path,
    target: &Path,
    kind: Kind,
    options: &[String],
) -> Result<()> {
    let name = match kind {
        Kind::Ext3 | Kind::Ext4 => "ext4",
        Kind::Xfs => "xfs",
        Kind::Btrfs => "btrfs",
        Kind::Vfat => "vfat",
        Kind::Swap | Kind::Luks1 | Kind::Luks2 => return Ok(()),
    };
    let loaded = load_modules(root, name);
    let (flags, data): (Flags, String) = mount::options(options);
    // The log of a file system that was not unmounted is replayed.
    let what = format!("the {name} on {} to mount", device.display());
    let mounted = kernel_call::on_disks(&root.world, &what, || {
        mount::mount(device, target, name, flags, &data)
    });
    match (mounted, loaded) {
        (Ok(()), Ok(())) => Ok(()),
        (Ok(()), Err(error)) => {
            tracing::warn!("disks: {error:#}");
            Ok(())
        }
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(cause)) => Err(cause.context(error)),
    }
}

fn load_modules(root: &Programs, name: &str) -> Result<()> {
    let known = root.world.proc.join("filesystems");
    let known = std::fs::read_to_string(&known).unwrap_or_default();
    if !known.lines().any(|line| line.trim() == name) {
        load_module(root, name)?;
    }
    if name == "vfat" {
        // The code page and character set that FAT requests when it is mounted.
        for module in ["nls_cp437", "nls_ascii"] {
            load_module(root, module)?;
        }
    }
    Ok(())
}

/// The folders of a path that are absent. Every existing part must be a folder and not a link, so that the path is the
/// same in the root and here.
fn missing(sysroot: &Path, path: &str) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    let mut here = sysroot.to_owned();
    let mut shown = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        here.push(part);
        shown = format!("{shown}/{part}");
        match std::fs::symlink_metadata(&here) {
            Ok(meta) => ensure!(
                meta.is_dir(),
                "{shown} is {}, not a folder",
                if meta.is_symlink() {
                    "a link"
                } else {
                    "a file"
                }
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                missing.push(shown.clone());
            }
            Err(error) => return Err(error).with_context(|| format!("looking at {shown}")),
        }
    }
    Ok(missing)
}

impl Mounted {
    /// Unmounts all, deepest first; all written data is on the disks then.
    ///
    /// # Errors
    /// Names the mount that remains.
    pub fn unmount(&mut self) -> Result<()> {
        while let Some(target) = self.targets.last() {
            mount::unmount(target)?;
            self.targets.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_is_writable_and_nobody_elses_is_a_mount_point() {
        for path in [
            "/var",
            "/var/lib/data",
            "/var/lib/containerd",
            "/etc/data",
            "/var/home/core",
        ] {
            assert_eq!(check(path, &Rules::NODE), Ok(()), "{path}");
        }
        for (path, why) in [
            ("/home/core", "/var/home/core"),
            ("/usr/local", "/var/usrlocal"),
            ("/etc", "read-only"),
            ("/usr/lib/x", "read-only"),
            ("/", "read-only"),
            ("/variable", "read-only"),
            ("/var/lib/etcd", "[etcd]"),
            ("/var/lib/slipway/state", "belongs to the node"),
        ] {
            let error = check(path, &Rules::NODE).unwrap_err();
            assert!(error.contains(why), "{path}: {error}");
        }
    }

    #[test]
    fn absent_folders_are_told_and_links_and_files_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("var/lib")).unwrap();
        symlink("lib", folder.path().join("var/link")).unwrap();
        fs::write(folder.path().join("var/file"), "").unwrap();
        let absent = missing(folder.path(), "/var/lib/a/b").unwrap();
        assert_eq!(absent, ["/var/lib/a", "/var/lib/a/b"]);
        fs::create_dir_all(folder.path().join("var/lib/a/b")).unwrap();
        assert!(missing(folder.path(), "/var/lib/a/b").unwrap().is_empty());
        for (path, why) in [
            ("/var/link/x", "/var/link is a link"),
            ("/var/file/x", "/var/file is a file"),
        ] {
            let error = missing(folder.path(), path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
