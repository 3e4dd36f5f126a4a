//! Butane: YAML for people, translated to the Ignition config that it stands for.
//!
//! The steps for a document: `version` finds variant and version → [`crate::tree::read_butane`] reads the document by
//! the one schema, sugar included → `rules` checks the sugar → `sugar` expands it. The result is checked by Ignition's
//! rules of the version that Butane emits, and `origins` maps the paths of the findings back to those of the YAML.

mod rules;
mod version;

use crate::origins::Origins;
use crate::read::json::Json;
use crate::report::{Position, Report};
use crate::schema::CONFIG;
use crate::sugar::{self, CheckInner, Work};
use crate::tree::{self, Node};

pub use crate::sugar::{Options, Pack};

/// A translated document.
pub(crate) struct Translated {
    /// The config in the form of Ignition 3.`minor`, unchecked.
    pub(crate) tree: Node,
    /// The minor number of its specification.
    pub(crate) minor: u8,
    /// The findings of the translation.
    pub(crate) report: Report,
    /// The positions in the YAML of the config's parts.
    pub(crate) origins: Origins,
}

/// Translates a document. `check_inner` checks the configs inside it; none if the document is itself inside another
/// one: one level is enough, since a node checks the deeper levels when it reads them.
///
/// # Errors
/// Every mistake that is found before Ignition's own rules.
pub(crate) fn translate(
    yaml: &Json,
    options: Options<'_>,
    check_inner: Option<CheckInner>,
) -> Result<Translated, Report> {
    let (variant, minor) = version::find(yaml)?;
    let mut report = Report::default();
    let yaml = version::without_refused(yaml, &mut report);
    let mut reading = Report::default();
    let mut tree = tree::read_butane(&yaml, &CONFIG, minor, &mut reading);
    tree.take("variant");
    let at = tree.take("version").and_then(|node| node.at);
    // Values of a wrong type are missing in the tree, so that the rules would report them a second time.
    let unreadable = reading.is_fatal();
    report.absorb(reading);
    if unreadable {
        return Err(report);
    }
    rules::check(&tree, variant, minor, &mut report);
    let mut work = Work {
        options,
        minor,
        check_inner,
        report,
        origins: Origins::default(),
    };
    sugar::expand(&mut work, &mut tree);
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

fn set_version(tree: &mut Node, minor: u8, at: Option<Position>) {
    let version = match minor {
        7 => "3.7.0-experimental".to_owned(),
        minor => format!("3.{minor}.0"),
    };
    if let Some(ignition) = tree.entry("ignition", Node::empty) {
        ignition.put("version", Node::text_at(version, at));
    }
}
