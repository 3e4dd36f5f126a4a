//! The container images of the recipe, made of Debian packages, with the unit that imports them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use image::kubelet::{ETCD_IMAGE, PAUSE_IMAGE, UNIT};
use image::paths::CONTAINER_IMAGES;

use crate::debian::pinned::Deb;
use crate::host::cache::Key;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::host::tree;
use crate::install;
use crate::layer::{Entry, Layer};
use crate::oci::{self, RunConfig};
use crate::recipe::{ContainerImage, Recipe};

/// The unit that imports the images.
const IMPORT_UNIT: &str = "/usr/lib/systemd/system/slipway-images.service";
/// The kubelet's namespace in containerd.
const NAMESPACE: &str = "k8s.io";

/// A container image: its name, its packages, the kept paths of these, its entry point, and the command that checks at
/// build time that its program starts.
struct Baked {
    name: &'static str,
    packages: &'static [&'static str],
    keep: fn(&str) -> bool,
    entrypoint: &'static [&'static str],
    proof: &'static [&'static str],
}

const PAUSE: Baked = Baked {
    name: PAUSE_IMAGE,
    packages: &["catatonit"],
    keep: |path| path == "/usr/bin/catatonit",
    entrypoint: &["/usr/bin/catatonit", "-P"],
    proof: &["/usr/bin/catatonit", "--version"],
};
const ETCD_SERVER: Baked = Baked {
    name: ETCD_IMAGE,
    packages: &["etcd-server", "libc6"],
    // Of the C library, only the files for a program without locales and converters.
    keep: |path| {
        path == "/usr/bin/etcd"
            || path == "/usr/lib64"
            || path.starts_with("/usr/lib64/")
            || (path.starts_with("/usr/lib/") && path.contains(".so") && !path.contains("/gconv/"))
    },
    entrypoint: &["/usr/bin/etcd"],
    proof: &["/usr/bin/etcd", "--version"],
};

const fn baked(image: ContainerImage) -> &'static Baked {
    match image {
        ContainerImage::Pause => &PAUSE,
        ContainerImage::Etcd => &ETCD_SERVER,
    }
}

/// The container images of the recipe, as one OCI archive, with the unit that imports it on the first boot. `debs` are
/// the packages of [`crate::recipe::SET_ETCD`]; `created` is in seconds since 1970.
///
/// # Errors
/// If a package is missing, or a program of an image does not run in it.
pub(super) fn layer(
    session: &Session,
    recipe: &Recipe,
    debs: &[Deb],
    created: u64,
) -> Result<Layer> {
    let mut wanted = recipe.containers.clone();
    wanted.sort();
    wanted.dedup();
    if wanted.is_empty() {
        return Layer::new(&session.cache, Vec::new());
    }
    let step = session.progress.step("kubelet images");
    let architecture = recipe.image.architecture.debian();
    let mut key = Key::of("container images", 1)
        .text("images", &format!("{wanted:?}"))
        .text("architecture", architecture)
        .bytes("created", &created.to_le_bytes());
    for deb in debs {
        key = key.text(&deb.package.name, &deb.package.sha256);
    }
    let key = key.finish();
    let made = session.cache.step("images", &key, |folder| {
        let scratch = session.cache.scratch()?;
        let mut images = Vec::new();
        for image in &wanted {
            let baked = baked(*image);
            images.push(
                make(baked, debs, architecture, created, scratch.path())
                    .with_context(|| format!("making the container image {}", baked.name))?,
            );
        }
        oci::write_archive(&folder.join("images.tar"), &images, created)
    })?;
    let archive = made.path.join("images.tar");
    let size = Some(fs::metadata(&archive)?.len());
    step.done(made.hit, size);
    let name = format!("{CONTAINER_IMAGES}/{}.tar", &key.as_str()[..16]);
    let unit = import_unit(&wanted, &name, &key);
    let entries = vec![
        Entry::directory("/usr/lib/slipway", 0o755),
        Entry::directory(CONTAINER_IMAGES, 0o755),
        Entry::copy(&name, 0o644, &archive),
        Entry::file(IMPORT_UNIT, 0o644, unit.as_str()),
    ];
    let key = Key::of("images layer", 1).key("images", &key);
    Layer::with_key(entries, key.text("unit", &unit).finish())
}

fn make(
    baked: &Baked,
    debs: &[Deb],
    architecture: &str,
    created: u64,
    scratch: &Path,
) -> Result<oci::Image> {
    let mut chosen = Vec::new();
    for package in baked.packages {
        let deb = debs
            .iter()
            .find(|deb| deb.package.name == *package)
            .with_context(|| format!("the lock's set has no package {package}"))?;
        chosen.push(deb.clone());
    }
    let short = baked.packages[0];
    let tree = scratch.join(short);
    install::unpack_only(&chosen, &tree)?;
    let entries = kept(&tree, baked.keep)?;
    let layer = oci::layer(&entries, created, &scratch.join(format!("{short}.tar")))?;
    prove(baked, &layer, &scratch.join(format!("{short}.proof")))?;
    Ok(oci::Image {
        name: baked.name.to_owned(),
        architecture: architecture.to_owned(),
        run: RunConfig {
            entrypoint: baked
                .entrypoint
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
            env: vec!["PATH=/usr/sbin:/usr/bin".to_owned()],
            ..RunConfig::default()
        },
        layers: vec![layer],
    })
}

/// Runs the image's program from the image's layer: a missing library fails the build, not the node.
fn prove(baked: &Baked, layer: &oci::Blob, tree: &Path) -> Result<()> {
    tar::Archive::new(fs::File::open(&layer.path)?).unpack(tree)?;
    let (program, arguments) = baked.proof.split_first().context("an image's proof")?;
    Sandbox::new(tree)
        .command(program)
        .args(arguments)
        .run()
        .context("running it in its own image")?;
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
        for (at, _) in path.match_indices('/').skip(1) {
            let folder = &path[..at];
            entries.insert(folder.to_owned(), Entry::directory(folder, 0o755));
        }
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

/// The unit. Its mark is stored with containerd's data, so that both are lost together; the data is synced to the disk
/// before the mark is created.
fn import_unit(images: &[ContainerImage], archive: &str, key: &Key) -> String {
    let mark = format!("/var/lib/containerd/slipway-images-{}", &key.as_str()[..16]);
    let pins: Vec<String> = images
        .iter()
        .map(|image| {
            // Without the label the kubelet removes them when the disk is nearly full.
            format!(
                "ExecStart=/usr/bin/ctr --namespace {NAMESPACE} images label {} io.cri-containerd.pinned=pinned",
                baked(*image).name
            )
        })
        .collect();
    include_str!("slipway-images.service")
        .replace("@UNIT@", UNIT)
        .replace("@MARK@", &mark)
        .replace("@NAMESPACE@", NAMESPACE)
        .replace("@ARCHIVE@", archive)
        .replace("@PINS@", &pins.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let entries = kept(folder.path(), PAUSE.keep).unwrap();
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
    fn the_mark_is_made_after_the_data_is_on_the_disk() {
        let key = Key::of("test", 1).finish();
        let images = [ContainerImage::Pause, ContainerImage::Etcd];
        let unit = import_unit(&images, "/a.tar", &key);
        let at = |text: &str| {
            unit.find(text)
                .unwrap_or_else(|| panic!("{text} in {unit}"))
        };
        assert!(at("images import /a.tar") < at("label slipway.local/etcd:baked"));
        assert!(at("label slipway.local/pause:baked") < at("/usr/bin/sync"));
        assert!(at("/usr/bin/sync") < at("/usr/bin/touch"));
        // `@system-service` is systemd's own word.
        assert_eq!(unit.matches('@').count(), 1, "{unit}");
        assert!(unit.contains(&format!(
            "!/var/lib/containerd/slipway-images-{}",
            &key.as_str()[..16]
        )));
    }
}
