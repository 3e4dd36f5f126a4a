//! The kubelet's container in the finished tree: its program and its mount points are there. The root is read-only, so the
//! runtime could not make them; and at boot the check would be half a hundred reads from the disk.

use std::io::{self, ErrorKind};

use anyhow::{Result, ensure};
use image::container_lint;
use image::paths::KUBELET_ROOTFS;

use crate::layer::merge::{Tree, resolve};
use crate::layer::{Entry, Kind};

/// Checks the container, if the tree has one.
///
/// # Errors
/// Everything that is missing.
pub(super) fn check(entries: &[Entry]) -> Result<()> {
    let inside = |entry: &Entry| {
        let path = entry.path.strip_prefix(KUBELET_ROOTFS)?;
        path.starts_with('/')
            .then(|| (path.to_owned(), entry.clone()))
    };
    let container: Tree = entries.iter().filter_map(inside).collect();
    if container.is_empty() {
        return Ok(());
    }
    let wrong = container_lint::image(|path| {
        let path = resolve(&container, path, true).map_err(io::Error::other)?;
        match container.get(&path).map(|entry| &entry.kind) {
            Some(Kind::File(_) | Kind::HardLink(_)) => Ok(true),
            Some(Kind::Directory) => Ok(false),
            _ => Err(ErrorKind::NotFound.into()),
        }
    });
    ensure!(
        wrong.is_empty(),
        "the recipe's files or packages break the kubelet's container:\n  {}",
        wrong.join("\n  ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use image::kubelet::{MOUNTS, PROGRAM, Source};

    use super::*;

    fn tree() -> Vec<Entry> {
        let at = |path: &str| format!("{KUBELET_ROOTFS}{path}");
        let mut entries = vec![
            Entry::directory("/", 0o755),
            Entry::directory(KUBELET_ROOTFS, 0o755),
            Entry::file(at(PROGRAM), 0o755, ""),
        ];
        entries.extend(MOUNTS.iter().map(|mount| match mount.source {
            Source::File(_) => Entry::file(at(mount.target), 0o644, ""),
            _ => Entry::directory(at(mount.target), 0o755),
        }));
        entries
    }

    #[test]
    fn a_container_without_a_target_is_refused_with_all_that_is_missing() {
        check(&[Entry::directory("/", 0o755)]).unwrap();
        check(&tree()).unwrap();
        let mut broken = tree();
        let gone = ["/var/lib/kubelet", PROGRAM].map(|path| format!("{KUBELET_ROOTFS}{path}"));
        broken.retain(|entry| !gone.contains(&entry.path));
        let error = check(&broken).unwrap_err().to_string();
        for missing in [
            "folder /var/lib/kubelet is missing",
            "file /usr/bin/kubelet is missing",
        ] {
            assert!(error.contains(missing), "{error}");
        }
    }

    #[test]
    fn links_are_followed_inside_the_container() {
        let mut entries = tree();
        let program = format!("{KUBELET_ROOTFS}{PROGRAM}");
        entries.retain(|entry| entry.path != program);
        entries.push(Entry::symlink(&program, "/opt/kubelet"));
        assert!(check(&entries).is_err());
        entries.push(Entry::file(
            format!("{KUBELET_ROOTFS}/opt/kubelet"),
            0o755,
            "",
        ));
        check(&entries).unwrap();
    }
}
