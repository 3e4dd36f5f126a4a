//! `[[build.run]]`: programs that the build runs in the packages' root.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use crate::host::tree;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// What the build does in the image beside installing packages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawBuild {
    /// Programs that run in the packages' root, in this order, without a network. What they change is in the image, below `[files]`.
    pub run: Vec<RawRun>,
}

/// A program of the image, run as root in a sandbox when the image is built.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawRun {
    /// Its name in messages and in the record: lower-case letters, digits and hyphens. Required.
    pub name: Option<String>,
    /// The program and its arguments; a program without a slash is looked for in the image. Required.
    pub command: Vec<String>,
    /// Files and folders for it, read-only in its working folder under their own names; paths relative to this recipe.
    pub inputs: Vec<String>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
}

/// A program that the build runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Names in its working folder, and what is there. Their content is in the key of what it makes.
    #[serde(skip)]
    pub inputs: BTreeMap<String, PathBuf>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// Where the recipe has it, for messages.
    #[serde(skip)]
    pub origin: String,
}

pub(super) fn check(check: &mut Check<'_>, raw: &RawBuild) -> Vec<Run> {
    let items = check.find("build.run").map_or(&[][..], Node::items);
    let mut all: Vec<Run> = Vec::new();
    for (raw, item) in raw.run.iter().zip(items) {
        let run = run(check, raw, item);
        if all.iter().any(|before| before.name == run.name) && !run.name.is_empty() {
            let found = format!("two programs of `build.run` are called {}", run.name);
            let place = item.at(&["name"]).unwrap_or(item).place.clone();
            check.add(Mistake::at(&place, found, "expected each name once"));
        }
        all.push(run);
    }
    all
}

fn run(check: &mut Check<'_>, raw: &RawRun, item: &Node) -> Run {
    let place = |key: &str| item.at(&[key]).unwrap_or(item).place.clone();
    let lost = |check: &Check<'_>, key: &str| {
        let key = format!("build.run[].{key}");
        check.gone.iter().any(|gone| gone.starts_with(&key))
    };
    match &raw.name {
        Some(name) => {
            if let Err(why) = Rule::RunName.check(name) {
                check.add(why.mistake(&place("name")));
            }
        }
        None if lost(check, "name") => {}
        None => check.add(Mistake::at(
            &item.place,
            "a program of `build.run` without a name",
            "expected name = \"…\", for messages",
        )),
    }
    let no_program = raw.command.first().is_none_or(String::is_empty);
    if no_program && !lost(check, "command") {
        check.add(Mistake::at(
            &place("command"),
            "a program of `build.run` without a command",
            "expected command = [\"program\", \"argument\"]",
        ));
    }
    check.environment(&raw.environment, item);
    Run {
        name: raw.name.clone().unwrap_or_default(),
        command: raw.command.clone(),
        inputs: inputs(check, raw, item),
        environment: raw.environment.clone(),
        origin: check.mistakes.position(&item.place),
    }
}

fn inputs(check: &mut Check<'_>, raw: &RawRun, item: &Node) -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    let nodes = item.at(&["inputs"]).map_or(&[][..], Node::items);
    for (text, node) in raw.inputs.iter().zip(nodes) {
        let path = check.host_path(&node.place, text);
        let name = path.file_name().map(|name| name.to_string_lossy());
        let Some(name) = name.map(std::borrow::Cow::into_owned) else {
            let found = format!("{text:?} has no name of its own");
            check.add(Mistake::at(
                &node.place,
                found,
                "expected a file or a folder",
            ));
            continue;
        };
        let usable = match path.is_dir() {
            true => tree::walk(&path).map(|_| ()),
            false => std::fs::File::open(&path).map(|_| ()).map_err(Into::into),
        };
        if let Err(error) = usable {
            let found = format!("reading {} failed: {error:#}", path.display());
            let expected = "expected a file or a folder, relative to this recipe";
            check.add(Mistake::at(&node.place, found, expected));
        } else if all.insert(name.clone(), path).is_some() {
            let found = format!("two inputs are called {name}");
            check.add(Mistake::at(&node.place, found, "expected different names"));
        }
    }
    all
}
