//! Adds directories, files and links to the storage of a config.

use super::contents::data_url;
use super::work::Work;
use crate::report::Position;
use crate::tree::{Node, Value};

const TAKEN: &str =
    "a file, directory or link of the config is there already, with contents or of another kind";

/// The storage of a config while entries for one section of the YAML are added to it.
pub(super) struct Storage<'a, 'o> {
    pub(super) work: &'a mut Work<'o>,
    node: &'a mut Node,
    /// Path and position of the section: findings about the entries name it.
    path: &'a str,
    at: Option<&'a Position>,
}

/// The handling of an entry whose path the config has already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// The entry gets the contents or the target, if it has none yet.
    Complete,
    /// The entry is an error.
    Refuse,
}

impl<'a, 'o> Storage<'a, 'o> {
    /// The storage of `config`, for the section at `path`; none if `config` is not an object.
    pub(super) fn of(
        config: &'a mut Node,
        work: &'a mut Work<'o>,
        path: &'a str,
        at: Option<&'a Position>,
    ) -> Option<Self> {
        let node = config.entry("storage", Node::empty)?;
        Some(Self {
            work,
            node,
            path,
            at,
        })
    }

    pub(super) fn add_directory(&mut self, mut new: Node, mode: i64) {
        let to = new.text("path").unwrap_or_default().to_owned();
        if self.has(&to) {
            return self.refuse(&to);
        }
        let (at, value) = (new.at.clone(), Value::Number(mode));
        new.put("mode", Node { at, value });
        self.append("directories", new);
    }

    pub(super) fn add_file(&mut self, new: Node, bytes: &[u8], mode: i64, existing: Existing) {
        let to = new.text("path").unwrap_or_default().to_owned();
        let Some(index) = self.entry("files", &to, new, existing) else {
            return self.refuse(&to);
        };
        let (minor, options) = (self.work.minor, self.work.options);
        let at = self.at.cloned();
        let Some(node) = self.node.items_mut("files").get_mut(index) else {
            return;
        };
        let Some(contents) = node.entry("contents", Node::empty) else {
            return;
        };
        let given = |name: &str| contents.text(name).is_some_and(|text| !text.is_empty());
        if given("source") {
            return self.refuse(&to);
        }
        let url = data_url(bytes, given("compression"), minor, options);
        contents.put("source", Node::text_at(url.text, at.clone()));
        if let Some(compression) = url.compression {
            let node = Node::text_at(compression.to_owned(), at.clone());
            contents.put("compression", node);
        }
        let value = Value::Number(mode);
        node.entry("mode", || Node { at, value });
        let made = format!("$.storage.files.{index}.contents");
        self.work.origins.made(made, self.path);
    }

    pub(super) fn add_link(&mut self, new: Node, target: &str, existing: Existing) {
        let to = new.text("path").unwrap_or_default().to_owned();
        let Some(index) = self.entry("links", &to, new, existing) else {
            return self.refuse(&to);
        };
        let at = self.at.cloned();
        let Some(node) = self.node.items_mut("links").get_mut(index) else {
            return;
        };
        if node.text("target").is_some_and(|target| !target.is_empty()) {
            return self.refuse(&to);
        }
        node.put("target", Node::text_at(target.to_owned(), at));
    }

    /// The index of the entry that `new` completes or becomes; none if it may not be added.
    fn entry(
        &mut self,
        list: &'static str,
        to: &str,
        new: Node,
        existing: Existing,
    ) -> Option<usize> {
        let found = self.position(list, to);
        match found.filter(|_| existing == Existing::Complete) {
            Some(index) => Some(index),
            None if self.has(to) => None,
            None => Some(self.append(list, new)),
        }
    }

    fn position(&self, list: &str, path: &str) -> Option<usize> {
        let same = |node: &Node| node.text("path") == Some(path);
        self.node.items(list).iter().position(same)
    }

    fn has(&self, path: &str) -> bool {
        let lists = ["files", "directories", "links"];
        lists
            .into_iter()
            .any(|list| self.position(list, path).is_some())
    }

    /// Adds an entry to a list, and returns its index.
    fn append(&mut self, list: &'static str, node: Node) -> usize {
        let empty = || Node {
            at: self.at.cloned(),
            value: Value::List(Vec::new()),
        };
        let Some(Node {
            value: Value::List(items),
            ..
        }) = self.node.entry(list, empty)
        else {
            return 0;
        };
        items.push(node);
        let index = items.len() - 1;
        let made = format!("$.storage.{list}.{index}");
        self.work.origins.made(made, self.path);
        index
    }

    fn refuse(&mut self, to: &str) {
        let message = format!("{to}: {TAKEN}");
        self.work.report.error(self.path, self.at, message);
    }
}
