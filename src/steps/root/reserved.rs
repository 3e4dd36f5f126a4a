//! The refusal of the recipe's files at paths of Slipway's, with all that only a build knows: the packages' links, the kubelet's
//! container, the container images.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::layer::merge::merge;
use crate::layer::{Entry, Layer};
use crate::node_files;
use crate::recipe::Recipe;

/// Lays the layers over the base.
///
/// # Errors
/// All files of the recipe that are refused or do not fit, or the first conflict of two other layers.
pub(super) fn merged(recipe: &Recipe, base: &[Entry], layers: &[Layer]) -> Result<Vec<Entry>> {
    let merged = merge(base, layers, &node_files::fixed(recipe.features()))?;
    let files = recipe.files.iter();
    let origins: BTreeMap<&str, &str> = files
        .map(|file| (file.path.as_str(), file.origin.as_str()))
        .collect();
    let refused = merged.refused.iter().map(|refused| {
        let found = node_files::refusal(refused);
        let text = format!("{found}; {}", node_files::instead(&refused.reserved));
        (&refused.path, text)
    });
    let conflicts = merged.conflicts.iter();
    let conflicts = conflicts.map(|(path, text)| (path, text.clone()));
    let lines: Vec<String> = refused
        .chain(conflicts)
        .map(|(path, text)| {
            let of_layer = || {
                let mut layers = layers.iter().rev();
                let has = |layer: &&Layer| layer.entries.iter().any(|entry| entry.path == *path);
                layers
                    .find(|layer| layer.origin.is_some() && has(layer))?
                    .origin
                    .as_deref()
            };
            let origin = origins.get(path.as_str()).copied().or_else(of_layer);
            format!("{}: {text}", origin.unwrap_or("the recipe"))
        })
        .collect();
    ensure!(
        lines.is_empty(),
        "files of the recipe cannot be in the image:\n  {}",
        lines.join("\n  ")
    );
    Ok(merged.tree.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Key;
    use crate::layer::Writer;
    use image::paths::KUBELET_ROOTFS;

    fn layer(writer: Writer, entries: Vec<Entry>) -> Layer {
        let key = Key::of_data("test", 1).finish();
        Layer::with_key(entries, key).unwrap().of(writer)
    }

    /// A recipe with these files, as the build has them.
    fn recipe(text: &str) -> Recipe {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.toml");
        let base = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/node.toml");
        std::fs::write(&file, format!("extends = {base:?}\n{text}")).unwrap();
        crate::recipe::load(&file).unwrap()
    }

    #[test]
    fn what_only_the_build_knows_is_refused_by_its_place_in_the_recipe() {
        // The package's link is not known before; the layers stand for those of the kubelet and of the container images.
        let recipe = recipe("[files.\"/usr/lib/app/config.toml\"]\ncontent = \"x\"\n");
        let base = [
            Entry::directory("/", 0o755),
            Entry::symlink("/sbin", "usr/sbin"),
            Entry::directory("/usr", 0o755),
            Entry::directory("/usr/lib", 0o755),
            Entry::symlink("/usr/lib/app", "/etc/containerd"),
            Entry::file("/usr/bin/kubectl", 0o755, "of a package"),
            Entry::file("/usr/lib/modules/6.12/modules.dep", 0o644, "of a package"),
        ];
        let own = vec![
            Entry::file("/etc/containerd/config.toml", 0o644, "own"),
            Entry::file("/usr/bin/kubectl", 0o755, "own"),
            Entry::file(format!("{KUBELET_ROOTFS}/usr/bin/kubelet"), 0o755, "own"),
        ];
        let files = vec![
            Entry::file("/usr/bin/kubectl", 0o755, "mine"),
            Entry::file("/usr/lib/app/config.toml", 0o644, "mine"),
            Entry::file("/usr/lib/modules/6.12/modules.dep", 0o644, "mine"),
            Entry::file(format!("{KUBELET_ROOTFS}/usr/bin/more"), 0o755, "mine"),
            Entry::file("/usr/sbin/init", 0o755, "mine"),
            Entry::file("/usr/bin/kubectl/x", 0o755, "mine"),
            Entry::directory("/usr/lib/slipway/addons/mine", 0o755),
        ];
        let allowed = [
            "/usr/lib/modules/6.12/modules.dep",
            "/usr/lib/slipway/addons/mine",
        ];
        let links = vec![Entry::symlink("/etc/systemd/system/x.service", "/dev/null")];
        let layers = |files: Vec<Entry>| {
            [
                layer(Writer::Slipway, own.clone()),
                layer(Writer::Recipe, files),
                layer(Writer::Slipway, links.clone()),
            ]
        };
        let error = merged(&recipe, &base, &layers(files.clone())).unwrap_err();
        let error = error.to_string();
        for expected in [
            "the recipe: /usr/bin/kubectl is reserved",
            "test.toml:2:8: /usr/lib/app/config.toml is /etc/containerd/config.toml, which is reserved",
            "/etc/containerd/conf.d/NAME.toml",
            "usr/bin/more is in /usr/lib/slipway",
            "/usr/sbin/init is reserved",
            "the recipe: laying /usr/bin/kubectl/x: /usr/bin/kubectl is not a folder",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert_eq!(error.lines().count(), 6, "{error}");
        let files = files.into_iter();
        let files = files.filter(|entry| allowed.contains(&entry.path.as_str()));
        let entries = merged(&recipe, &base, &layers(files.collect())).unwrap();
        let of = |path: &str| entries.iter().find(|entry| entry.path == path).unwrap();
        assert_eq!(of(allowed[0]), &Entry::file(allowed[0], 0o644, "mine"));
        of(allowed[1]);
        of("/etc/systemd/system/x.service");
    }
}
