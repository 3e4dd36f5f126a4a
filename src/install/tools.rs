//! Tools tree: the programs for a build or a run, unpacked once from locked packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::Result;

use super::rootfs::unpack_only;
use crate::code;
use crate::debian::pinned::{Deb, LockedPackage};
use crate::host::cache::{Key, KeyBuilder};
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;

/// Users and groups, for programs that look up a name for an id; no script of a package has created them.
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Links of update-alternatives(1) that no script has made, and what they lead to.
const ALTERNATIVES: [(&str, &str); 3] = [
    ("usr/bin/awk", "mawk"),
    ("usr/bin/cc", "gcc"),
    ("usr/bin/c++", "g++"),
];

/// A tree of programs, read-only for its users.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The tree.
    pub root: PathBuf,
    /// Hash of all its inputs.
    pub key: Key,
    /// Hash of its packages alone, for what depends on their programs and not on how they were unpacked.
    pub packages: Key,
}

/// Unpacks the packages of set `name` into the cache, if they are not there yet, without running a script.
///
/// # Errors
/// If a package cannot be read.
pub fn install(session: &Session, name: &str, debs: &[Deb]) -> Result<Tools> {
    let mut debs = debs.to_vec();
    debs.sort_by(|a, b| a.package.name.cmp(&b.package.name));
    let of_packages = |key| {
        let each = debs.iter().map(|deb| &deb.package);
        let add =
            |key: KeyBuilder, package: &LockedPackage| key.text(&package.name, &package.sha256);
        each.fold(key, add).finish()
    };
    let key = of_packages(Key::of("tools", code::ROOTFS));
    let step = session.progress.step_once(name, key.as_str());
    let made = session.cache.step("tools", &key, |folder| {
        session.do_deferred()?;
        let root = folder.join("tree");
        unpack_only(&debs, &root)?;
        for (path, content) in [
            ("etc/passwd", PASSWD),
            ("etc/group", GROUP),
            // Mount point for a program with the network.
            ("etc/resolv.conf", ""),
        ] {
            let path = root.join(path);
            if fs::symlink_metadata(&path).is_err() {
                fs::write(path, content)?;
            }
        }
        for (link, target) in ALTERNATIVES {
            let link = root.join(link);
            let is_meant = fs::symlink_metadata(&link).is_err();
            if is_meant && link.with_file_name(target).exists() {
                symlink(target, link)?;
            }
        }
        fs::create_dir_all(root.join("root"))?;
        Ok(())
    })?;
    step.done(made.hit, None);
    Ok(Tools {
        root: made.path.join("tree"),
        key,
        packages: of_packages(Key::of_data("packages", 1)),
    })
}

impl Tools {
    /// A sandbox with this tree as its root, read-only.
    #[must_use]
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::read_only(&self.root)
    }
}
