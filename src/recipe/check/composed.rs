//! `[[containers.composed]]`: images that the build makes of Debian packages.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use super::references::is_name;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::Node;

/// An image of Debian packages: they and all that they need are installed as in the image's root, in a folder of their own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawComposed {
    /// The name by which pods find it, as registry.example/name:tag. Required.
    pub name: Option<String>,
    /// Its packages; what they depend on and Debian's essential ones come with them. Required.
    pub packages: Vec<String>,
    /// The program, an absolute path, and its first arguments. Default: none, so that each pod names its command.
    pub entrypoint: Vec<String>,
    /// Arguments behind `entrypoint`, in place of which a pod may give others.
    pub arguments: Vec<String>,
    /// User and group of its programs as numbers, "1000:1000". Default: root.
    pub user: Option<String>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// A command that the build runs in it as root, with `environment` and without a network; if it fails, the build does.
    pub check: Vec<String>,
}

/// An image that the build makes of Debian packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Composed {
    /// Its name with a tag.
    pub name: String,
    /// The packages that are asked for.
    pub packages: Vec<String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Its default arguments.
    pub arguments: Vec<String>,
    /// User and group as numbers; empty for root.
    pub user: String,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// The command that has to succeed in it.
    pub check: Vec<String>,
}

impl Composed {
    /// The begin of the names of such sets.
    pub const SET: &str = "image ";

    /// The name of its set of packages in a lock.
    #[must_use]
    pub fn set(&self) -> String {
        format!("{}{}", Self::SET, self.name)
    }
}

/// Where the images are in a recipe.
const LIST: &str = "containers.composed";

/// Checks the images; `prebuilt` has the names of those that others built.
pub(super) fn check(
    check: &mut Check<'_>,
    raw: &[RawComposed],
    prebuilt: &BTreeMap<String, Place>,
) -> Vec<Composed> {
    let items = check.find(LIST).map_or(&[][..], Node::items);
    let mut named: BTreeMap<&str, Place> = BTreeMap::new();
    let mut all = Vec::new();
    for (raw, item) in raw.iter().zip(items) {
        let image = one(check, raw, item);
        if let Some(name) = &raw.name
            && let Some(before) = named.insert(name, item.place.clone())
        {
            let found = format!("`{name}` is given twice in `{LIST}`");
            let mistake = Mistake::at(&item.place, found, "expected each name once");
            check.add(mistake.also(&before, "first given here"));
        }
        if let Some(name) = &raw.name
            && let Some(other) = prebuilt.get(name)
        {
            let place = &item.at(&["name"]).unwrap_or(item).place;
            let found = format!("`{name}` is in `{LIST}` and in `containers.prebuilt`");
            let mistake = Mistake::at(place, found, "expected each name once");
            check.add(mistake.also(other, "the other image"));
        }
        all.push(image);
    }
    all
}

fn one(check: &mut Check<'_>, raw: &RawComposed, item: &Node) -> Composed {
    let place = |key: &str| item.at(&[key]).unwrap_or(item).place.clone();
    let lost = |check: &Check<'_>, key: &str| {
        let key = format!("{LIST}[].{key}");
        check.gone.iter().any(|gone| gone.starts_with(&key))
    };
    match &raw.name {
        Some(name) => {
            if let Err(why) = is_name(name) {
                let found = format!("{name:?} is not the name of an image: {why}");
                check.add(Mistake::at(
                    &place("name"),
                    found,
                    "expected registry.example/name:tag",
                ));
            }
        }
        None if lost(check, "name") => {}
        None => check.add(Mistake::at(
            &item.place,
            format!("an image of `{LIST}` without a name"),
            "expected name = \"registry.example/name:tag\", by which pods find it",
        )),
    }
    if raw.packages.is_empty() && !lost(check, "packages") {
        check.add(Mistake::at(
            &place("packages"),
            format!("an image of `{LIST}` without packages"),
            "expected packages = [\"name\"]",
        ));
    }
    let packages = item.at(&["packages"]).map_or(&[][..], Node::items);
    for (number, node) in packages.iter().enumerate() {
        let Some(text) = node.text() else {
            continue;
        };
        if let Err(why) = Rule::Package.check(text) {
            check.add(why.mistake(&node.place));
        } else if packages[..number]
            .iter()
            .any(|before| before.text() == Some(text))
        {
            let found = format!("`{text}` is given twice in `{LIST}.packages`");
            check.add(Mistake::at(&node.place, found, "expected each name once"));
        }
    }
    for (key, command) in [("entrypoint", &raw.entrypoint), ("check", &raw.check)] {
        if let Some(program) = command.first()
            && !program.starts_with('/')
        {
            let found = format!("{program:?} is not an absolute path");
            check.add(Mistake::at(
                &place(key),
                found,
                "expected one of the image, as /usr/bin/name",
            ));
        }
    }
    if let Some(user) = &raw.user
        && !are_numbers(user)
    {
        let found = format!("{user:?} is not a user and a group");
        check.add(Mistake::at(
            &place("user"),
            found,
            "expected two numbers, as 1000:1000",
        ));
    }
    check.environment(&raw.environment, item);
    Composed {
        name: raw.name.clone().unwrap_or_default(),
        packages: raw.packages.clone(),
        entrypoint: raw.entrypoint.clone(),
        arguments: raw.arguments.clone(),
        user: raw.user.clone().unwrap_or_default(),
        environment: raw.environment.clone(),
        check: raw.check.clone(),
    }
}

/// Whether a text is the numbers of a user and a group.
fn are_numbers(text: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().is_ok_and(|number| number < u32::MAX);
    text.split_once(':')
        .is_some_and(|(user, group)| number(user) && number(group))
}
