//! A cluster object that a recipe bakes in: its mistakes are those of the recipe.

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
    let Some(entry) = files.iter().find(|entry| entry.path == CLUSTER) else {
        return;
    };
    let (path, bytes) = match &entry.kind {
        FileKind::Content(content) => (format!("files.{CLUSTER:?}"), Ok(content.clone())),
        FileKind::Source(source) => (source.display().to_string(), fs::read(source)),
        FileKind::Link(_) | FileKind::Directory | FileKind::Remove => return,
    };
    let text = bytes.map(String::from_utf8);
    let text = match text {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return check.add(Mistake::nowhere(format!("{path}: {error}"))),
        Err(error) => return check.add(Mistake::nowhere(format!("reading {path}: {error}"))),
    };
    let image = Image {
        version: version(&text, kubernetes),
        ..Image::default()
    };
    let role = match role {
        Role::ControlPlane => object::Role::ControlPlane,
        Role::Worker => object::Role::Worker,
    };
    if let Err(report) = object::read(&text, &image, &Host::of_documentation(), role) {
        for mistake in report.mistakes {
            check.add(Mistake::nowhere(format!("{path}: {mistake}")));
        }
    }
}

/// The version of Kubernetes that the image will bring: the recipe's, of which a minor one leaves the patch release to the
/// object.
fn version(text: &str, recipe: Option<&str>) -> String {
    let Some(recipe) = recipe else {
        return String::new();
    };
    let own = toml::from_str::<toml::Table>(text).ok();
    let own = own.as_ref().and_then(|own| own.get("version")?.as_str());
    let own = own.map(|own| own.trim_start_matches('v'));
    match own {
        _ if recipe.matches('.').count() == 2 => recipe.to_owned(),
        Some(own) if own.starts_with(&format!("{recipe}.")) => own.to_owned(),
        _ => format!("{recipe}.0"),
    }
}
