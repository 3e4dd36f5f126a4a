//! The addons of this node: the folders of its image and of its config, and which image it is.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cluster::manifests::record::{Applier, Image};
use cluster::manifests::{self, Addons, File, Folder, Source};
use image::paths::{ADDONS, CONFIG_ADDONS};
use linux::world::World;

use crate::object::Bootstrap;
use crate::this_boot;

/// Reads the addons; those with mistakes are among the refused.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn read(world: &World) -> Result<Addons> {
    let mut folders = Vec::new();
    for (path, source) in [(ADDONS, Source::Image), (CONFIG_ADDONS, Source::Config)] {
        let root = world.in_initrd(path);
        for name in names(&root)? {
            folders.push(folder(&root, path, name, source)?);
        }
    }
    Ok(manifests::read(folders))
}

/// This node, as other control planes know it by what it applied.
///
/// # Errors
/// If the image's manifest cannot be read.
pub(crate) fn applier(world: &World, bootstrap: &Bootstrap) -> Result<Applier> {
    let manifest = this_boot::manifest(world)?;
    Ok(Applier {
        node: bootstrap.object.config.init.node_registration.name.clone(),
        image: Image {
            name: manifest.image.name,
            version: manifest.image.version,
            epoch: manifest.epoch,
        },
    })
}

/// The names in a folder, sorted; none if there is no folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let about = || format!("reading the folder {}", folder.display());
    let mut names = Vec::new();
    for entry in entries.with_context(about)? {
        let name = entry.with_context(about)?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn folder(root: &Path, path: &str, name: String, source: Source) -> Result<Folder> {
    let path = format!("{path}/{name}");
    let inside = root.join(&name);
    let mut files = Vec::new();
    if inside.is_dir() {
        for name in names(&inside)? {
            let path = format!("{path}/{name}");
            files.push(file(&inside.join(&name), path, name)?);
        }
    } else {
        // A file beside the addons' folders: its name is no addon's, and no manifest's either.
        files.push(File {
            name: "/".to_owned(),
            path: path.clone(),
            content: Vec::new(),
        });
    }
    Ok(Folder {
        name,
        source,
        path,
        files,
    })
}

fn file(inside: &Path, path: String, name: String) -> Result<File> {
    // A folder inside is a file of no known kind.
    let (name, content) = match inside.is_dir() {
        true => (format!("{name}/"), Vec::new()),
        false => (
            name,
            fs::read(inside).with_context(|| format!("reading {}", inside.display()))?,
        ),
    };
    Ok(File {
        name,
        path,
        content,
    })
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    #[test]
    fn addons_are_read_from_the_image_and_the_config() {
        let root = tempfile::tempdir().unwrap();
        let world = World::below(root.path(), Clock::Real);
        assert!(read(&world).unwrap().valid.is_empty());
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n";
        let at = |path: &str| world.in_initrd(path);
        put(&at("/usr/lib/slipway/addons/one/1.yaml"), map);
        put(&at("/usr/lib/slipway/addons/two/1.yaml"), "not: an object");
        put(&at("/etc/slipway/addons/two/addon.toml"), "");
        put(&at("/etc/slipway/addons/three/sub.yaml/1.yaml"), map);
        put(&at("/etc/slipway/addons/loose"), map);
        let addons = read(&world).unwrap();
        let valid: Vec<_> = addons
            .valid
            .iter()
            .map(|addon| (addon.name.as_str(), addon.source, addon.objects.len()))
            .collect();
        assert_eq!(
            valid,
            [("one", Source::Image, 1), ("two", Source::Config, 0)]
        );
        let refused: Vec<_> = addons.refused.iter().map(ToString::to_string).collect();
        assert_eq!(
            refused,
            [
                "/etc/slipway/addons/loose: expected .yaml, .yml, .json or addon.toml",
                "/etc/slipway/addons/three/sub.yaml: expected .yaml, .yml, .json or addon.toml",
            ]
        );
    }
}
