//! The section `ignition`, and everything that is fetched.

use super::fields::{copy, copy_filled, copy_once, list, object, put};
use super::{Entry, Translation};
use crate::tree::Node;

impl Translation {
    pub(super) fn ignition(&mut self, old: Option<&Node>) -> Node {
        let Some(old) = old else {
            return Node::empty();
        };
        let mut new = object(old);
        copy(old, &mut new, &["version", "timeouts"]);
        if let Some(config) = old.get("config") {
            put(&mut new, "config", self.references(config));
        }
        if let Some(tls) = old.get("security").and_then(|node| node.get("tls")) {
            let name = "certificateAuthorities";
            let authorities = tls.items(name).iter().map(resource).collect();
            let at = tls.get(name).and_then(|node| node.at.clone());
            let mut section = object(tls);
            put(&mut section, name, list(at, authorities));
            let mut security = Node::empty();
            put(&mut security, "tls", section);
            put(&mut new, "security", security);
        }
        if let Some(proxy) = old.get("proxy") {
            let mut section = object(proxy);
            copy_filled(proxy, &mut section, &["httpProxy", "httpsProxy"]);
            copy_once(proxy, &mut section, &["noProxy"]);
            put(&mut new, "proxy", section);
        }
        new
    }

    /// `append` is `merge`: the entries of the other config come over those of this one.
    fn references(&mut self, old: &Node) -> Node {
        let mut new = object(old);
        let entries = Entry::all(Some(old), "append", "$.ignition.config");
        let merged = entries
            .into_iter()
            .map(|entry| (entry.path, resource(entry.node)))
            .collect();
        let at = old.get("append").and_then(|node| node.at.clone());
        let merged = self.list("$.ignition.config.merge", at, merged);
        put(&mut new, "merge", merged);
        if let Some(replace) = old.get("replace") {
            put(&mut new, "replace", resource(replace));
        }
        new
    }
}

/// A source with its hash and its headers. No compression is none, and so is a header's empty value.
pub(super) fn resource(old: &Node) -> Node {
    let mut new = object(old);
    copy(old, &mut new, &["source", "verification"]);
    copy_filled(old, &mut new, &["compression"]);
    let headers = old.items("httpHeaders").iter().map(|old| {
        let mut header = object(old);
        copy(old, &mut header, &["name"]);
        copy_filled(old, &mut header, &["value"]);
        header
    });
    let at = old.get("httpHeaders").and_then(|node| node.at.clone());
    put(&mut new, "httpHeaders", list(at, headers.collect()));
    new
}
