//! The objects in the files of an addon, YAML or JSON, each with its position.

use serde_json::Value;

use super::{File, FileMistake};
use crate::report::{Mistake, Position, Report};
use crate::yaml::{Content, Node, document, split};

/// An object of a file.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) value: Value,
    pub(super) file: String,
    pub(super) at: Position,
}

/// The objects of a file, in its order. Lists (`kind: List`) are opened.
pub(super) fn read(file: &File, mistakes: &mut Vec<FileMistake>) -> Vec<Placed> {
    let mut objects = Vec::new();
    let mut report = Report::default();
    match str::from_utf8(&file.content) {
        Ok(text) => {
            for (before, text) in split(text) {
                if let Some(node) = document(&text, before, &mut report) {
                    collect(&node, file, &mut report, &mut objects);
                }
            }
        }
        Err(error) => {
            let before = &file.content[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            report.refuse_at("", Position { line, column: 1 }, "not UTF-8");
        }
    }
    // A key that is there twice, which the API server refuses as well if it is asked to be strict.
    let twice = report.warnings.into_iter().map(|warning| Mistake {
        message: warning
            .message
            .replace("the last one counts", "expected each key once"),
        ..warning
    });
    mistakes.extend(
        report
            .mistakes
            .into_iter()
            .chain(twice)
            .map(|mistake| FileMistake {
                file: file.path.clone(),
                mistake,
            }),
    );
    objects
}

fn collect(node: &Node, file: &File, report: &mut Report, objects: &mut Vec<Placed>) {
    if node.content == Content::Null {
        return;
    }
    let text = |name: &str| node.get(name).and_then(Node::text).unwrap_or_default();
    if text("kind") == "List" && text("apiVersion") == "v1" {
        match node.get("items").map(|items| &items.content) {
            Some(Content::List(items)) => {
                for item in items {
                    collect(item, file, report, objects);
                }
            }
            _ => report.refuse_at("items", node.at, "expected a list of objects"),
        }
        return;
    }
    if is_object(node, report) {
        objects.push(Placed {
            value: applied(node.content.value()),
            file: file.path.clone(),
            at: node.at,
        });
    }
}

/// Whether a document is an object that can be applied: it has a version, a kind and a name.
fn is_object(node: &Node, report: &mut Report) -> bool {
    let found = report.mistakes.len();
    let Content::Map(_) = node.content else {
        report.refuse_at(
            "",
            node.at,
            "expected an object of Kubernetes: apiVersion, kind, metadata",
        );
        return false;
    };
    required(node, "apiVersion", "as in \"v1\" or \"apps/v1\"", report);
    required(node, "kind", "as in \"Deployment\"", report);
    let Some(metadata) = node.get("metadata") else {
        report.refuse_at("metadata.name", node.at, "expected a name");
        return false;
    };
    if metadata
        .get("name")
        .and_then(Node::text)
        .is_none_or(str::is_empty)
    {
        let at = metadata
            .get("generateName")
            .map_or(metadata.at, |node| node.at);
        let message = "expected a name: an object without one is another at each apply";
        report.refuse_at("metadata.name", at, message);
    }
    let namespace = metadata.get("namespace");
    if let Some(node) = namespace.filter(|node| node.text().is_none_or(str::is_empty)) {
        report.refuse_at(
            "metadata.namespace",
            node.at,
            "expected the name of a namespace",
        );
    }
    let labels = metadata.get("labels");
    let is_map = |node: &&Node| matches!(node.content, Content::Map(_) | Content::Null);
    if let Some(node) = labels.filter(|node| !is_map(node)) {
        report.refuse_at("metadata.labels", node.at, "expected names with values");
    }
    report.mistakes.len() == found
}

fn required(node: &Node, name: &str, example: &str, report: &mut Report) {
    let value = node.get(name);
    let text = value.and_then(Node::text).unwrap_or_default();
    let whole = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
    };
    let parts: Vec<&str> = text.split('/').collect();
    let most = if name == "kind" { 1 } else { 2 };
    if parts.len() > most || !parts.into_iter().all(whole) {
        let at = value.map_or(node.at, |value| value.at);
        report.refuse_at(name, at, format!("expected text, {example}"));
    }
}

/// An object as it is applied: without what only the API server writes.
fn applied(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for name in [
            "creationTimestamp",
            "managedFields",
            "resourceVersion",
            "uid",
            "generation",
        ] {
            metadata.remove(name);
        }
        metadata.retain(|_, value| !value.is_null());
    }
    object
}
