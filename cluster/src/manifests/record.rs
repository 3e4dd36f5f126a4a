//! What the cluster knows of an addon: one ConfigMap for each, which every control plane reads before it changes something.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ADDON, Source};

/// The version of the form.
const VERSION: u32 = 1;
/// The key of the map's data.
const KEY: &str = "record";
/// The label of records, with the addon's name.
pub const RECORD: &str = "slipway.local/addon-record";
/// The collection that records are in.
pub const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// An object that was applied, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// Its path in the API.
    pub path: String,
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

/// The image of a node that applies addons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The recipe's name.
    pub name: String,
    /// The recipe's version.
    pub version: String,
    /// The time of its newest package index, seconds since 1970.
    pub epoch: u64,
}

/// What was applied last of an addon, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Version of this form: 1.
    version: u32,
    /// The addon's name.
    pub addon: String,
    /// The hash of its objects.
    pub hash: String,
    /// Where the node had it from.
    pub source: Source,
    /// The node's image.
    pub image: Image,
    /// The node's name.
    pub node: String,
    /// Whether all objects were applied, and those of an earlier version deleted.
    pub complete: bool,
    /// The objects: all that may be there, if it is not complete.
    pub objects: Vec<Reference>,
    /// The map's version, without which it is not there yet.
    #[serde(skip)]
    pub resource_version: Option<String>,
}

/// The node that asks.
#[derive(Clone, Debug)]
pub struct Applier {
    /// Its name.
    pub node: String,
    /// Its image.
    pub image: Image,
}

impl Record {
    /// The record of an addon that this node begins to apply, over the one that the cluster has.
    #[must_use]
    pub fn begun(
        addon: &super::Addon,
        by: &Applier,
        objects: Vec<Reference>,
        before: Option<&Self>,
    ) -> Self {
        Self {
            version: VERSION,
            addon: addon.name.clone(),
            hash: addon.hash.clone(),
            source: addon.source,
            image: by.image.clone(),
            node: by.node.clone(),
            complete: false,
            objects,
            resource_version: before.and_then(|record| record.resource_version.clone()),
        }
    }

    /// Reads the record in a ConfigMap.
    ///
    /// # Errors
    /// Why it is none, or of another version.
    pub fn read(map: &Value) -> Result<Self, String> {
        let name = map["metadata"]["name"].as_str().unwrap_or_default();
        let text = map["data"][KEY].as_str().unwrap_or_default();
        let about =
            |error: &dyn std::fmt::Display| format!("the ConfigMap kube-system/{name}: {error}");
        let version: Value = serde_json::from_str(text).map_err(|error| about(&error))?;
        if version["version"] != VERSION {
            let found = &version["version"];
            return Err(about(&format!(
                "it is of version {found}, expected {VERSION}"
            )));
        }
        let mut record: Self = serde_json::from_value(version).map_err(|error| about(&error))?;
        let resource = map["metadata"]["resourceVersion"].as_str();
        record.resource_version = resource.map(str::to_owned);
        Ok(record)
    }

    /// The ConfigMap. The API server refuses it with 409 if another one was written since it was read.
    #[must_use]
    pub fn map(&self) -> Value {
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": map_name(&self.addon),
                "namespace": "kube-system",
                "labels": {RECORD: self.addon},
            },
            "data": {KEY: text},
        });
        if let Some(version) = &self.resource_version {
            map["metadata"]["resourceVersion"] = version.as_str().into();
        }
        map
    }

    /// Why this node may not apply its own version of the addon, from this source.
    ///
    /// # Errors
    /// The reason: a newer image or another node's config has applied it.
    pub fn yields(&self, source: Source, by: &Applier) -> Result<(), String> {
        let (name, version) = (&self.image.name, &self.image.version);
        if by.image.older(&self.image) {
            let node = &self.node;
            return Err(format!(
                "the newer image {name} {version}, of node {node}, applied it; this node's image is {} {}",
                by.image.name, by.image.version
            ));
        }
        if self.source == Source::Config && source == Source::Image && self.node != by.node {
            return Err(format!(
                "it is of the config of node {}, this node has the image's alone",
                self.node
            ));
        }
        Ok(())
    }

    /// Why this node, which has no such addon, may not delete its objects.
    ///
    /// # Errors
    /// The reason: another image or another node's config has it.
    pub fn is_gone(&self, by: &Applier) -> Result<(), String> {
        self.yields(self.source, by)?;
        if self.node == by.node
            || (self.source == Source::Image && self.image.name == by.image.name)
        {
            return Ok(());
        }
        let Image { name, version, .. } = &self.image;
        Err(match self.source {
            Source::Config => format!("it is of the config of node {}", self.node),
            Source::Image => format!("it is of the image {name} {version}, of node {}", self.node),
        })
    }
}

/// The name of an addon's map.
#[must_use]
pub fn map_name(addon: &str) -> String {
    format!("slipway-addon-{addon}")
}

/// Whether an object has the label of this addon.
#[must_use]
pub fn is_of(object: &Value, addon: &str) -> bool {
    object["metadata"]["labels"][ADDON] == addon
}

impl Image {
    /// Whether this image is older than another: of one recipe by its version, else by the time of its packages.
    fn older(&self, other: &Self) -> bool {
        let versions = match self.name == other.name {
            true => compare(&self.version, &other.version),
            false => Ordering::Equal,
        };
        versions.then(self.epoch.cmp(&other.epoch)) == Ordering::Less
    }
}

/// Compares versions by their numbers and words, as a boot loader sorts entries: 1.10 is newer than 1.9, 1.0~rc1 older than 1.0.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let sign = |c: char| !c.is_ascii_alphanumeric() && c != '~';
        (a, b) = (a.trim_start_matches(sign), b.trim_start_matches(sign));
        match (a.starts_with('~'), b.starts_with('~')) {
            (true, true) => {
                (a, b) = (&a[1..], &b[1..]);
                continue;
            }
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => {}
        }
        if a.is_empty() || b.is_empty() {
            return a.len().cmp(&b.len());
        }
        let (one, other) = (part(a), part(b));
        let found = match (is_number(one), is_number(other)) {
            (true, true) => {
                let (one, other) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
                one.len().cmp(&other.len()).then_with(|| one.cmp(other))
            }
            // A number is newer than a word: 1.0.1 than 1.0.rc.
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => one.cmp(other),
        };
        if found != Ordering::Equal {
            return found;
        }
        (a, b) = (&a[part(a).len()..], &b[part(b).len()..]);
    }
}

fn is_number(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_digit())
}

/// The digits, or the letters, that a text begins with.
fn part(text: &str) -> &str {
    let digits = is_number(text);
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() || c.is_ascii_digit() != digits);
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, version: &str, epoch: u64) -> Image {
        Image {
            name: name.to_owned(),
            version: version.to_owned(),
            epoch,
        }
    }

    fn record(source: Source, node: &str, image: Image) -> Record {
        Record {
            version: VERSION,
            addon: "cni".to_owned(),
            hash: "h".to_owned(),
            source,
            image,
            node: node.to_owned(),
            complete: true,
            objects: Vec::new(),
            resource_version: Some("7".to_owned()),
        }
    }

    #[test]
    fn versions_are_compared_by_numbers_and_words() {
        for (older, newer) in [
            ("1.9", "1.10"),
            ("1.0", "1.0.1"),
            ("1.0~rc1", "1.0"),
            ("1.0-rc1", "1.0-rc2"),
            ("1.0.rc", "1.0.1"),
            ("2026.9.1", "2026.11.1"),
            ("", "1"),
        ] {
            assert_eq!(compare(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(compare(newer, older), Ordering::Greater, "{older} {newer}");
        }
        assert_eq!(compare("1.01-a", "1.1.a"), Ordering::Equal);
    }

    /// Two images during an upgrade do not undo each other's addons.
    #[test]
    fn an_older_image_never_replaces_or_deletes_what_a_newer_one_applied() {
        use Source::{Config, Image as FromImage};
        for (applied, by, source, replaces, deletes) in [
            (
                image("cp", "1.10", 5),
                image("cp", "1.9", 9),
                FromImage,
                false,
                false,
            ),
            (
                image("cp", "1.9", 9),
                image("cp", "1.10", 5),
                FromImage,
                true,
                true,
            ),
            (
                image("cp", "1", 5),
                image("cp", "1", 4),
                FromImage,
                false,
                false,
            ),
            (
                image("cp", "1", 5),
                image("cp", "1", 5),
                FromImage,
                true,
                true,
            ),
            (
                image("cp", "1", 5),
                image("cp", "1", 5),
                Config,
                true,
                false,
            ),
            // Versions of two recipes are not comparable.
            (
                image("old", "9", 5),
                image("new", "1", 6),
                FromImage,
                true,
                false,
            ),
            (
                image("new", "1", 6),
                image("old", "9", 5),
                Config,
                false,
                false,
            ),
        ] {
            let by = Applier {
                node: "b".to_owned(),
                image: by,
            };
            let record = record(source, "a", applied);
            assert_eq!(
                record.yields(source, &by).is_ok(),
                replaces,
                "{record:?} {by:?}"
            );
            assert_eq!(record.is_gone(&by).is_ok(), deletes, "{record:?} {by:?}");
        }
        let by = |node: &str| Applier {
            node: node.to_owned(),
            image: image("cp", "1", 5),
        };
        let config = record(Config, "a", image("cp", "1", 5));
        assert!(
            config
                .yields(FromImage, &by("b"))
                .unwrap_err()
                .contains("config of node a")
        );
        assert!(config.yields(FromImage, &by("a")).is_ok() && config.is_gone(&by("a")).is_ok());
    }

    #[test]
    fn a_record_is_read_back_with_the_version_of_its_map() {
        let record = record(Source::Image, "a", image("cp", "1", 5));
        assert_eq!(Record::read(&record.map()).unwrap(), record);
        let mut map = record.map();
        map["data"]["record"] = "{\"version\": 2}".into();
        let refused = Record::read(&map).unwrap_err();
        assert!(
            refused.contains("slipway-addon-cni: it is of version 2, expected 1"),
            "{refused}"
        );
    }
}
