//! A config: read from text, checked by its own version's rules, and held in the newest form.

mod language;

use crate::butane::{self, Options};
use crate::data_url;
use crate::origins::Origins;
use crate::read::json;
use crate::report::Report;
use crate::schema::CONFIG;
use crate::sugar::CheckInner;
use crate::tree::{Node, Value};
use crate::{merge, model, spec2, tree, validate};
use language::{Text, detect};

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
    /// The empty config: that of a node without one.
    #[must_use]
    pub fn empty() -> Self {
        let mut tree = Node::empty();
        set_version(&mut tree, NEWEST);
        Self { tree }
    }

    /// Reads, checks and translates one config, Ignition JSON (of specification 2 as well) or Butane YAML without local
    /// files. `source` is the name
    /// of the text in messages.
    ///
    /// # Errors
    /// Every mistake at once (and the warnings beside them).
    pub fn parse(text: &[u8], source: &str) -> Result<(Self, Report), Report> {
        Self::parse_with(text, source, Options::BARE)
    }

    /// As [`Config::parse`], with the local files of a Butane config.
    ///
    /// # Errors
    /// Every mistake at once (and the warnings beside them).
    pub fn parse_with(
        text: &[u8],
        source: &str,
        options: Options<'_>,
    ) -> Result<(Self, Report), Report> {
        let Document {
            mut tree,
            minor,
            report,
            ..
        } = checked(read(text, source, options, Some(check_inner))?)?;
        translate(&mut tree, minor);
        Ok((Self { tree }, report))
    }

    /// As [`Config::parse`] without the rules: the config may be invalid.
    ///
    /// # Errors
    /// Every value of a wrong type at once.
    pub fn read(text: &[u8], source: &str) -> Result<(Self, Report), Report> {
        let Document {
            mut tree,
            minor,
            report,
            ..
        } = read(text, source, Options::BARE, Some(check_inner))?;
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
    /// The mistakes of the combination.
    pub fn merge(&self, child: &Self) -> Result<(Self, Report), Report> {
        let merged = self.over(child);
        let report = validate::validate(&merged.tree, NEWEST_MINOR);
        if report.is_fatal() {
            return Err(report);
        }
        Ok((merged, report))
    }

    /// The same with these certificates (PEM) in place of their sources, so that they need not be fetched again.
    #[must_use]
    pub fn with_authorities(mut self, pem: &[u8]) -> Self {
        let tls = self
            .tree
            .get_mut("ignition")
            .and_then(|ignition| ignition.get_mut("security")?.get_mut("tls"));
        if let Some(tls) = tls.filter(|tls| !tls.items("certificateAuthorities").is_empty()) {
            let url = data_url::base64_encoded(pem);
            let mut authority = Node::empty();
            authority.put("source", Node::text_at(url, None));
            let list = Node {
                at: None,
                value: Value::List(vec![authority]),
            };
            tls.put("certificateAuthorities", list);
        }
        self
    }

    /// The typed form.
    ///
    /// # Errors
    /// Never for a config that was read by this crate.
    pub fn model(&self) -> Result<model::Config, String> {
        model::of(&self.tree)
    }

    /// The tree, with the position of every value.
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

/// The Ignition config that a Butane config becomes: checked, in the version of the specification that Butane itself
/// emits, and with only the fields that the Butane config sets.
///
/// # Errors
/// Every mistake at once (and the warnings beside them); also if the text is not Butane.
pub fn from_butane(
    text: &[u8],
    source: &str,
    options: Options<'_>,
) -> Result<(serde_json::Value, Report), Report> {
    let document = checked(read(text, source, options, Some(check_inner))?)?;
    if !document.butane {
        let mut report = Report::default();
        let message = "this is Ignition JSON already; expected Butane YAML";
        report.error("$", document.tree.at.as_ref(), message);
        return Err(report);
    }
    Ok((
        tree::to_sparse_json(&document.tree, &CONFIG),
        document.report,
    ))
}

/// A config as Ignition JSON: the output of [`from_butane`] for Butane, or the text itself, checked.
///
/// # Errors
/// Every mistake at once (and the warnings beside them).
pub fn to_ignition(
    text: &[u8],
    source: &str,
    options: Options<'_>,
) -> Result<(Vec<u8>, Report), Report> {
    let document = checked(read(text, source, options, Some(check_inner))?)?;
    let text = match document.butane {
        true => tree::to_sparse_json(&document.tree, &CONFIG)
            .to_string()
            .into_bytes(),
        false => text.to_vec(),
    };
    Ok((text, document.report))
}

/// A parsed text.
struct Document {
    /// In the form of its own version; of 3.1 for one of specification 2.
    tree: Node,
    /// The minor number of the tree's version.
    minor: u8,
    /// The findings about keys and types, and those of a translation.
    report: Report,
    /// The paths in the text, if the tree was translated from Butane or from specification 2.
    origins: Option<Origins>,
    /// Whether the text is Butane.
    butane: bool,
}

/// The findings about a config inside another one.
fn check_inner(text: &[u8], source: &str) -> Report {
    let document = read(text, source, Options::BARE, None).and_then(checked);
    match document {
        Ok(Document { report, .. }) | Err(report) => report,
    }
}

fn read(
    text: &[u8],
    source: &str,
    options: Options<'_>,
    check_inner: Option<CheckInner>,
) -> Result<Document, Report> {
    let json = match detect(text, source)? {
        Text::Butane(yaml) => {
            let translated = butane::translate(&yaml, options, check_inner)?;
            return Ok(Document {
                tree: translated.tree,
                minor: translated.minor,
                report: translated.report,
                origins: Some(translated.origins),
                butane: true,
            });
        }
        Text::Ignition(json) => json,
    };
    let minor = match version_of(&json)? {
        Version::Three(minor) => minor,
        Version::Two(minor) => {
            let (tree, report, origins) = spec2::translate(&json, minor);
            return Ok(Document {
                tree,
                minor: spec2::BECOMES_MINOR,
                report,
                origins: Some(origins),
                butane: false,
            });
        }
    };
    let mut report = Report::default();
    let tree = tree::read(&json, &CONFIG, minor, &mut report);
    Ok(Document {
        tree,
        minor,
        report,
        origins: None,
        butane: false,
    })
}

/// A document that passed the rules of its version.
fn checked(mut document: Document) -> Result<Document, Report> {
    // Values of a wrong type are missing in the tree, so that the rules would report them a second time.
    if !document.report.is_fatal() {
        let mut found = validate::validate(&document.tree, document.minor);
        if let Some(origins) = &document.origins {
            origins.apply(&mut found);
        }
        document.report.absorb(found);
    }
    match document.report.is_fatal() {
        true => Err(document.report),
        false => Ok(document),
    }
}

/// A version of the specification, by its major number, with its minor number.
enum Version {
    Two(u8),
    Three(u8),
}

/// The config's version, determined before any other field is read.
fn version_of(json: &json::Json) -> Result<Version, Report> {
    let mut report = Report::default();
    let nothing = &mut Report::default();
    // The schema of 3.0 is enough to find the version; its findings are dropped.
    let tree = tree::read(json, &CONFIG, 0, nothing);
    let ignition = tree.get("ignition");
    let at = ignition.and_then(|ignition| ignition.get("version")?.at.clone());
    let at = at
        .or_else(|| ignition?.at.clone())
        .or(Some(json.at.clone()));
    let version = ignition.and_then(|ignition| ignition.text("version"));
    if let Some(minor) = spec2::minor(version.unwrap_or_default()) {
        return Ok(Version::Two(minor));
    }
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
            let message = format!(
                "found {found}; expected 3.0.0 to 3.6.0, {NEWEST}, or 2.0.0 to 2.4.0, which are translated"
            );
            report.error("$.ignition.version", at.as_ref(), message);
            return Err(report);
        }
    };
    Ok(Version::Three(minor))
}

/// From 3.`minor` to the newest. All fields have the same form in every version, with these exceptions: the special
/// mode bits had no effect before 3.6; a link's target was a required string before 3.3; and Ignition's own step from
/// 3.4 drops the advertisement of a tang server, which is then fetched.
fn translate(tree: &mut Node, minor: u8) {
    if let Some(storage) = tree.get_mut("storage") {
        for list in ["files", "directories"] {
            for node in storage.items_mut(list).iter_mut().filter(|_| minor < 6) {
                if let Some(Node {
                    value: Value::Number(mode),
                    ..
                }) = node.get_mut("mode")
                {
                    *mode &= !0o7000;
                }
            }
        }
        for node in storage.items_mut("links").iter_mut().filter(|_| minor < 3) {
            node.entry("target", || Node::text_at(String::new(), None));
        }
        // Texts that had to be given until 3.2 are there, and empty, in a later version: merged, they replace a parent's.
        for node in storage.items_mut("luks").iter_mut().filter(|_| minor < 3) {
            let clevis = node.get_mut("clevis");
            if let Some(custom) = clevis.and_then(|clevis| clevis.get_mut("custom")) {
                for key in ["config", "pin"] {
                    custom.entry(key, || Node::text_at(String::new(), None));
                }
            }
        }
        for node in storage.items_mut("luks").iter_mut().filter(|_| minor == 4) {
            if let Some(clevis) = node.get_mut("clevis") {
                for tang in clevis.items_mut("tang") {
                    tang.take("advertisement");
                }
            }
        }
    }
    set_version(tree, NEWEST);
}

fn set_version(tree: &mut Node, version: &str) {
    let Some(ignition) = tree.entry("ignition", Node::empty) else {
        return;
    };
    let at = ignition.get("version").and_then(|node| node.at.clone());
    ignition.put("version", Node::text_at(version.to_owned(), at));
}
