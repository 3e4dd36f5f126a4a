//! Contents: inline text and local files become data URLs, the text of units, and keys.

use super::work::{Options, Work};
use crate::data_url;
use crate::local_files::inside;
use crate::report::{Kind, Position};
use crate::schema::{CONFIG, Item, REFERENCE, RESOURCE, Shape, Struct, snake};
use crate::tree::{Node, Value};

/// Moves all contents to the fields that Ignition reads.
pub(super) fn translate(work: &mut Work<'_>, tree: &mut Node) {
    resources(work, tree, &CONFIG, "$");
    if let Some(systemd) = tree.get_mut("systemd") {
        for (i, unit) in systemd.items_mut("units").iter_mut().enumerate() {
            let path = format!("$.systemd.units.{i}");
            unit_text(work, unit, &path);
            for (j, dropin) in unit.items_mut("dropins").iter_mut().enumerate() {
                unit_text(work, dropin, &format!("{path}.dropins.{j}"));
            }
        }
    }
    if let Some(passwd) = tree.get_mut("passwd") {
        for (i, user) in passwd.items_mut("users").iter_mut().enumerate() {
            keys(work, user, &format!("$.passwd.users.{i}"));
        }
    }
}

/// Translates every resource below a node. `path` is in Ignition's spelling.
fn resources(work: &mut Work<'_>, node: &mut Node, schema: &'static Struct, path: &str) {
    let is = |of: &'static Struct| std::ptr::eq(schema, of);
    if is(&RESOURCE) || is(&REFERENCE) {
        resource(work, node, path);
    }
    for field in schema.fields {
        let path = format!("{path}.{}", field.name);
        match field.shape {
            Shape::Struct(schema) => {
                if let Some(child) = node.get_mut(field.name) {
                    resources(work, child, schema, &path);
                }
            }
            Shape::List(Item::Struct(schema), _) => {
                for (i, child) in node.items_mut(field.name).iter_mut().enumerate() {
                    resources(work, child, schema, &format!("{path}.{i}"));
                }
            }
            _ => {}
        }
    }
}

fn resource(work: &mut Work<'_>, node: &mut Node, path: &str) {
    let place = snake(path);
    let local = node.take("local");
    let inline = node.take("inline");
    let given = [
        local.as_ref().map(|node| ("local", node)),
        inline.as_ref().map(|node| ("inline", node)),
        node.get("source").map(|node| ("source", node)),
    ];
    let given: Vec<_> = given.into_iter().flatten().collect();
    if let [_, .., (name, last)] = given.as_slice() {
        let message = "expected only one of inline, local and source";
        let at = last.at.clone();
        work.report
            .error(&format!("{place}.{name}"), at.as_ref(), message);
        return;
    }
    let (name, from, bytes) = match (local, inline) {
        (Some(local), _) => match file(work, &local, &format!("{place}.local")) {
            Some(bytes) => ("local", local, bytes),
            None => return,
        },
        (None, Some(inline)) if work.minor == 0 && path.starts_with("$.ignition") => {
            // The first version had `inline` for files only.
            let message = "unused key inline";
            return work
                .report
                .warn(&format!("{place}.inline"), inline.at.as_ref(), message);
        }
        (None, Some(inline)) => {
            let bytes = inline.as_text().unwrap_or_default().as_bytes().to_vec();
            ("inline", inline, bytes)
        }
        (None, None) => return,
    };
    let packed = node
        .text("compression")
        .is_some_and(|text| !text.is_empty());
    if path.starts_with("$.ignition.config") && !packed {
        inner(work, &bytes, &format!("{place}.{name}"), from.at.as_ref());
    }
    let url = data_url(&bytes, packed, work.minor, work.options);
    work.origins
        .rename(format!("{path}.source"), format!("{place}.{name}"));
    node.put("source", Node::text_at(url.text, from.at.clone()));
    if let Some(compression) = url.compression {
        work.origins
            .made(format!("{path}.compression"), format!("{place}.{name}"));
        node.put(
            "compression",
            Node::text_at(compression.to_owned(), from.at),
        );
    }
}

/// Checks a config inside the config too, as a node does when it reads it.
fn inner(work: &mut Work<'_>, bytes: &[u8], place: &str, at: Option<&Position>) {
    let Some(check) = work.check_inner else {
        return;
    };
    for entry in check(bytes, place).entries {
        let inside = entry.at.map_or_else(String::new, |at| {
            format!(" (line {}, column {} of it)", at.line, at.column)
        });
        let message = format!(
            "the config in it: {}: {}{inside}",
            entry.path, entry.message
        );
        match entry.kind {
            Kind::Error => work.report.error(place, at, message),
            Kind::Warning => work.report.warn(place, at, message),
        }
    }
}

fn unit_text(work: &mut Work<'_>, node: &mut Node, path: &str) {
    let Some(local) = node.take("contents_local") else {
        return;
    };
    if local.as_text().is_none_or(str::is_empty) {
        return;
    }
    let place = format!("{path}.contents_local");
    if let Some(text) = text(work, &local, &place) {
        work.origins.rename(format!("{path}.contents"), place);
        node.put("contents", Node::text_at(text, local.at));
    }
}

/// Each line of a local file is a key.
fn keys(work: &mut Work<'_>, node: &mut Node, path: &str) {
    let Some(locals) = node.take("ssh_authorized_keys_local") else {
        return;
    };
    let mut keys = match node.take("sshAuthorizedKeys").map(|keys| keys.value) {
        Some(Value::List(keys)) => keys,
        _ => Vec::new(),
    };
    let Value::List(files) = locals.value else {
        return;
    };
    for (i, local) in files.into_iter().enumerate() {
        let place = format!("{path}.ssh_authorized_keys_local.{i}");
        let Some(text) = text(work, &local, &place) else {
            continue;
        };
        for line in text
            .split('\n')
            .map(|line| line.strip_suffix('\r').unwrap_or(line))
        {
            if !line.is_empty() {
                let to = format!("{path}.sshAuthorizedKeys.{}", keys.len());
                work.origins.made(to, &*place);
                keys.push(Node::text_at(line.to_owned(), local.at.clone()));
            }
        }
    }
    let (at, value) = (locals.at, Value::List(keys));
    node.put("sshAuthorizedKeys", Node { at, value });
}

fn text(work: &mut Work<'_>, local: &Node, place: &str) -> Option<String> {
    let bytes = file(work, local, place)?;
    let text = String::from_utf8(bytes);
    if text.is_err() {
        let message = "the file is not UTF-8";
        work.report.error(place, local.at.as_ref(), message);
    }
    text.ok()
}

/// A local file's bytes; an error is reported if it cannot be read.
pub(super) fn file(work: &mut Work<'_>, local: &Node, place: &str) -> Option<Vec<u8>> {
    let path = inside(local.as_text().unwrap_or_default());
    let read = |path: String| work.options.files.read(&path);
    match path.map_err(str::to_owned).and_then(read) {
        Ok(bytes) => Some(bytes),
        Err(why) => {
            work.report.error(place, local.at.as_ref(), why);
            None
        }
    }
}

/// A data URL, and the compression of its content.
pub(super) struct DataUrl {
    pub(super) text: String,
    pub(super) compression: Option<&'static str>,
}

/// The shortest of three forms: escaped, base64, and packed base64 unless the contents are `packed` already. The
/// compression is always set, so that a parent's is not inherited; the first version did none of that.
pub(super) fn data_url(bytes: &[u8], packed: bool, minor: u8, options: Options<'_>) -> DataUrl {
    let escaped = data_url::percent_encoded(bytes);
    if minor == 0 {
        return DataUrl {
            text: escaped,
            compression: None,
        };
    }
    let mut shortest = DataUrl {
        text: escaped,
        compression: (!packed).then_some(""),
    };
    let plain = data_url::base64_encoded(bytes);
    if plain.len() < shortest.text.len() {
        shortest.text = plain;
    }
    if let Some(pack) = options.pack.filter(|_| !packed) {
        let text = data_url::base64_encoded(&pack(bytes));
        if text.len() + "gzip".len() < shortest.text.len() {
            let compression = Some("gzip");
            shortest = DataUrl { text, compression };
        }
    }
    shortest
}
