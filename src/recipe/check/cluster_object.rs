//! A cluster object that a recipe bakes in: its mistakes are those of the recipe.

use std::collections::BTreeMap;
use std::fs;

use cluster::host::Host;
use cluster::object::{self, Image};
use image::node::Role;
use image::paths::CLUSTER;

use super::Check;
use super::files::{FileEntry, FileKind};
use crate::recipe::mistakes::Mistake;

/// Reads the cluster object among the files of a recipe, as a node of this role will read it. `kubernetes` is the recipe's
/// version: `1.36` or `1.36.3`.
pub(super) fn check(
    check: &mut Check<'_>,
    files: &[FileEntry],
    role: Role,
    kubernetes: Option<&str>,
) {
    // The images are not known before the recipe is locked.
    for mistake in mistakes(files, role, kubernetes, None) {
        check.add(Mistake::nowhere(mistake));
    }
}

/// All mistakes of the cluster object among the files of a recipe. `images` are the references of the images that the node's
/// image brings, by component, if they are known: arguments of etcd are held against its version there.
pub(super) fn mistakes(
    files: &[FileEntry],
    role: Role,
    kubernetes: Option<&str>,
    images: Option<&BTreeMap<String, String>>,
) -> Vec<String> {
    let Some(entry) = files.iter().find(|entry| entry.path == CLUSTER) else {
        return Vec::new();
    };
    let (path, bytes) = match &entry.kind {
        FileKind::Content(content) => (format!("files.{CLUSTER:?}"), Ok(content.clone())),
        FileKind::Source(source) => (source.display().to_string(), fs::read(source)),
        // A file of a server is a mistake already.
        FileKind::Download(_) | FileKind::Link(_) | FileKind::Directory | FileKind::Remove => {
            return Vec::new();
        }
    };
    let text = match bytes.map(String::from_utf8) {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return vec![format!("{path}: {error}")],
        Err(error) => return vec![format!("reading {path}: {error}")],
    };
    let mut found = Vec::new();
    let own = named(&text);
    if let (Some(own), Some(recipe)) = (&own, kubernetes)
        && own != recipe
        && !own.starts_with(&format!("{recipe}."))
    {
        found.push(format!(
            "{path}: version: {own} is not in the image, whose recipe has {recipe}"
        ));
    }
    let image = Image {
        version: version(own, kubernetes),
        has_kubelet: kubernetes.is_some(),
        images: images.cloned().unwrap_or_default(),
        known: images.is_some(),
        ..Image::default()
    };
    let role = match role {
        Role::ControlPlane => object::Role::ControlPlane,
        Role::Worker => object::Role::Worker,
    };
    if let Err(report) = object::read(&text, &image, &Host::of_documentation(), role) {
        let mistakes = report.mistakes.iter();
        found.extend(mistakes.map(|mistake| format!("{path}: {mistake}")));
    }
    found
}

/// The version that an object names, without the `v`; none with a repository of its own, from which any may come. The text may
/// be no object at all: its mistakes are found where it is read as one.
fn named(text: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let version = table.get("version").and_then(toml::Value::as_str);
    let version = version.filter(|_| !table.contains_key("image-repository"));
    version.map(|version| version.trim_start_matches('v').to_owned())
}

/// The version of Kubernetes that the image will bring: the recipe's, of which a minor one leaves the patch release to the
/// object.
fn version(own: Option<String>, recipe: Option<&str>) -> String {
    match (own, recipe) {
        (_, None) => String::new(),
        (_, Some(recipe)) if recipe.matches('.').count() == 2 => recipe.to_owned(),
        (Some(own), Some(recipe)) if own.starts_with(&format!("{recipe}.")) => own,
        (_, Some(recipe)) => format!("{recipe}.0"),
    }
}
