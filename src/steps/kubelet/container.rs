//! The kubelet's container: packages, program, and every mount target of the table in [`image::kubelet`], as a plain
//! folder of the root and as an OCI image that other tools can read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use image::iscsi;
use image::kubelet::{LINKS, MOUNTS, PROGRAM, Source as MountSource};
use image::paths::{KUBELET_ROOTFS, VAR_LINKS};

use crate::code;
use crate::host::cache::{self, Key};
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::layer::{Entry, Kind, Layer};
use crate::lock::kubelet::Program;
use crate::oci::{self, RunConfig};

/// The wrapper in the place of iscsiadm.
const ISCSIADM: &str = include_str!("iscsiadm");

/// What is in the container beside its mount targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content<'a> {
    /// The packages.
    pub(super) rootfs: &'a Rootfs,
    /// The kubelet.
    pub(super) program: &'a Program,
    /// Whether the host has an iSCSI daemon.
    pub(super) has_iscsi: bool,
}

/// The container's files as a folder of the root.
pub(super) fn layer(content: Content<'_>) -> Result<Layer> {
    let below = |path: &str| match path {
        "/" => KUBELET_ROOTFS.to_owned(),
        path => format!("{KUBELET_ROOTFS}{path}"),
    };
    let mut entries = Vec::new();
    for (at, _) in KUBELET_ROOTFS.match_indices('/').skip(1) {
        entries.push(Entry::directory(&KUBELET_ROOTFS[..at], 0o755));
    }
    for mut entry in content.files() {
        entry.path = below(&entry.path);
        if let Kind::HardLink(target) = &mut entry.kind {
            *target = below(target);
        }
        entries.push(entry);
    }
    Layer::with_key(entries, content.key())
}

/// The container as an OCI layout with one layer: its folder, and whether it came from the cache. `created` is in
/// seconds since 1970.
pub(super) fn image(
    session: &Session,
    content: Content<'_>,
    architecture: &str,
    created: u64,
) -> Result<PathBuf> {
    let step = session.progress.step("kubelet container");
    let key = Key::of("kubelet image", code::CONTAINERS)
        .key("files", &content.key())
        .text("architecture", architecture)
        .bytes("created", &created.to_le_bytes())
        .finish();
    let made = session.cache.step("kubelet-image", &key, |folder| {
        let files = content.files();
        let program = content.program;
        let image = oci::Image {
            name: format!("slipway.local/kubelet:{}", program.version),
            architecture: architecture.to_owned(),
            run: RunConfig {
                entrypoint: vec![PROGRAM.to_owned()],
                labels: [(
                    "org.opencontainers.image.version".to_owned(),
                    program.version.clone(),
                )]
                .into(),
                ..RunConfig::default()
            },
            layers: vec![oci::layer(&files, created, &folder.join("layer.tar"))?],
        };
        oci::write_layout(&folder.join("layout"), &[image], created)?;
        // The layout contains the layer under another name.
        cache::remove(&folder.join("layer.tar"))
    })?;
    step.done(made.hit, None);
    Ok(made.path.join("layout"))
}

impl Content<'_> {
    fn key(&self) -> Key {
        let key = Key::of("kubelet container", code::CONTAINERS)
            .key("rootfs", &self.rootfs.key)
            .text("program", &self.program.sha256)
            .text("mounts", &format!("{MOUNTS:?}{LINKS:?}{VAR_LINKS:?}"));
        match self.has_iscsi {
            true => key.text("iscsiadm", ISCSIADM).finish(),
            false => key.finish(),
        }
    }

    fn files(&self) -> Vec<Entry> {
        files(self.rootfs.entries(), self.program, self.has_iscsi)
    }
}

/// All entries of the container, sorted by path.
fn files(packages: &[Entry], program: &Program, has_iscsi: bool) -> Vec<Entry> {
    let links: Vec<Entry> = LINKS
        .iter()
        .chain(VAR_LINKS)
        .map(|(link, target)| Entry::symlink(*link, *target))
        .collect();
    let mut entries: BTreeMap<String, Entry> = packages
        .iter()
        .filter(|entry| {
            !links
                .iter()
                .any(|link| is_at_or_below(&entry.path, &link.path))
        })
        // The container's processes are root already: a file that gives other rights only serves an attacker.
        .map(|entry| (entry.path.clone(), entry.clone().without_set_id()))
        .collect();
    let targets = MOUNTS.iter().map(|mount| match mount.source {
        MountSource::File(_) => Entry::file(mount.target, 0o644, ""),
        MountSource::Folder(_) | MountSource::New(..) => Entry::directory(mount.target, 0o755),
    });
    let iscsiadm = has_iscsi.then(|| Entry::file(iscsi::PROGRAM, 0o755, ISCSIADM));
    let programs = [Entry::copy(PROGRAM, 0o755, &program.path)];
    let programs: Vec<Entry> = programs.into_iter().chain(iscsiadm).collect();
    for program in &programs {
        entries.remove(&program.path);
    }
    for entry in targets.chain(links).chain(programs) {
        for (at, _) in entry.path.match_indices('/').skip(1) {
            let parent = &entry.path[..at];
            if !entries.contains_key(parent) {
                entries.insert(parent.to_owned(), Entry::directory(parent, 0o755));
            }
        }
        // A package's entry at a mount's target is kept, so that the image also works without the mounts.
        entries.entry(entry.path.clone()).or_insert(entry);
    }
    entries.into_values().collect()
}

fn is_at_or_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(packages: &[Entry]) -> BTreeMap<String, Kind> {
        let program = Program {
            version: "v1.36.3".to_owned(),
            sha256: "0".to_owned(),
            path: "/k".into(),
        };
        files(packages, &program, false)
            .into_iter()
            .map(|entry| (entry.path, entry.kind))
            .collect()
    }

    #[test]
    fn every_mount_finds_its_target() {
        let files = found(&[Entry::directory("/", 0o755)]);
        for mount in MOUNTS {
            let is_file = matches!(mount.source, MountSource::File(_));
            match &files[mount.target] {
                Kind::File(_) => assert!(is_file, "{}", mount.target),
                Kind::Directory => assert!(!is_file, "{}", mount.target),
                other => panic!("{}: {other:?}", mount.target),
            }
            for (at, _) in mount.target.match_indices('/').skip(1) {
                assert_eq!(files[&mount.target[..at]], Kind::Directory);
            }
        }
    }

    #[test]
    fn no_file_gives_the_rights_of_another_user() {
        let program = Program {
            version: "v1.36.3".to_owned(),
            sha256: "0".to_owned(),
            path: "/k".into(),
        };
        let packages = [
            Entry::directory("/", 0o755),
            Entry::directory("/shared", 0o2775),
            Entry::file("/usr/bin/su", 0o4755, ""),
            Entry::file("/usr/bin/wall", 0o2755, ""),
        ];
        for entry in files(&packages, &program, false) {
            let expected = match entry.path.as_str() {
                "/shared" => 0o2775,
                "/usr/bin/su" | "/usr/bin/wall" => 0o755,
                _ => continue,
            };
            assert_eq!(entry.mode, expected, "{}", entry.path);
        }
    }

    #[test]
    fn links_take_the_place_of_what_packages_have_there() {
        let files = found(&[
            Entry::directory("/", 0o755),
            Entry::directory("/opt", 0o755),
            Entry::file("/opt/x", 0o644, ""),
            Entry::file("/opt-x", 0o644, ""),
            Entry::file("/etc/hosts", 0o644, "127.0.0.1 localhost"),
            Entry::file("/etc/nfs.conf", 0o644, "[nfsd]"),
        ]);
        assert_eq!(files["/opt"], Kind::Symlink("var/opt".to_owned()));
        assert!(!files.contains_key("/opt/x"));
        assert!(files.contains_key("/opt-x"));
        assert_eq!(
            files["/etc/hosts"],
            Kind::Symlink("../host/etc/hosts".to_owned())
        );
        let kept = Entry::file("/etc/nfs.conf", 0o644, "[nfsd]").kind;
        assert_eq!(files["/etc/nfs.conf"], kept);
    }

    #[test]
    fn iscsiadm_is_the_hosts_where_the_host_has_a_daemon() {
        let program = Program {
            version: "v1.36.3".to_owned(),
            sha256: "0".to_owned(),
            path: "/k".into(),
        };
        let packages = [
            Entry::directory("/", 0o755),
            Entry::file(iscsi::PROGRAM, 0o755, "another client"),
        ];
        let wrapper = |has_iscsi| {
            let files = files(&packages, &program, has_iscsi);
            let mut found = files
                .into_iter()
                .filter(|entry| entry.path == iscsi::PROGRAM);
            (found.next().unwrap(), found.next())
        };
        let expected = Entry::file(iscsi::PROGRAM, 0o755, ISCSIADM);
        assert_eq!(wrapper(true), (expected, None));
        assert_eq!(wrapper(false).0, packages[1]);
        let last = ISCSIADM.lines().last().unwrap();
        for word in ["/proc/1/ns/mnt", "/proc/1/ns/net", "iscsiadm \"$@\""] {
            assert!(last.contains(word), "{last}");
        }
        assert!(ISCSIADM.starts_with("#!/bin/sh\n"));
    }
}
