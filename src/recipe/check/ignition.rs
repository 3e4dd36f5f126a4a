//! `[ignition]`: the config in the initramfs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::node_config;

/// The Ignition config that is baked in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawIgnition {
    /// The config's file, Ignition JSON or Butane YAML; a path relative to this recipe. Butane's local files are
    /// relative to the config's folder.
    pub config: Option<String>,
}

/// The Ignition config that is baked in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BaseConfig {
    /// Its path, for messages.
    #[serde(skip)]
    pub name: String,
    /// Its text as Ignition JSON, translated if it was Butane.
    pub text: Vec<u8>,
}

impl Check<'_> {
    pub(super) fn ignition(&mut self, config: Option<&str>) -> Option<BaseConfig> {
        let place = self.place("ignition.config");
        let path = self.host_path(&place, config?);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) => {
                self.add(Mistake::at(
                    &place,
                    format!("reading the config {} failed: {error}", path.display()),
                    "expected a file of Ignition JSON or Butane YAML, relative to this recipe",
                ));
                return None;
            }
        };
        let name = path.display().to_string();
        match node_config::bake(&text, &path) {
            Ok(text) => Some(BaseConfig { name, text }),
            Err(report) => {
                let shown = String::from_utf8_lossy(&text).into_owned();
                let file = self.mistakes.file(path, shown);
                for entry in report.entries {
                    if entry.kind == ignition::Kind::Error {
                        self.config_mistake(file, &entry, &place);
                    }
                }
                None
            }
        }
    }

    /// A mistake of the config, shown in the config's text and at its name in the recipe.
    fn config_mistake(&mut self, file: usize, entry: &ignition::Entry, named: &Place) {
        let start = entry
            .at
            .as_ref()
            .map_or(0, |at| offset(self.mistakes.text(file), at.line, at.column));
        let place = Place::new(file, &(start..start));
        let mistake = Mistake::at(&place, format!("{}: {}", entry.path, entry.message), "here");
        self.add(mistake.also(named, "the config is named here"));
    }
}

/// The byte at a line and column that count from 1, columns in characters.
fn offset(text: &str, line: u32, column: u32) -> usize {
    let count = |number: u32| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let mut before = 0;
    for (number, text) in text.split_inclusive('\n').enumerate() {
        if number == count(line) {
            let inside = text.char_indices().nth(count(column));
            return before + inside.map_or(text.trim_end().len(), |(at, _)| at);
        }
        before += text.len();
    }
    before
}
