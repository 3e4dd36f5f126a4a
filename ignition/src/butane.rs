//! Butane: YAML for people, translated to the Ignition config that it stands for.
//!
//! A document goes through named steps: variant and version are found → [`crate::tree::read_butane`] reads it by
//! the one schema, sugar included → `rules` of the sugar → `contents` (inline and local contents become data
//! URLs) → `mounts` → `trees` and Quadlets. What comes out is checked by Ignition's rules of the version that
//! Butane emits, and `origin` turns what they find back to places in the YAML.
//!
//! Local files come from the caller: the tool has a folder for them, a node has none.

use crate::read::json::{self, Json, Value};
use crate::read::yaml;
use crate::report::{At, Report};
use crate::schema::CONFIG;
use crate::tree::{self, Node};

pub(crate) mod contents;
mod mounts;
mod origin;
mod rules;
#[cfg(test)]
mod tests;
mod trees;

pub use contents::gzip;
pub(crate) use origin::Origins;

/// What the caller brings.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The files that `local` and its like name.
    pub files: &'a dyn Files,
    /// How contents are packed where that makes a config smaller; none leaves them unpacked, as a node wants
    /// them, which reads them the next moment.
    pub pack: Option<Pack>,
}

/// Packs bytes with gzip.
pub type Pack = fn(&[u8]) -> Vec<u8>;

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("pack", &self.pack.is_some())
            .finish_non_exhaustive()
    }
}

impl Options<'static> {
    /// No local files, nothing packed.
    pub const BARE: Self = Self {
        files: &NoFiles,
        pack: None,
    };
}

/// The local files of a config. Paths are relative, with `/`, in their shortest form, and never leave the folder;
/// the empty path is the folder itself. Errors say what is wrong and are shown to people.
pub trait Files {
    /// The bytes of one file.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// Everything in a folder, the folder itself first, each folder before what is in it and names in order.
    ///
    /// # Errors
    /// If it is no folder that can be read.
    fn tree(&self, path: &str) -> Result<Vec<Found>, String>;
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path below the folder; empty for the folder itself.
    pub path: String,
    /// What it is.
    pub kind: Kind,
}

/// What there is in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Directory,
    /// A file: its bytes, and whether anybody may execute it.
    File(Vec<u8>, bool),
    /// A symbolic link and its target.
    Link(String),
    /// Anything else, or what cannot be read; with the reason why it is of no use.
    Other(String),
}

/// Where there are no local files.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

const NO_FILES: &str =
    "there are no local files here; `slipway ignition from-butane --files-dir DIR` puts them in";

impl Files for NoFiles {
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Err(NO_FILES.to_owned())
    }

    fn tree(&self, _: &str) -> Result<Vec<Found>, String> {
        Err(NO_FILES.to_owned())
    }
}

/// The variants and versions, each with the minor number of the specification 3 of Ignition that it becomes.
/// Butane's own table, and ours. <https://coreos.github.io/butane/specs/>
const VERSIONS: [(&str, &str, u8); 13] = [
    ("fcos", "1.0.0", 0),
    ("fcos", "1.1.0", 1),
    ("fcos", "1.2.0", 2),
    ("fcos", "1.3.0", 2),
    ("fcos", "1.4.0", 3),
    ("fcos", "1.5.0", 4),
    ("fcos", "1.6.0", 5),
    ("fcos", "1.7.0", 6),
    ("fcos", "1.8.0-experimental", 7),
    ("flatcar", "1.0.0", 3),
    ("flatcar", "1.1.0", 4),
    ("flatcar", "1.2.0-experimental", 7),
    ("slipway", "1.0.0", 6),
];

/// Sections that need what another distribution lays out, and why they are refused.
const FOREIGN: [(&str, &str); 4] = [
    (
        "boot_device",
        "it rewrites the partitions of Fedora CoreOS; Slipway's system disk has its own, made by the image",
    ),
    (
        "grub",
        "it writes to the boot partition of Fedora CoreOS; Slipway boots by systemd-boot, without GRUB",
    ),
    (
        "extensions",
        "it layers packages by rpm-ostree; Slipway's packages are named in the recipe",
    ),
    (
        "openshift",
        "it is for the Machine Config Operator of OpenShift",
    ),
];

/// Who a config was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Fcos,
    Flatcar,
    Slipway,
}

/// A translated document.
pub(crate) struct Translated {
    /// The config in the form of Ignition 3.`minor`, unchecked.
    pub(crate) tree: Node,
    /// Which specification it is of.
    pub(crate) minor: u8,
    /// What was found on the way.
    pub(crate) report: Report,
    /// What came from where.
    pub(crate) origins: Origins,
}

/// A text by its language, read as far as needed to tell.
pub(crate) enum Text {
    /// YAML with `variant` at its top.
    Butane(Json),
    /// JSON, whatever is in it.
    Ignition(Json),
}

/// The language of a text. Butane is YAML with `variant` at its top. JSON is YAML too; with `variant` it is
/// Butane, whatever else is in it.
///
/// # Errors
/// If the text is neither; with `{` as its first character it is held for JSON.
pub(crate) fn detect(text: &[u8], source: &str) -> Result<Text, Report> {
    let has_variant = |json: &Json| json.value.get("variant").is_some();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if text.trim_ascii_start().starts_with(b"{") {
        let json = json::parse(text, source)?;
        return match has_variant(&json) {
            true => yaml::parse(text, source).map(Text::Butane),
            false => Ok(Text::Ignition(json)),
        };
    }
    match yaml::parse(text, source) {
        Ok(yaml) if has_variant(&yaml) => return Ok(Text::Butane(yaml)),
        Err(report) if names_variant(text) => return Err(report),
        _ => {}
    }
    let mut json = json::parse(text, source).map(Text::Ignition);
    if let Err(report) = &mut json {
        for entry in &mut report.entries {
            entry.message += "; expected Ignition JSON, or Butane YAML with `variant` at its top";
        }
    }
    json
}

/// Whether a line begins as the variant does, so that the text was meant to be Butane.
fn names_variant(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        let rest = line.strip_prefix(b"variant");
        rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
    })
}

/// Translates a document. `nested` says that it stands in another one, whose configs are not looked into again.
///
/// # Errors
/// Every mistake that can be seen before Ignition's own rules.
pub(crate) fn translate(
    yaml: &Json,
    options: Options<'_>,
    nested: bool,
) -> Result<Translated, Report> {
    let (variant, minor) = version(yaml)?;
    let mut report = Report::default();
    let yaml = without_foreign(yaml, &mut report);
    let mut reading = Report::default();
    let mut tree = tree::read_butane(&yaml, &CONFIG, minor, &mut reading);
    tree.take("variant");
    let at = tree.take("version").and_then(|node| node.at);
    // Values of a wrong type are missing in the tree, so that the rules would complain of them twice.
    let unreadable = reading.is_fatal();
    report.absorb(reading);
    if unreadable {
        return Err(report);
    }
    rules::check(&tree, variant, minor, &mut report);
    let mut work = Work {
        options,
        minor,
        nested,
        report,
        origins: Origins::default(),
    };
    contents::translate(&mut work, &mut tree);
    mounts::add(&mut work, &mut tree);
    trees::add(&mut work, &mut tree);
    if work.report.is_fatal() {
        return Err(work.report);
    }
    set_version(&mut tree, minor, at);
    work.origins.rename("$.ignition.version", "$.version");
    Ok(Translated {
        tree,
        minor,
        report: work.report,
        origins: work.origins,
    })
}

/// What the steps share.
struct Work<'a> {
    options: Options<'a>,
    minor: u8,
    nested: bool,
    report: Report,
    origins: Origins,
}

fn set_version(tree: &mut Node, minor: u8, at: Option<At>) {
    let version = match minor {
        7 => "3.7.0-experimental".to_owned(),
        minor => format!("3.{minor}.0"),
    };
    if let Some(ignition) = tree.entry("ignition", Node::empty) {
        ignition.put("version", Node::text_at(version, at));
    }
}

/// Variant and version, found before anything else is read.
fn version(yaml: &Json) -> Result<(Variant, u8), Report> {
    let refuse = |key: &str, message: String| {
        let mut report = Report::default();
        let at = yaml.value.get(key).unwrap_or(yaml).at.clone();
        report.error(&format!("$.{key}"), Some(&at), message);
        report
    };
    let word = |key: &str| match yaml.value.get(key).map(|json| &json.value) {
        Some(Value::Text(text) | Value::Plain(text)) => text.as_str(),
        _ => "",
    };
    let name = word("variant");
    let variant = match name {
        "fcos" => Variant::Fcos,
        "flatcar" => Variant::Flatcar,
        "slipway" => Variant::Slipway,
        found => {
            let message = format!("found {found:?}; expected fcos, flatcar or slipway");
            return Err(refuse("variant", message));
        }
    };
    let of_variant = || VERSIONS.iter().filter(|(variant, _, _)| *variant == name);
    match of_variant().find(|(_, version, _)| *version == word("version")) {
        Some((_, _, minor)) => Ok((variant, *minor)),
        None => {
            let known: Vec<&str> = of_variant().map(|(_, version, _)| *version).collect();
            let message = match yaml.value.get("version") {
                Some(_) => format!(
                    "found {:?}; expected one of {}",
                    word("version"),
                    known.join(", ")
                ),
                None => format!("missing; {name} has the versions {}", known.join(", ")),
            };
            Err(refuse("version", message))
        }
    }
}

/// The document without the sections that are refused.
fn without_foreign(yaml: &Json, report: &mut Report) -> Json {
    let mut yaml = yaml.clone();
    if let Value::Object(entries) = &mut yaml.value {
        entries.retain(|(key, at, _)| {
            let foreign = FOREIGN.iter().find(|(name, _)| name == key);
            if let Some((name, why)) = foreign {
                let message = format!("{name} is not for Slipway: {why}");
                report.error(&format!("$.{name}"), Some(at), message);
            }
            foreign.is_none()
        });
    }
    yaml
}
