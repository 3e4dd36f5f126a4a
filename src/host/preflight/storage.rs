//! Storage: what a build asks of the file systems of its cache and of its output, tried out in a folder there.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use nix::sys::statfs::statfs;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::finding::Finding;
use crate::host::cache::Cache;
use crate::host::full_disk::{Place, Space, is_full};
use crate::host::progress::bytes;

/// The name of the cache's resource.
const CACHE: &str = "cache folder";
/// The name of the output's resource.
const OUTPUT: &str = "output folder";
/// What is free in a cache where any command may begin, in bytes; in one without lists of packages more: those of Debian take 66 MiB.
const LEAST_CACHE: u64 = 16 << 20;
const LEAST_NEW_CACHE: u64 = 80 << 20;
/// What is free where any image may be written, in bytes: no image is smaller.
const LEAST_OUTPUT: u64 = 16 << 20;
/// How the C library words `ENOSPC`.
const FULL: &str = "No space left on device";
/// A file's capability: CAP_NET_RAW, permitted, in revision 2 (linux/capability.h, `struct vfs_cap_data`).
const CAPABILITY: [u8; 20] = [
    0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// File systems by their magic number (statfs(2)), for messages.
const KINDS: [(i64, &str); 12] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0x0102_1997, "9p"),
    (0x8584_58f6, "ramfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
    (0x0bd0_0bd0, "Lustre"),
    (0x00c3_6400, "CephFS"),
];

/// Space that work needs in a folder.
#[derive(Clone, Debug)]
pub struct Need<'a> {
    /// The folder.
    pub place: Place<'a>,
    /// How much, in bytes.
    pub bytes: u64,
    /// What for.
    pub what: String,
}

/// For each folder that has less free than is needed there, and in the other ones on its file system: what it lacks. A file system that
/// does not tell lacks nothing.
pub(super) fn space(needs: &[Need<'_>]) -> Vec<Finding> {
    let spaces: Vec<Option<Space>> = needs
        .iter()
        .map(|need| Space::of(need.place.folder).ok())
        .collect();
    let mut found = Vec::new();
    for (need, space) in needs.iter().zip(&spaces) {
        let Some(space) = space else { continue };
        let of_it = |other: &Option<Space>| other.is_some_and(|other| other.device == space.device);
        let others = needs.iter().zip(&spaces).filter(|(_, other)| of_it(other));
        let all: u64 = others.map(|(need, _)| need.bytes).sum();
        if need.bytes == 0 || all <= space.free {
            continue;
        }
        let (free, needed) = (bytes(space.free), bytes(need.bytes));
        let beside = match all - need.bytes {
            0 => String::new(),
            rest => format!(", beside {} on the same file system", bytes(rest)),
        };
        let absolute = std::path::absolute(need.place.folder);
        let folder = shown(absolute.as_deref().unwrap_or(need.place.folder));
        found.push(Finding::missing(
            need.place.name,
            format!(
                "{folder} has {free} free, and {needed} are needed for {}{beside}",
                need.what
            ),
            need.place.remedy,
        ));
    }
    found
}

/// Tries what packages and their scripts do with files, in a scratch folder of the cache.
pub(super) fn cache(cache: &Cache) -> Finding {
    let folder = cache.root();
    let least = Need {
        place: Place::cache(folder),
        bytes: match cache.has_lists() {
            true => LEAST_CACHE,
            false => LEAST_NEW_CACHE,
        },
        what: "lists of packages and unfinished work".to_owned(),
    };
    let lacks = match cache.scratch() {
        Ok(scratch) => lacks(scratch.path()),
        Err(error) => vec![format!("make folders ({error:#})")],
    };
    // What the kind of the file system cannot do stays so with more room; a try that failed for want of room says nothing of it.
    let may_be_full = lacks.is_empty() || lacks.iter().any(|lack| lack.contains(FULL));
    if may_be_full && let Some(full) = space(&[least]).pop() {
        return full;
    }
    let shown = shown(folder);
    if lacks.is_empty() {
        return Finding::good(CACHE, shown);
    }
    Finding::missing(
        CACHE,
        format!("{shown} cannot {}", lacks.join(", ")),
        "set SLIPWAY_CACHE, or --cache, to a folder on a local file system such as ext4, XFS or Btrfs",
    )
}

/// A cache that cannot be opened.
pub(super) fn no_cache(error: &anyhow::Error) -> Finding {
    if is_full(error) {
        let remedy = Place::cache(Path::new("")).remedy;
        return Finding::missing(CACHE, format!("{error:#}"), remedy);
    }
    Finding::missing(
        CACHE,
        format!("{error:#}"),
        "set SLIPWAY_CACHE, or --cache, to a folder that this user can write to",
    )
}

/// Tries whether an image can be written below `folder`, which need not be there yet.
pub(super) fn output(folder: &Path) -> Option<Finding> {
    let least = Need {
        place: Place::output(folder),
        bytes: LEAST_OUTPUT,
        what: "an image".to_owned(),
    };
    if let Some(full) = space(&[least]).pop() {
        return Some(full);
    }
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = absolute.ancestors().find(|path| path.exists())?;
    let tried = tempfile::tempdir_in(there).and_then(|scratch| {
        let file = File::create(scratch.path().join("lock"))?;
        file.try_lock().map_err(std::io::Error::other)?;
        file.sync_all()?;
        fs::rename(scratch.path().join("lock"), scratch.path().join("renamed"))
    });
    let error = tried.err()?;
    Some(Finding::missing(
        OUTPUT,
        format!("{}: {error}", shown(there)),
        "give another folder with --output, on a local file system and writable for this user",
    ))
}

/// A folder, which need not be there yet, with the kind of its file system, if that is a known one.
fn shown(folder: &Path) -> String {
    let there = folder.ancestors().find(|path| path.exists());
    let kind = there.and_then(|there| {
        let found = statfs(there).ok()?;
        let number = found.filesystem_type().0;
        KINDS.iter().find(|(magic, _)| *magic == number)
    });
    match kind {
        Some((_, kind)) => format!("{} ({kind})", folder.display()),
        None => folder.display().to_string(),
    }
}

/// What the file system of an empty folder cannot do of what a build needs, as verbs with their objects.
fn lacks(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut note = |what: &str, tried: Result<(), String>| {
        if let Err(why) = tried {
            all.push(format!("{what} ({why})"));
        }
    };
    let file = folder.join("file");
    note(
        "execute programs",
        match statvfs(folder) {
            Ok(stat) if stat.flags().contains(FsFlags::ST_NOEXEC) => {
                Err("mounted with noexec".to_owned())
            }
            _ => Ok(()),
        },
    );
    note("write files", text(fs::write(&file, "probe")));
    note("give files to other users", other_owner(&file));
    note("keep the setuid bit", setuid(&file));
    note("keep file capabilities", capability(&file));
    note(
        "make hard links",
        text(fs::hard_link(&file, folder.join("hard"))),
    );
    note(
        "make symbolic links",
        text(symlink("file", folder.join("soft"))),
    );
    note("tell FILE from file", cases(folder));
    note("lock files", locks(&file));
    all
}

fn text<T>(tried: std::io::Result<T>) -> Result<(), String> {
    tried.map(|_| ()).map_err(|error| error.to_string())
}

fn other_owner(file: &Path) -> Result<(), String> {
    text(chown(file, Some(1), Some(1)))?;
    match fs::metadata(file) {
        Ok(meta) if (meta.uid(), meta.gid()) == (1, 1) => Ok(()),
        Ok(meta) => Err(format!("they stay those of {}", meta.uid())),
        Err(error) => Err(error.to_string()),
    }
}

fn setuid(file: &Path) -> Result<(), String> {
    text(fs::set_permissions(
        file,
        fs::Permissions::from_mode(0o4755),
    ))?;
    match fs::metadata(file) {
        Ok(meta) if meta.mode() & 0o7777 == 0o4755 => Ok(()),
        Ok(meta) => Err(format!("the mode is then {:04o}", meta.mode() & 0o7777)),
        Err(error) => Err(error.to_string()),
    }
}

fn capability(file: &Path) -> Result<(), String> {
    const NAME: &str = "security.capability";
    text(xattr::set(file, NAME, &CAPABILITY))?;
    match xattr::get(file, NAME) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("they are gone when read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn cases(folder: &Path) -> Result<(), String> {
    let upper: PathBuf = folder.join("FILE");
    match upper.exists() {
        true => Err("names are folded".to_owned()),
        false => Ok(()),
    }
}

fn locks(file: &Path) -> Result<(), String> {
    let opened = File::open(file).map_err(|error| error.to_string())?;
    opened.try_lock().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_folders_do_for_a_build() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(lacks(place.path()), Vec::<String>::new());
    }

    #[test]
    fn an_output_folder_need_not_be_there_and_must_be_writable() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(output(&place.path().join("a/b")), None);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let found = output(Path::new("/proc/out")).unwrap();
        assert!(
            found.is_fatal() && found.found.contains("/proc"),
            "{found:?}"
        );
    }
}
