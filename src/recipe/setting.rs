//! A value of the command line, as `image.version=1.4`, that is laid over a recipe's files.

use super::mistakes::{Mistake, Mistakes, SETTING};
use super::schema::{self, allows, resolve, words};
use super::tree::{self, Node};

/// The tree of a setting. A key is written as in TOML; a value too, but a text needs no quotes, and a list of names neither quotes nor
/// brackets.
pub(super) fn tree(setting: &str, mistakes: &mut Mistakes) -> Option<Node> {
    let Some((key, value)) = split(setting) else {
        let found = format!("the setting {setting:?} has no `=`");
        let help = "write it as KEY=VALUE, as image.version=1.4";
        mistakes.add(Mistake::nowhere(found).help(help));
        return None;
    };
    let text = format!("{key} = {}", written(key, value));
    let file = mistakes.file(SETTING.into(), text);
    let before = mistakes.len();
    let tree = tree::parse(file, mistakes);
    (mistakes.len() == before).then_some(tree)
}

/// The mistake of a setting of what decides which files are read, as `extends`: they are read before any setting.
pub(super) fn of_files_alone(tree: &Node) -> Option<Mistake> {
    if let Some(entry) = tree.entry("extends") {
        let found = "a setting cannot say what a recipe extends";
        let mistake = Mistake::at(&entry.key, found, "expected `extends` in a file");
        return Some(
            mistake.help("write a recipe that extends both, and give it in place of this one"),
        );
    }
    let entry = tree.entry("variants")?;
    let found = "a setting cannot change a variant: it is laid over the chosen one";
    let mistake = Mistake::at(&entry.key, found, "expected the key without the variant");
    let help = match entry.node.only() {
        Some((name, _)) => {
            format!("leave out `variants.{name}.`, and choose the variant by --variant {name}")
        }
        None => "choose a variant by --variant".to_owned(),
    };
    Some(mistake.help(help))
}

/// The key and the value: a key's quotes may hold the sign.
fn split(setting: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let at = setting.char_indices().find_map(|(at, c)| match quote {
        Some(open) => {
            quote = (c != open).then_some(open);
            None
        }
        None if c == '"' || c == '\'' => {
            quote = Some(c);
            None
        }
        None => (c == '=').then_some(at),
    })?;
    let (key, value) = setting.split_at(at);
    Some((key.trim(), value.get(1..)?.trim()))
}

/// The value as TOML has it.
fn written(key: &str, value: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let root = schema::value();
    let mut scratch = Mistakes::default();
    let file = scratch.file(SETTING.into(), format!("{key} = 0"));
    let mut node = tree::parse(file, &mut scratch);
    let mut kind = &root;
    while let Some((name, inner)) = node.only() {
        kind = resolve(&root, kind);
        kind = kind["properties"]
            .get(&name)
            .unwrap_or(&kind["additionalProperties"]);
        node = inner;
    }
    let kind = resolve(&root, kind);
    // Of an unknown key the key is the mistake, not its value.
    let is_text = !kind.is_object() || allows(kind, "string") || words(kind).is_some();
    if value.starts_with(['"', '\'', '[', '{']) {
        value.to_owned()
    } else if is_text {
        quoted(value)
    } else if allows(kind, "array") {
        let names = value.split(',').map(|name| quoted(name.trim()));
        format!("[{}]", names.collect::<Vec<_>>().join(", "))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_its_key_wants_it() {
        for (setting, toml) in [
            ("image.version=1.4", "image.version = \"1.4\""),
            ("image.version='1.4'", "image.version = '1.4'"),
            (
                "debian.packages=jq, curl",
                "debian.packages = [\"jq\", \"curl\"]",
            ),
            ("debian.packages=[\"-jq\"]", "debian.packages = [\"-jq\"]"),
            (
                "files.\"/etc/a=b\".content=c=d",
                "files.\"/etc/a=b\".content = \"c=d\"",
            ),
            (
                "variants.aws.image.name=x",
                "variants.aws.image.name = \"x\"",
            ),
            ("kernel.lockdown=none", "kernel.lockdown = \"none\""),
            ("kernel.platform=x", "kernel.platform = \"x\""),
        ] {
            let mut mistakes = Mistakes::default();
            assert!(tree(setting, &mut mistakes).is_some(), "{setting}");
            assert_eq!(mistakes.text(0), toml);
        }
    }

    #[test]
    fn what_is_no_setting_is_said() {
        for (setting, words) in [
            ("image.version", "has no `=`"),
            ("image..version=1", "--set:1:7"),
            ("=1", "--set:1:2"),
        ] {
            let mut mistakes = Mistakes::default();
            assert!(tree(setting, &mut mistakes).is_none());
            let said = mistakes.render(false);
            assert!(said.contains(words), "{said}");
        }
    }
}
