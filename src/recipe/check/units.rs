//! `[units]`: units to enable, disable and mask.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// What systemd starts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawUnits {
    /// Units to enable, as systemctl enable does.
    pub enable: Vec<String>,
    /// Units to disable.
    pub disable: Vec<String>,
    /// Units to mask: nothing can start them.
    pub mask: Vec<String>,
}

/// Units to enable, disable and mask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Units {
    /// Units that are enabled.
    pub enable: Vec<String>,
    /// Units that are disabled.
    pub disable: Vec<String>,
    /// Units that are masked.
    pub mask: Vec<String>,
}

impl Check<'_> {
    pub(super) fn units(&mut self, raw: RawUnits) -> Units {
        let RawUnits {
            enable,
            disable,
            mask,
        } = raw;
        let lists = ["units.enable", "units.disable", "units.mask"];
        for path in lists {
            self.list(path, Rule::Unit);
        }
        for (number, path) in lists.iter().enumerate() {
            for other in &lists[..number] {
                self.apart(path, other);
            }
        }
        Units {
            enable,
            disable,
            mask,
        }
    }

    /// Checks that no name is in both lists.
    pub(super) fn apart(&mut self, path: &str, other: &str) {
        let items = |path| self.find(path).map_or(&[][..], Node::items);
        let (these, those) = (items(path), items(other));
        for item in these {
            let Some(text) = item.text() else { continue };
            if let Some(twin) = those.iter().find(|twin| twin.text() == Some(text)) {
                let mistake = Mistake::at(
                    &item.place,
                    format!("`{text}` is in `{path}` and in `{other}`"),
                    "expected it in one of them",
                );
                self.add(mistake.also(&twin.place, "the other one"));
            }
        }
    }
}
