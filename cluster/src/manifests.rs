//! Addons: folders of manifests that control planes apply, read without I/O. All mistakes of all files are found at once.

mod objects;
mod order;
mod range;
mod readiness;
pub mod record;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::release::Version;
use crate::report::{Mistake, Position, Report};
use crate::wording::nearest;
use objects::Placed;
pub use range::Range;
pub use readiness::{unready, vanishes};
pub use settings::Settings;

/// The file of an addon's settings in its folder.
pub const SETTINGS: &str = "addon.toml";
/// The label of an addon's objects: its name.
pub const ADDON: &str = "slipway.local/addon";
/// The label of an addon's objects: its hash when they were applied.
pub const HASH: &str = "slipway.local/addon-hash";
/// Kinds that are never deleted: all that is inside, or on the volume, would go with them.
pub const LEFT: [&str; 4] = [
    "CustomResourceDefinition",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
];
/// The namespace of an object that names none, of a kind that has namespaces.
pub const NAMESPACE: &str = "default";
/// Ends of the names of files with manifests.
const MANIFESTS: [&str; 3] = [".yaml", ".yml", ".json"];
/// The longest name: with its prefix it is the name of a ConfigMap, and it is the value of a label.
const LONGEST: usize = 40;
/// Digits of a hash: a label's value has at most 63 characters.
const DIGITS: usize = 32;

/// Where a node has an addon from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The verified image.
    Image,
    /// The node's config.
    Config,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Config => "config",
        })
    }
}

/// A file of an addon.
#[derive(Clone, Debug)]
pub struct File {
    /// Its name in the folder.
    pub name: String,
    /// Its path as messages name it.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// The folder of an addon.
#[derive(Clone, Debug)]
pub struct Folder {
    /// The addon's name, which is the folder's.
    pub name: String,
    /// Where it is.
    pub source: Source,
    /// Its path as messages name it.
    pub path: String,
    /// Its files.
    pub files: Vec<File>,
}

/// An addon, read and valid.
#[derive(Clone, Debug)]
pub struct Addon {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub source: Source,
    /// The hash of its objects, 32 hexadecimal digits of a SHA-256.
    pub hash: String,
    /// Its settings.
    pub settings: Settings,
    /// Its objects with their labels, in the order in which they are applied.
    pub objects: Vec<Value>,
}

/// A mistake in a file of an addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMistake {
    /// The file's path.
    pub file: String,
    /// The mistake.
    pub mistake: Mistake,
}

impl fmt::Display for FileMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { field, at, message } = &self.mistake;
        write!(f, "{}", self.file)?;
        if let Some(Position { line, column }) = at {
            write!(f, ":{line}:{column}")?;
        }
        match field.as_str() {
            "" => write!(f, ": {message}"),
            field => write!(f, ": {field}: {message}"),
        }
    }
}

/// An addon that is not applied because of its files.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub source: Source,
    /// All its mistakes.
    pub mistakes: Vec<FileMistake>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.mistakes.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The addons of a node.
#[derive(Clone, Debug, Default)]
pub struct Addons {
    /// Those that can be applied, each after those that it depends on.
    pub valid: Vec<Addon>,
    /// The others.
    pub refused: Vec<Refused>,
}

/// An addon while it is read.
struct Reading {
    folder: Folder,
    settings: Settings,
    /// The positions of its dependencies.
    needs_at: Vec<Position>,
    objects: Vec<Placed>,
    mistakes: Vec<FileMistake>,
}

/// Reads the addons of these folders. Of two folders of one name that of the config counts; one without manifests is an addon
/// without objects.
#[must_use]
pub fn read(folders: Vec<Folder>) -> Addons {
    let mut readings = readings(folders);
    find_unknown(&mut readings);
    let depends = readings
        .iter()
        .map(|(name, reading)| (name.clone(), reading.settings.depends.clone()))
        .collect();
    let (order, circle) = order::sorted(&depends);
    refuse_circle(&mut readings, &circle);
    let mut addons = Addons::default();
    for name in order.iter().chain(&circle) {
        match readings.remove(name).map(finished) {
            Some(Ok(addon)) => addons.valid.push(addon),
            Some(Err(refused)) => addons.refused.push(refused),
            None => {}
        }
    }
    addons
}

/// All mistakes of folders that a recipe brings. A node may have more addons, so that dependencies are not looked at.
#[must_use]
pub fn check(folders: Vec<Folder>) -> Vec<FileMistake> {
    let all = readings(folders).into_values();
    all.flat_map(|reading| reading.mistakes).collect()
}

fn readings(folders: Vec<Folder>) -> BTreeMap<String, Reading> {
    let mut readings: BTreeMap<String, Reading> = BTreeMap::new();
    for folder in folders {
        let hidden = readings.get(&folder.name);
        if hidden.is_none_or(|reading| reading.folder.source == Source::Image) {
            readings.insert(folder.name.clone(), reading(folder));
        }
    }
    find_twins(&mut readings);
    readings
}

fn reading(mut folder: Folder) -> Reading {
    let mut mistakes = Vec::new();
    let mut refuse = |file: &str, message: String| {
        mistakes.push(FileMistake {
            file: file.to_owned(),
            mistake: Mistake {
                field: String::new(),
                at: None,
                message,
            },
        });
    };
    if !is_name(&folder.name) {
        let message = format!(
            "{:?} is not a name of an addon; expected at most {LONGEST} of a-z, 0-9 and hyphens inside",
            folder.name
        );
        refuse(&folder.path, message);
    }
    folder.files.sort_by(|a, b| a.name.cmp(&b.name));
    for file in &folder.files {
        let known = MANIFESTS.iter().any(|end| file.name.ends_with(end));
        if !known && file.name != SETTINGS {
            let message = format!("expected {} or {SETTINGS}", MANIFESTS.join(", "));
            refuse(&file.path, message);
        }
    }
    let (mut settings, mut needs_at) = Default::default();
    let mut found = Vec::new();
    for file in &folder.files {
        if file.name == SETTINGS {
            (settings, needs_at) = settings_of(file, &mut mistakes);
        } else if MANIFESTS.iter().any(|end| file.name.ends_with(end)) {
            found.extend(objects::read(file, &mut mistakes));
        }
    }
    Reading {
        folder,
        settings,
        needs_at,
        objects: found,
        mistakes,
    }
}

fn settings_of(file: &File, mistakes: &mut Vec<FileMistake>) -> (Settings, Vec<Position>) {
    let mut report = Report::default();
    let settings = match str::from_utf8(&file.content) {
        Ok(text) => settings::read(text, &mut report),
        Err(_) => {
            report.refuse("", "not UTF-8");
            Default::default()
        }
    };
    let file = &file.path;
    mistakes.extend(report.mistakes.into_iter().map(|mistake| FileMistake {
        file: file.clone(),
        mistake,
    }));
    settings
}

/// A label of DNS (RFC 1123) that is not too long.
fn is_name(name: &str) -> bool {
    let sign = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LONGEST).contains(&name.len())
        && name.chars().all(sign)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Refuses an object that is there twice: the later one would replace the earlier at each apply.
fn find_twins(readings: &mut BTreeMap<String, Reading>) {
    let mut known: BTreeMap<[String; 4], String> = BTreeMap::new();
    for reading in readings.values_mut() {
        for Placed { value, file, at } in &reading.objects {
            let Position { line, column } = at;
            let place = format!("{file}:{line}:{column}");
            let Some(first) = known.insert(identity(value), place) else {
                continue;
            };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&value["kind"]), text(&value["metadata"]["name"]));
            reading.mistakes.push(FileMistake {
                file: file.clone(),
                mistake: Mistake {
                    field: String::new(),
                    at: Some(*at),
                    message: format!("{kind} {name} is also at {first}; expected each object once"),
                },
            });
        }
    }
}

/// What tells an object from every other: group, kind, namespace and name.
#[must_use]
pub fn identity(object: &Value) -> [String; 4] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str();
    [
        group.to_owned(),
        text(&object["kind"]),
        // Which kinds have none the API server alone knows: no two objects of such a kind differ here.
        namespace.unwrap_or(NAMESPACE).to_owned(),
        text(&metadata["name"]),
    ]
}

/// Refuses dependencies that are no addons of this node.
fn find_unknown(readings: &mut BTreeMap<String, Reading>) {
    let names: BTreeSet<String> = readings.keys().cloned().collect();
    for reading in readings.values_mut() {
        let needs = reading.settings.depends.clone();
        for (number, need) in needs.iter().enumerate() {
            if names.contains(need) {
                continue;
            }
            let near = nearest(need, names.iter().map(String::as_str));
            let message = match near {
                Some(near) => format!("there is no addon {need:?}; did you mean {near:?}?"),
                None => format!("there is no addon {need:?}"),
            };
            refuse_need(reading, number, message);
        }
    }
}

/// Refuses addons that wait for each other.
fn refuse_circle(readings: &mut BTreeMap<String, Reading>, circle: &BTreeSet<String>) {
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    let message = format!("a circle of dependencies among {}", names.join(", "));
    for reading in readings.values_mut() {
        if circle.contains(&reading.folder.name) {
            let mut needs = reading.settings.depends.iter();
            let number = needs.position(|need| circle.contains(need));
            refuse_need(reading, number.unwrap_or(0), message.clone());
        }
    }
}

/// Adds a mistake in the dependency with this number.
fn refuse_need(reading: &mut Reading, number: usize, message: String) {
    reading.mistakes.push(FileMistake {
        file: format!("{}/{SETTINGS}", reading.folder.path),
        mistake: Mistake {
            field: "depends".to_owned(),
            at: reading.needs_at.get(number).copied(),
            message,
        },
    });
}

fn finished(reading: Reading) -> Result<Addon, Refused> {
    let Reading {
        folder,
        settings,
        objects,
        mistakes,
        ..
    } = reading;
    let (name, source) = (folder.name, folder.source);
    if !mistakes.is_empty() {
        return Err(Refused {
            name,
            source,
            mistakes,
        });
    }
    let mut objects: Vec<Value> = objects.into_iter().map(|placed| placed.value).collect();
    objects.sort_by_key(order::place);
    let hash = hash(&objects);
    for object in &mut objects {
        let metadata = &mut object["metadata"];
        if metadata["labels"].is_null() {
            metadata["labels"] = serde_json::json!({});
        }
        metadata["labels"][ADDON] = name.as_str().into();
        metadata["labels"][HASH] = hash.as_str().into();
    }
    Ok(Addon {
        name,
        source,
        hash,
        settings,
        objects,
    })
}

impl Addon {
    /// Why the addon is not for this version of Kubernetes; none if it is.
    #[must_use]
    pub fn outside(&self, kubernetes: &Version) -> Option<String> {
        let range = self.settings.kubernetes.as_ref()?;
        (!range.contains(kubernetes))
            .then(|| format!("it is for Kubernetes {range}, this node's is {kubernetes}"))
    }
}

fn hash(objects: &[Value]) -> String {
    let mut hash = Sha256::new();
    for object in objects {
        hash.update(object.to_string().as_bytes());
        hash.update(b"\n");
    }
    let digits = HEXLOWER.encode(&hash.finalize());
    digits[..DIGITS].to_owned()
}
