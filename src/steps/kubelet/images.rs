//! The container images of the recipe, made of Debian packages and of programs of the Kubernetes release: a folder of the
//! root for each, and the list by which the node tells containerd of them.

mod contents;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::container_images::{
    ContainerImage as Listed, ContainerImages, IMAGES_COMMAND, IMAGES_UNIT, INDEX, folder,
};
use image::paths::{CONTAINER_IMAGES, NODE_PROGRAM};

use contents::{Content, Wanted, XTABLES, wanted};

use super::{composed, prebuilt};
use crate::code;
use crate::debian::pinned::Deb;
use crate::host::cache::Key;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::host::tree;
use crate::install::{self, Report};
use crate::layer::{Entry, Layer};
use crate::lock::LockedRecipe;
use crate::lock::kubelet::Program;
use crate::oci::{self, RunConfig};
use crate::recipe::SET_ETCD;

/// The file of a step's folder with the image's documents.
const DOCUMENTS: &str = "documents.json";
/// The folder of a step's folder with the image's files.
const FILES: &str = "files";

/// The baked images of a recipe.
pub(super) struct Images {
    /// Their files and the unit.
    pub layer: Layer,
    /// Their references, by their names without registry and tag.
    pub references: BTreeMap<String, String>,
    /// Those that others built: full name and digest of the manifest.
    pub prebuilt: Vec<(String, String)>,
    /// What became of the packages of those that are composed of them, by the names of their sets.
    pub reports: BTreeMap<String, Report>,
}

/// Makes the container images of the recipe.
///
/// # Errors
/// If a package or a program is missing, or a program does not run in its image.
pub(super) fn bake(
    session: &Session,
    locked: &LockedRecipe,
    components: &BTreeMap<String, Program>,
) -> Result<Images> {
    let mut chosen = locked.recipe.built().to_vec();
    chosen.sort();
    chosen.dedup();
    let debs = match locked.lock.sets.contains_key(SET_ETCD) {
        true => locked.packages(session, SET_ETCD)?,
        false => Vec::new(),
    };
    let mut list = ContainerImages::default();
    let mut entries = vec![
        Entry::directory("/usr/lib/slipway", 0o755),
        Entry::directory(CONTAINER_IMAGES, 0o755),
    ];
    let mut references = BTreeMap::new();
    let mut keys = Key::of("images layer", code::CONTAINERS);
    let chosen = chosen
        .into_iter()
        .map(|image| wanted(image, &debs, components));
    let chosen: Vec<Wanted<'_>> = chosen.collect::<Result<_>>()?;
    names::check(&locked.recipe, &locked.lock.images, &chosen)?;
    for wanted in chosen {
        let name = wanted.image.name();
        let step = session.progress.step(&format!("image {name}"));
        let (key, made, hit) = make(session, locked, &wanted)
            .with_context(|| format!("making the container image {}", wanted.names[0]))?;
        step.done(hit, None);
        keys = keys
            .key("image", &key)
            .text("names", &wanted.names.join(" "));
        let documents: oci::Unpacked = serde_json::from_slice(&fs::read(made.join(DOCUMENTS))?)?;
        let folder = folder(&documents.chain_id);
        entries.extend(files(&wanted.content, &wanted.entrypoint, &made, &folder)?);
        references.insert(name.to_owned(), wanted.names[0].clone());
        list.images.push(Listed {
            names: wanted.names,
            manifest: documents.manifest,
            config: documents.config,
            chain_id: documents.chain_id,
            folder,
        });
    }
    let architecture = locked.recipe.image.architecture.debian();
    let mut digests = Vec::new();
    for (component, mut made) in prebuilt::make_all(session, locked, architecture)? {
        if let Some(name) = component {
            references.insert(name.to_owned(), made.listed.names[0].clone());
            made.listed.names.extend(names::baked(name));
        }
        keys = keys
            .key("prebuilt", &made.key)
            .text("names", &made.listed.names.join(" "));
        entries.extend(made.entries);
        digests.push((made.listed.names[0].clone(), made.digest));
        list.images.push(made.listed);
    }
    let mut reports = BTreeMap::new();
    for wanted in &locked.recipe.composed {
        let made = composed::make(session, locked, wanted)
            .with_context(|| format!("making the container image {}", wanted.name))?;
        keys = keys.key("composed", &made.key);
        entries.extend(made.entries);
        list.images.push(made.listed);
        reports.insert(wanted.set(), made.report);
    }
    let layer = match list.images.is_empty() {
        true => Layer::new(&session.cache, Vec::new())?,
        false => layer(entries, list, keys.finish())?,
    };
    Ok(Images {
        layer,
        references,
        prebuilt: digests,
        reports,
    })
}

/// The images' files with their list, and the unit that tells containerd of them.
fn layer(mut entries: Vec<Entry>, mut list: ContainerImages, key: Key) -> Result<Layer> {
    key.as_str().clone_into(&mut list.key);
    let unit = unit();
    entries.push(Entry::file(INDEX, 0o644, serde_json::to_vec(&list)?));
    let path = format!("/usr/lib/systemd/system/{IMAGES_UNIT}");
    entries.push(Entry::file(path, 0o644, unit.as_str()));
    let key = Key::of("images", code::CONTAINERS)
        .key("images", &key)
        .text("unit", &unit);
    Layer::with_key(entries, key.finish())
}

/// The step that makes one image: its key, its folder, and whether that came from the cache.
fn make(
    session: &Session,
    locked: &LockedRecipe,
    wanted: &Wanted<'_>,
) -> Result<(Key, PathBuf, bool)> {
    let created = locked.lock.epoch;
    let architecture = locked.recipe.image.architecture.debian();
    let mut key = Key::of("container image", code::CONTAINERS)
        .text("image", wanted.image.name())
        .text("architecture", architecture)
        .bytes("created", &created.to_le_bytes());
    for deb in &wanted.content.debs {
        key = key.text(&deb.package.name, &deb.package.sha256);
    }
    if let Some(program) = wanted.content.program {
        key = key.text("program", &program.sha256);
    }
    if !wanted.user.is_empty() {
        key = key.text("user", wanted.user);
    }
    let key = key.finish();
    let made = session.cache.step("image", &key, |out| {
        let scratch = session.cache.scratch()?;
        let files = out.join(FILES);
        let Content { debs, keep, .. } = &wanted.content;
        if !debs.is_empty() {
            session.do_deferred()?;
            unpack(debs, *keep, scratch.path(), &files)?;
        }
        let entries = files_in(&wanted.content, &wanted.entrypoint, out)?;
        let layer = oci::layer(&entries, created, &scratch.path().join("layer.tar"))?;
        prove(wanted, &layer, &scratch.path().join("proof"))?;
        let image = oci::Image {
            name: wanted.names[0].clone(),
            architecture: architecture.to_owned(),
            run: RunConfig {
                user: wanted.user.to_owned(),
                entrypoint: wanted.entrypoint.clone(),
                env: vec!["PATH=/usr/sbin:/usr/bin".to_owned()],
                ..RunConfig::default()
            },
            layers: vec![layer],
        };
        let documents = oci::unpacked(&image, created)?;
        Ok(fs::write(
            out.join(DOCUMENTS),
            serde_json::to_vec(&documents)?,
        )?)
    })?;
    Ok((key, made.path, made.hit))
}

/// Unpacks packages and copies the paths that are kept into `files`.
fn unpack(debs: &[Deb], keep: fn(&str) -> bool, scratch: &Path, files: &Path) -> Result<()> {
    let tree = scratch.join("packages");
    install::unpack_only(debs, &tree)?;
    let layer = oci::layer(&kept(&tree, keep)?, 0, &scratch.join("kept.tar"))?;
    Ok(tar::Archive::new(fs::File::open(&layer.path)?).unpack(files)?)
}

/// The image's files as entries below `/`, of the step's folder `made`.
fn files_in(content: &Content<'_>, entrypoint: &[String], made: &Path) -> Result<Vec<Entry>> {
    let mut entries = match content.debs.is_empty() {
        true => Vec::new(),
        false => kept(&made.join(FILES), |_| true)?,
    };
    let names = content.names.iter();
    entries.extend(names.map(|name| Entry::symlink(*name, XTABLES)));
    if let Some(program) = content.program {
        let path = entrypoint.first().context("an image's program")?;
        let there: BTreeSet<_> = entries.iter().map(|entry| entry.path.clone()).collect();
        let parents = parents(path).into_iter();
        entries.extend(parents.filter(|parent| !there.contains(&parent.path)));
        entries.push(Entry::copy(path, 0o755, &program.path));
    }
    Ok(entries)
}

/// The same below the image's folder of the root.
fn files(
    content: &Content<'_>,
    entrypoint: &[String],
    made: &Path,
    folder: &str,
) -> Result<Vec<Entry>> {
    let mut entries = vec![Entry::directory(folder, 0o755)];
    for mut entry in files_in(content, entrypoint, made)? {
        entry.path.insert_str(0, folder);
        entries.push(entry);
    }
    Ok(entries)
}

/// Runs the image's program from the image's layer: a missing library fails the build, not the node.
fn prove(wanted: &Wanted<'_>, layer: &oci::Blob, tree: &Path) -> Result<()> {
    tar::Archive::new(fs::File::open(&layer.path)?).unpack(tree)?;
    for proof in &wanted.proofs {
        let (program, arguments) = proof.split_first().context("an image's proof")?;
        Sandbox::new(tree)
            .command(program)
            .args(arguments)
            .run()
            .with_context(|| format!("running {program} in its own image"))?;
    }
    Ok(())
}

/// The files and links that `keep` selects, with their parent folders, sorted by path. Top-level links belong to a
/// merged `/usr`.
fn kept(tree: &Path, keep: fn(&str) -> bool) -> Result<Vec<Entry>> {
    let mut entries = BTreeMap::new();
    for item in tree::walk(tree)? {
        let path = item.inside;
        let link = item.meta.is_symlink();
        let top = path.rfind('/') == Some(0);
        if item.meta.is_dir() || !(keep(&path) || (link && top)) {
            continue;
        }
        entries.extend(
            parents(&path)
                .into_iter()
                .map(|entry| (entry.path.clone(), entry)),
        );
        let entry = if link {
            let target = fs::read_link(&item.path)?;
            Entry::symlink(&path, target.to_string_lossy())
        } else {
            let mode = item.meta.permissions().mode() & 0o7777;
            Entry::copy(&path, mode, item.path)
        };
        entries.insert(path, entry);
    }
    Ok(entries.into_values().collect())
}

/// The folders above a path, the topmost first.
fn parents(path: &str) -> Vec<Entry> {
    let ends = path.match_indices('/').skip(1);
    ends.map(|(at, _)| Entry::directory(&path[..at], 0o755))
        .collect()
}

/// The unit.
fn unit() -> String {
    include_str!("slipway-images.service")
        .replace("@PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", IMAGES_COMMAND)
}

#[cfg(test)]
mod tests {
    use image::kubelet::ETCD_IMAGE;

    use super::contents::is_pause;
    use super::*;
    use crate::recipe::ContainerImage;

    #[test]
    fn only_what_is_kept_is_in_an_image() {
        let folder = tempfile::tempdir().unwrap();
        for (path, mode) in [
            ("usr/bin/catatonit", 0o755),
            ("usr/share/doc/catatonit/x", 0o644),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", folder.path().join("bin")).unwrap();
        let entries = kept(folder.path(), is_pause).unwrap();
        let paths: Vec<_> = entries.iter().map(|e| (e.path.as_str(), e.mode)).collect();
        assert_eq!(
            paths,
            [
                ("/bin", 0o777),
                ("/usr", 0o755),
                ("/usr/bin", 0o755),
                ("/usr/bin/catatonit", 0o755)
            ]
        );
    }

    #[test]
    fn coredns_is_where_upstream_has_it_under_its_own_version_and_not_root() {
        let program = |version: &str| Program {
            version: version.to_owned(),
            sha256: "0".to_owned(),
            path: "/components".into(),
        };
        let components = BTreeMap::from([
            ("coredns".to_owned(), program("v1.14.2")),
            ("kube-scheduler".to_owned(), program("v1.36.3")),
        ]);
        let made = wanted(ContainerImage::Coredns, &[], &components).unwrap();
        assert_eq!(made.names, ["slipway.local/coredns:v1.14.2"]);
        assert_eq!(
            (made.entrypoint, made.user),
            (vec!["/coredns".to_owned()], "65532:65532")
        );
        let metrics = BTreeMap::from([("metrics-server".to_owned(), program("v0.9.0"))]);
        let other = wanted(ContainerImage::MetricsServer, &[], &metrics).unwrap();
        assert_eq!(other.names, ["slipway.local/metrics-server:v0.9.0"]);
        assert_eq!(
            (other.entrypoint, other.user),
            (vec!["/metrics-server".to_owned()], "65532:65532")
        );
        let files = files_in(&made.content, &["/coredns".to_owned()], Path::new("/")).unwrap();
        let paths: Vec<_> = files.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["/coredns"]);
        let made = wanted(ContainerImage::KubeScheduler, &[], &components).unwrap();
        assert_eq!(
            (made.names[0].as_str(), made.user),
            ("slipway.local/kube-scheduler:v1.36.3", "")
        );
        // By this tag the flags of its static pod are chosen.
        let etcd = BTreeMap::from([("etcd".to_owned(), program("v3.6.8"))]);
        let made = wanted(ContainerImage::Etcd, &[], &etcd).unwrap();
        assert_eq!(made.names, ["slipway.local/etcd:3.6.8-0", ETCD_IMAGE]);
        assert_eq!(made.entrypoint, ["/usr/bin/etcd"]);
        let error = wanted(ContainerImage::Coredns, &[], &BTreeMap::new())
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "the lock has no program coredns");
    }

    #[test]
    fn the_unit_is_whole_and_runs_at_each_boot() {
        let unit = unit();
        // `@system-service` is systemd's own word.
        assert_eq!(unit.matches('@').count(), 1, "{unit}");
        assert!(!unit.contains("Condition"), "{unit}");
    }
}
