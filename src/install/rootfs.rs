//! Rootfs: turns pinned packages into a configured, cleaned, reproducible tree.
//!
//! The packages are unpacked in waves, each in parallel, and each maintainer script runs once. The result is one tar
//! stream with an index.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::options::{Options, Purpose};
use super::reach::tidy;
use super::report::Report;
use super::surroundings::{FIRST, Machine};
use super::{clean, first_boot, generated, layout, pack, unpack, waves};
use crate::code;
use crate::debian::pinned::{Deb, LockedPackage};
use crate::host::cache::Key;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::layer::{Entry, Kind, Layer, Source};

/// The tar stream in a step's folder.
const TAR: &str = "rootfs.tar";
/// Its index.
const INDEX: &str = "rootfs.json";
/// What became of the packages.
const REPORT: &str = "report.json";

/// A finished tree.
#[derive(Clone, Debug)]
pub struct Rootfs {
    /// The tree as its packages' scripts left it, as a tar stream without zero blocks at its end; the numbers of accounts that
    /// [`Self::entries`] has may be others.
    pub tar: PathBuf,
    /// Hash of all its inputs.
    pub key: Key,
    /// The packages in it, sorted by name.
    pub packages: Vec<LockedPackage>,
    /// What is left out of it, and what scripts have made.
    pub report: Report,
    entries: Vec<Entry>,
}

/// Installs the packages; `name` is the name of the step.
///
/// # Errors
/// If a package cannot be read or a maintainer script fails; the error names it.
pub fn install(session: &Session, name: &str, debs: &[Deb], options: &Options) -> Result<Rootfs> {
    let mut debs = debs.to_vec();
    debs.sort_by(|a, b| {
        a.package
            .name
            .cmp(&b.package.name)
            .then_with(|| a.package.architecture.cmp(&b.package.architecture))
    });
    let key = key(&debs, options);
    let step = session.progress.step(name);
    let made = session.cache.step("rootfs", &key, |folder| {
        session.do_deferred()?;
        make(folder, &debs, options, &FIRST, &step)
    })?;
    let rootfs = Rootfs::open(
        &made.path,
        key,
        debs.into_iter().map(|deb| deb.package).collect(),
    )?;
    let bytes = Some(fs::metadata(&rootfs.tar)?.len());
    step.done(made.hit, bytes);
    Ok(rootfs)
}

/// Installs the packages into a folder, as the files that [`Rootfs::open`] reads.
pub(super) fn make(
    folder: &Path,
    debs: &[Deb],
    options: &Options,
    machine: &Machine,
    step: &Step,
) -> Result<()> {
    step.total(debs.iter().map(|deb| deb.package.size).sum());
    let root = folder.join("tree");
    // Every file of a package has the time that its archive says.
    let began = generated::now(folder)?;
    let packages = waves::install(debs, &root, options, machine, step)?;
    step.note("cleaning and packing");
    let mut first_boot = first_boot::cleaned(&root, options.purpose)?;
    let dropped = clean::clean(&root, &packages, options)?;
    first_boot.extend(first_boot::take(&root, options.purpose)?);
    let report = Report {
        dropped,
        first_boot,
        suspects: generated::suspects(&root, &packages, began)?,
        host_name: Vec::new(),
    };
    if options.purpose == Purpose::Node {
        layout::apply(&root)?;
    }
    let entries = pack::pack(&root, &folder.join(TAR), options.epoch)?;
    fs::write(folder.join(INDEX), serde_json::to_vec(&entries)?)?;
    fs::write(folder.join(REPORT), serde_json::to_vec(&report)?)?;
    crate::host::cache::remove(&root)
}

fn key(debs: &[Deb], options: &Options) -> Key {
    let mut key = Key::of("rootfs", code::ROOTFS)
        .text("options", &format!("{options:?}"))
        .text("first boot", &first_boot::text())
        .bytes("count", &debs.len().to_le_bytes());
    for deb in debs {
        key = key.text(&deb.package.name, &deb.package.sha256);
    }
    key.finish()
}

/// Unpacks the packages into `dest`, with a merged `/usr` and without running any script: for tool trees and simple
/// container images.
///
/// # Errors
/// If a package cannot be read or the tree cannot be written.
pub fn unpack_only(debs: &[Deb], dest: &Path) -> Result<()> {
    let options = Options::default();
    unpack::unpack(debs, dest, &|path| clean::is_kept(&options, path))
}

impl Rootfs {
    pub(super) fn open(folder: &Path, key: Key, packages: Vec<LockedPackage>) -> Result<Self> {
        let tar = folder.join(TAR);
        let index = folder.join(INDEX);
        let about = || format!("reading {}", index.display());
        let mut entries: Vec<Entry> =
            serde_json::from_slice(&fs::read(&index).with_context(about)?).with_context(about)?;
        for entry in &mut entries {
            if let Kind::File(Source::Range { file, .. }) = &mut entry.kind {
                file.clone_from(&tar);
            }
        }
        let file = folder.join(REPORT);
        let about = || format!("reading {}", file.display());
        let report =
            serde_json::from_slice(&fs::read(&file).with_context(about)?).with_context(about)?;
        Ok(Self {
            tar,
            key,
            packages,
            report,
            entries,
        })
    }

    /// The same without some of its files, by their paths.
    #[must_use]
    pub fn without(mut self, paths: &[String]) -> Self {
        if !paths.is_empty() {
            self.entries.retain(|entry| !paths.contains(&entry.path));
            let mut key = Key::of("rootfs without", code::ROOTFS).key("rootfs", &self.key);
            for path in paths {
                key = key.text("path", path);
            }
            self.key = key.finish();
        }
        self
    }

    /// The same with each entry changed in place; `key` is the hash of the inputs of that.
    pub(super) fn changed(mut self, key: Key, change: impl FnMut(&mut Entry)) -> Self {
        self.entries.iter_mut().for_each(change);
        self.key = key;
        self
    }

    /// All entries of the tree, sorted as in the stream: each folder before its content.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tree as a layer below a folder of another root.
    ///
    /// # Errors
    /// If the prefix is not an absolute path.
    pub fn layer(&self, prefix: &str) -> Result<Layer> {
        let prefix = prefix.trim_end_matches('/');
        let below = |path: &str| {
            if path == "/" {
                prefix.to_owned()
            } else {
                format!("{prefix}{path}")
            }
        };
        let entries = self.entries.iter().cloned().map(|mut entry| {
            entry.path = below(&entry.path);
            if let Kind::HardLink(target) = &mut entry.kind {
                *target = below(target);
            }
            entry
        });
        let key = Key::of("rootfs layer", code::ROOTFS)
            .key("rootfs", &self.key)
            .text("prefix", prefix);
        Layer::with_key(entries.collect(), key.finish())
    }

    /// The content of a file of the tree; links are followed inside the tree.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let Some(entry) = self.find(path, 0) else {
            bail!("the root file system has no file {path}");
        };
        match &entry.kind {
            Kind::File(source) => source.read(),
            Kind::HardLink(target) => self.read(&target.clone()),
            _ => bail!("{path} of the root file system is not a file"),
        }
    }

    /// The entry at a path, after following links.
    fn find(&self, path: &str, depth: u32) -> Option<&Entry> {
        if depth > 40 {
            return None;
        }
        let mut at = String::new();
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        let mut found = None;
        while let Some(part) = parts.next() {
            let next = format!("{at}/{part}");
            let entry = self.entries.iter().find(|entry| entry.path == next)?;
            if let Kind::Symlink(target) = &entry.kind {
                let base = if target.starts_with('/') { "" } else { &at };
                let rest: Vec<&str> = parts.collect();
                return self.find(
                    &tidy(&format!("{base}/{target}/{}", rest.join("/"))),
                    depth + 1,
                );
            }
            at = next;
            found = Some(entry);
        }
        found
    }
}
