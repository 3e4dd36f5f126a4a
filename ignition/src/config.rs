//! A config: read from text, checked by its own version's rules, and held in the newest form.

use std::collections::BTreeMap;

use crate::report::Report;
use crate::schema::CONFIG;
use crate::tree::{Node, Value};
use crate::{json, merge, model, tree, validate};

/// The newest version, the form of every [`Config`].
pub const NEWEST: &str = "3.7.0-experimental";
/// Its minor number.
const NEWEST_MINOR: u8 = 7;

/// A config without errors, in the form of the newest version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    tree: Node,
}

impl Config {
    /// The config that says nothing: what a node without one has.
    #[must_use]
    pub fn empty() -> Self {
        let mut tree = Node::empty();
        set_version(&mut tree);
        Self { tree }
    }

    /// Reads, checks and translates one config. `source` is what messages call the text.
    ///
    /// # Errors
    /// Every mistake at once (and the warnings beside them).
    pub fn parse(text: &[u8], source: &str) -> Result<(Self, Report), Report> {
        let (mut tree, minor, mut report) = read(text, source)?;
        // Values of a wrong type are missing in the tree, so that the rules would complain of them twice.
        if !report.is_fatal() {
            report.absorb(validate::validate(&tree, minor));
        }
        if report.is_fatal() {
            return Err(report);
        }
        translate(&mut tree, minor);
        Ok((Self { tree }, report))
    }

    /// As [`Config::parse`] without the rules: what can be read, valid or not.
    ///
    /// # Errors
    /// Every value of a wrong type at once.
    pub fn read(text: &[u8], source: &str) -> Result<(Self, Report), Report> {
        let (mut tree, minor, report) = read(text, source)?;
        if report.is_fatal() {
            return Err(report);
        }
        translate(&mut tree, minor);
        Ok((Self { tree }, report))
    }

    /// This config under `child`, unchecked.
    #[must_use]
    pub fn over(&self, child: &Self) -> Self {
        Self {
            tree: merge::merge(&self.tree, &child.tree, &CONFIG),
        }
    }

    /// This config under `child`, checked again.
    ///
    /// # Errors
    /// What is wrong only with the two together.
    pub fn merge(&self, child: &Self) -> Result<(Self, Report), Report> {
        let merged = self.over(child);
        let report = validate::validate(&merged.tree, NEWEST_MINOR);
        if report.is_fatal() {
            return Err(report);
        }
        Ok((merged, report))
    }

    /// The typed form.
    ///
    /// # Errors
    /// Never for a config that was read by this crate.
    pub fn model(&self) -> Result<model::Config, String> {
        model::of(&self.tree)
    }

    /// The tree, with the place of every value.
    #[must_use]
    pub fn tree(&self) -> &Node {
        &self.tree
    }

    /// JSON in the form that Ignition itself writes.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        tree::to_json(&self.tree, &CONFIG)
    }
}

/// The tree of a text, its version's minor number, and what is wrong with keys and types.
fn read(text: &[u8], source: &str) -> Result<(Node, u8, Report), Report> {
    let json = json::parse(text, source)?;
    let minor = version_of(&json)?;
    let mut report = Report::default();
    let tree = tree::read(&json, &CONFIG, minor, &mut report);
    Ok((tree, minor, report))
}

/// The minor number of the config's version; found before anything else of it is read.
fn version_of(json: &json::Json) -> Result<u8, Report> {
    let mut report = Report::default();
    let nothing = &mut Report::default();
    // The schema of 3.0 is enough to find the version, and its complaints are not asked for yet.
    let tree = tree::read(json, &CONFIG, 0, nothing);
    let ignition = tree.get("ignition");
    let at = ignition.and_then(|ignition| ignition.get("version")?.at.clone());
    let at = at
        .or_else(|| ignition?.at.clone())
        .or(Some(json.at.clone()));
    let version = ignition.and_then(|ignition| ignition.text("version"));
    let minor = match version.unwrap_or_default() {
        "3.0.0" => 0,
        "3.1.0" => 1,
        "3.2.0" => 2,
        "3.3.0" => 3,
        "3.4.0" => 4,
        "3.5.0" => 5,
        "3.6.0" => 6,
        NEWEST => NEWEST_MINOR,
        found => {
            let found = match found {
                "" => "no version".to_owned(),
                found => format!("version {found:?}"),
            };
            let message = format!("found {found}; expected 3.0.0 to 3.6.0 or {NEWEST}");
            report.error("$.ignition.version", at.as_ref(), message);
            return Err(report);
        }
    };
    Ok(minor)
}

/// From 3.`minor` to the newest. All fields have the same form in every version, but for these: the special
/// mode bits did nothing before 3.6; a link's target was a required string before 3.3; and Ignition's own
/// step from 3.4 drops the advertisement of a tang server, which is then asked for it.
fn translate(tree: &mut Node, minor: u8) {
    let storage = fields(tree).and_then(|fields| fields.get_mut("storage"));
    let Some(storage) = storage.and_then(fields) else {
        return set_version(tree);
    };
    for list in ["files", "directories"] {
        for node in items(storage, list).filter(|_| minor < 6) {
            if let Some(Node {
                value: Value::Number(mode),
                ..
            }) = node.get_mut("mode")
            {
                *mode &= !0o7000;
            }
        }
    }
    for node in items(storage, "links").filter(|_| minor < 3) {
        let empty = || Node {
            at: None,
            value: Value::Text(String::new()),
        };
        node.entry("target").or_insert_with(empty);
    }
    for node in items(storage, "luks").filter(|_| minor == 4) {
        if let Some(clevis) = node.get_mut("clevis").and_then(fields) {
            items(clevis, "tang").for_each(|tang| drop(tang.remove("advertisement")));
        }
    }
    set_version(tree);
}

type Fields = BTreeMap<&'static str, Node>;

fn fields(node: &mut Node) -> Option<&mut Fields> {
    match &mut node.value {
        Value::Struct(fields) => Some(fields),
        _ => None,
    }
}

fn items<'a>(of: &'a mut Fields, list: &str) -> impl Iterator<Item = &'a mut Fields> {
    let items: &mut [Node] = match of.get_mut(list).map(|list| &mut list.value) {
        Some(Value::List(items)) => items,
        _ => &mut [],
    };
    items.iter_mut().filter_map(fields)
}

fn set_version(tree: &mut Node) {
    let Value::Struct(fields) = &mut tree.value else {
        return;
    };
    let ignition = fields.entry("ignition").or_insert_with(Node::empty);
    if let Value::Struct(fields) = &mut ignition.value {
        let at = fields.get("version").and_then(|node| node.at.clone());
        let value = Value::Text(NEWEST.to_owned());
        fields.insert("version", Node { at, value });
    }
}
