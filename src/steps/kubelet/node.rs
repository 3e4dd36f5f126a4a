//! What the kubelet needs of the node around it: containerd's and its own configuration, the baked images with the unit
//! that imports them, etcd's static pod, and `slipway-init`, whose commands the units run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use image::kubelet::{CONFIG, ETCD_IMAGE, FOLDERS, PAUSE_IMAGE, RUNTIME_SOCKET, STATIC_PODS, UNIT};
use image::node::Role;
use image::paths::{CONTAINER_IMAGES, ETCD, NODE_PROGRAM};

use crate::debian::pinned::Deb;
use crate::host::cache::{Cache, Key};
use crate::host::progress::Progress;
use crate::host::sandbox::Sandbox;
use crate::install;
use crate::layer::{Entry, Kind, Layer};
use crate::oci::{self, RunConfig};
use crate::recipe::{ContainerImage, Recipe};

/// The unit that imports the baked images.
const IMPORT_UNIT: &str = "/usr/lib/systemd/system/slipway-images.service";
/// The namespace of containerd that the kubelet works in.
const NAMESPACE: &str = "k8s.io";

/// Configuration and units: everything of the node that depends on the recipe alone, and on the init program.
///
/// # Errors
/// If the key cannot be made of them.
pub fn node_layer(cache: &Cache, recipe: &Recipe, init: &[u8]) -> Result<Layer> {
    let mut entries = vec![
        Entry::directory("/usr/lib/slipway", 0o755),
        Entry::file(NODE_PROGRAM, 0o755, init),
    ];
    if recipe.kubernetes.is_some() {
        let etc = FOLDERS.iter().filter(|(path, _)| path.starts_with("/etc/"));
        entries.extend(etc.map(|(path, mode)| Entry::directory(*path, *mode)));
        entries.extend([
            // kubeadm's controller-manager mounts the folder below by a hostPath that it cannot make here.
            Entry::directory("/usr/libexec/kubernetes", 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins", 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins/volume", 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins/volume/exec", 0o755),
            Entry::directory("/etc/cni", 0o755),
            Entry::directory("/etc/containerd", 0o755),
            Entry::file("/etc/containerd/config.toml", 0o644, containerd()),
            Entry::directory("/usr/lib/systemd/system/containerd.service.d", 0o755),
            Entry::file(
                "/usr/lib/systemd/system/containerd.service.d/50-slipway.conf",
                0o644,
                include_str!("node/containerd.conf"),
            ),
            Entry::file(
                "/usr/lib/systemd/system/podruntime.slice",
                0o644,
                include_str!("node/podruntime.slice"),
            ),
            Entry::directory("/usr/lib/systemd/logind.conf.d", 0o755),
            Entry::file(
                "/usr/lib/systemd/logind.conf.d/50-slipway.conf",
                0o644,
                include_str!("node/logind.conf"),
            ),
            Entry::file(CONFIG, 0o644, kubelet()),
        ]);
        if recipe.containers.contains(&ContainerImage::Etcd)
            && recipe.node.role == Role::ControlPlane
        {
            let pod = format!("{STATIC_PODS}/etcd.yaml");
            entries.push(Entry::file(pod, 0o600, etcd_pod()));
        }
    }
    Layer::new(cache, entries)
}

/// containerd 1.7's configuration: crun as the runtime, systemd's control groups, the baked pause image.
fn containerd() -> String {
    include_str!("node/containerd.toml").replace("@PAUSE@", PAUSE_IMAGE)
}

/// The kubelet's configuration as it is until the config brings another: no API server, nobody may ask it anything.
fn kubelet() -> String {
    include_str!("node/kubelet.yaml")
        .replace("@SOCKET@", RUNTIME_SOCKET)
        .replace("@STATIC_PODS@", STATIC_PODS)
        .replace("@UNIT@", UNIT)
}

/// etcd of one member that only this machine reaches.
fn etcd_pod() -> String {
    include_str!("node/etcd.yaml")
        .replace("@IMAGE@", ETCD_IMAGE)
        .replace("@DATA@", ETCD)
}

/// A baked image: what it is called, which of the set's packages and which of their paths it is made of, how it starts,
/// and how it proves at build time that it does.
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
    // Of the C library only what a program without locales and converters loads.
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

/// The images that the recipe bakes in, as one OCI archive, with the unit that imports it on the first boot. `debs` are
/// the packages of [`crate::recipe::SET_ETCD`]; `created` is in seconds since 1970.
///
/// # Errors
/// If a package is missing, or a program of an image does not run in it.
pub fn containers_layer(
    cache: &Cache,
    recipe: &Recipe,
    debs: &[Deb],
    created: u64,
    progress: &Progress,
) -> Result<Layer> {
    let mut wanted = recipe.containers.clone();
    wanted.sort();
    wanted.dedup();
    if wanted.is_empty() {
        return Layer::new(cache, Vec::new());
    }
    let step = progress.step("container images");
    let architecture = recipe.image.architecture.debian();
    let mut key = Key::of("container images", 1)
        .text("images", &format!("{wanted:?}"))
        .text("architecture", architecture)
        .bytes("created", &created.to_le_bytes());
    for deb in debs {
        key = key.text(&deb.package.name, &deb.package.sha256);
    }
    let key = key.finish();
    let made = cache.step("images", &key, |folder| {
        let scratch = cache.scratch()?;
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
    if made.hit {
        step.hit(size)
    } else {
        step.made(size)
    }
    let name = format!("{CONTAINER_IMAGES}/{}.tar", &key.as_str()[..16]);
    let entries = vec![
        Entry::directory("/usr/lib/slipway", 0o755),
        Entry::directory(CONTAINER_IMAGES, 0o755),
        Entry::copy(&name, 0o644, &archive),
        Entry::file(IMPORT_UNIT, 0o644, import_unit(&wanted, &name, &key)),
    ];
    Layer::with_key(
        entries,
        Key::of("images layer", 1).key("images", &key).finish(),
    )
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
    let mut entries = Vec::new();
    walk(&tree, "", baked.keep, &mut entries)?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
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

/// Runs the image's program from the image's own layer: a missing library shows here and not on the node.
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

/// The files and links that `keep` names, with the folders above them. Top-level links belong to a merged `/usr`.
fn walk(
    tree: &Path,
    below: &str,
    keep: fn(&str) -> bool,
    entries: &mut Vec<Entry>,
) -> Result<bool> {
    let mut any = false;
    for entry in fs::read_dir(tree.join(below.trim_start_matches('/')))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().context("a file name that is not UTF-8")?;
        let path = format!("{below}/{name}");
        let meta = entry.metadata()?;
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_dir() {
            if walk(tree, &path, keep, entries)? {
                entries.push(Entry::directory(&path, 0o755));
                any = true;
            }
            continue;
        }
        let link = meta.is_symlink();
        let wanted = keep(&path) || (link && below.is_empty());
        if !wanted {
            continue;
        }
        any = true;
        entries.push(if link {
            let target = fs::read_link(entry.path())?;
            Entry::symlink(&path, target.to_string_lossy())
        } else {
            Entry::copy(&path, mode, entry.path())
        });
    }
    debug_assert!(entries.iter().all(|entry| entry.kind != Kind::Remove));
    Ok(any)
}

/// The unit. Its mark lies with containerd's data, so that both are lost together; the data is on the disk before the
/// mark is made.
fn import_unit(images: &[ContainerImage], archive: &str, key: &Key) -> String {
    let mark = format!("/var/lib/containerd/slipway-images-{}", &key.as_str()[..16]);
    let pins: String = images
        .iter()
        .map(|image| {
            // Or the kubelet removes them when the disk is nearly full.
            format!(
                "ExecStart=/usr/bin/ctr --namespace {NAMESPACE} images label {} io.cri-containerd.pinned=pinned\n",
                baked(*image).name
            )
        })
        .collect();
    format!(
        "\
[Unit]
Description=Import of the container images that came with the node's image
Requires=containerd.service
After=containerd.service
Before={UNIT}
ConditionPathExists=!{mark}

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=600
ExecStart=/usr/bin/ctr --namespace {NAMESPACE} images import {archive}
{pins}ExecStart=/usr/bin/sync --file-system /var/lib/containerd
ExecStart=/usr/bin/touch {mark}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left() {
        for text in [containerd(), kubelet(), etcd_pod()] {
            assert!(!text.contains('@'), "{text}");
        }
        toml::from_str::<toml::Table>(&containerd()).unwrap();
    }

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
        let mut entries = Vec::new();
        walk(folder.path(), "", PAUSE.keep, &mut entries).unwrap();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
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
        assert!(unit.contains(&format!(
            "!/var/lib/containerd/slipway-images-{}",
            &key.as_str()[..16]
        )));
    }
}
