//! The packages of two images and their differences.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;
use slipway::debian::pinned::LockedPackage;

/// Versions of installed packages by name.
pub(crate) type Installed = BTreeMap<String, String>;

/// The packages of a lock's sets.
pub(crate) fn of_lock<'a>(packages: impl IntoIterator<Item = &'a LockedPackage>) -> Installed {
    packages
        .into_iter()
        .map(|package| (package.name.clone(), package.version.clone()))
        .collect()
}

/// The packages in mkosi's manifest of an image (`ManifestFormat=json`).
///
/// # Errors
/// If the text is not such a manifest.
pub(crate) fn of_manifest(text: &str) -> Result<Installed> {
    let manifest: Value = serde_json::from_str(text).context("reading mkosi's manifest")?;
    let packages = manifest["packages"]
        .as_array()
        .context("mkosi's manifest has no packages")?;
    packages
        .iter()
        .map(|package| {
            let field = |name: &str| {
                let text = package[name].as_str().map(str::to_owned);
                text.with_context(|| format!("a package in mkosi's manifest has no {name}"))
            };
            Ok((field("name")?, field("version")?))
        })
        .collect()
}

/// The differences of two lists as lines; none if they are equal.
pub(crate) fn difference(ours: &Installed, peer: &Installed, peer_name: &str) -> Vec<String> {
    let only = |these: &Installed, those: &Installed| -> Vec<String> {
        these
            .keys()
            .filter(|name| !those.contains_key(*name))
            .cloned()
            .collect()
    };
    let versions: Vec<String> = ours
        .iter()
        .filter_map(|(name, version)| {
            let other = peer.get(name).filter(|other| *other != version)?;
            Some(format!("{name} ({version} and {other})"))
        })
        .collect();
    [
        ("only in ours".to_owned(), only(ours, peer)),
        (format!("only in {peer_name}'s"), only(peer, ours)),
        (format!("in another version in {peer_name}'s"), versions),
    ]
    .into_iter()
    .filter(|(_, names)| !names.is_empty())
    .map(|(what, names)| format!("{} packages {what}: {}", names.len(), names.join(", ")))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(packages: &[(&str, &str)]) -> Installed {
        packages
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
            .collect()
    }

    #[test]
    fn a_manifest_of_mkosi_is_read() {
        let text = r#"{"manifest_version": 1, "packages": [
            {"type": "deb", "name": "apt", "version": "3.0.3", "architecture": "amd64"},
            {"type": "deb", "name": "bash", "version": "5.2.37-2+b5", "architecture": "amd64"}]}"#;
        let expected = list(&[("apt", "3.0.3"), ("bash", "5.2.37-2+b5")]);
        assert_eq!(of_manifest(text).unwrap(), expected);
        assert!(of_manifest("{}").is_err());
        let error = of_manifest(r#"{"packages": [{"name": "apt"}]}"#).unwrap_err();
        assert!(error.to_string().contains("no version"), "{error}");
    }

    #[test]
    fn differences_are_listed_by_kind() {
        let ours = list(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let peer = list(&[("a", "1"), ("b", "2"), ("d", "1")]);
        assert_eq!(
            difference(&ours, &peer, "mkosi"),
            [
                "1 packages only in ours: c",
                "1 packages only in mkosi's: d",
                "1 packages in another version in mkosi's: b (1 and 2)",
            ]
        );
        assert!(difference(&ours, &ours, "mkosi").is_empty());
    }
}
