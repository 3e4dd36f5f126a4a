//! Files, directories and links, and the files of networkd.

use super::fields::{copy, copy_filled, equal, flag, list, object, put};
use super::filesystems::Prefixes;
use super::resources::resource;
use super::{Entry, Translation};
use crate::data_url;
use crate::tree::{Node, Value};
use crate::validate::clean;

/// The folder of networkd's files.
const NETWORKD: &str = "/etc/systemd/network";

/// The entries of a list so far, each with its path in the text.
type Entries = Vec<(String, Node)>;

/// A file so far.
struct File {
    /// Its path in the text.
    from: String,
    node: Node,
    /// The paths in the text of what is appended.
    appended: Vec<String>,
}

impl Translation {
    pub(super) fn nodes(&mut self, old: &Node, prefixes: &Prefixes, storage: &mut Node) {
        let section = old.get("storage");
        let mut files = Vec::new();
        for entry in Entry::all(section, "files", "$.storage") {
            let mut file = self.node(&entry, prefixes, 0o644);
            self.contents(&entry, &mut file);
            self.add(&entry, file, &mut files);
        }
        for entry in Entry::all(old.get("networkd"), "units", "$.networkd") {
            self.networkd(&entry, &mut files);
        }
        let mut directories = Entries::new();
        for entry in Entry::all(section, "directories", "$.storage") {
            let mut directory = self.node(&entry, prefixes, 0o755);
            copy(entry.node, &mut directory, &["overwrite"]);
            directories.push((entry.path, directory));
        }
        let mut links = Entries::new();
        for entry in Entry::all(section, "links", "$.storage") {
            let mut link = self.located(&entry, prefixes);
            copy(entry.node, &mut link, &["overwrite", "target"]);
            copy_filled(entry.node, &mut link, &["hard"]);
            links.push((entry.path, link));
        }
        let files = self.appended(files);
        for (name, entries) in [
            ("files", files),
            ("directories", directories),
            ("links", links),
        ] {
            let at = section.and_then(|node| node.get(name)?.at.clone());
            let all = self.list(&format!("$.storage.{name}"), at, entries);
            put(storage, name, all);
        }
    }

    /// Path and owner.
    fn located(&mut self, entry: &Entry<'_>, prefixes: &Prefixes) -> Node {
        let mut new = object(entry.node);
        let name = entry.node.text("filesystem").unwrap_or_default();
        let prefix = match prefixes.get(name) {
            Some(Ok(prefix)) => prefix.as_str(),
            Some(Err(why)) => {
                self.refuse(entry, "filesystem", why.clone());
                ""
            }
            None => {
                let found = match name {
                    "" => "no file system".to_owned(),
                    name => format!("{name:?}"),
                };
                let message = format!(
                    "found {found}; expected \"root\" or the name of an entry of storage.filesystems"
                );
                self.refuse(entry, "filesystem", message);
                ""
            }
        };
        let path = entry.node.text("path").unwrap_or_default();
        // A path that is not absolute stays as it is, for the rule about it.
        let path = match path.starts_with('/') {
            true => clean(&format!("{prefix}{}", clean(path))),
            false => path.to_owned(),
        };
        new.put("path", Node::text_at(path, entry.at("path").cloned()));
        for name in ["user", "group"] {
            if let Some(old) = entry.node.get(name) {
                let mut owner = object(old);
                copy(old, &mut owner, &["id"]);
                copy_filled(old, &mut owner, &["name"]);
                put(&mut new, name, owner);
            }
        }
        new
    }

    /// As [`Self::located`], with the mode. Until 2.1 an absent mode is zero.
    fn node(&mut self, entry: &Entry<'_>, prefixes: &Prefixes, default: i64) -> Node {
        let mut new = self.located(entry, prefixes);
        match entry.node.get("mode") {
            Some(mode) => new.put("mode", mode.clone()),
            None if self.minor < 2 => {
                let message =
                    "no mode is given, which is 0 in this version; expected one, as 420 for 0644";
                self.warn(entry, "mode", message);
                let (at, value) = (entry.node.at.clone(), Value::Number(0));
                new.put("mode", Node { at, value });
            }
            None => {
                let message = format!("no mode is given; {default:04o} is used");
                self.warn(entry, "mode", message);
            }
        }
        new
    }

    /// A file is overwritten unless the config says otherwise, and one without contents is made empty.
    fn contents(&mut self, entry: &Entry<'_>, file: &mut Node) {
        let old = entry.node;
        let contents = old.get("contents");
        let mut contents = contents.map_or_else(|| object(old), resource);
        contents.entry("source", || Node::text_at(String::new(), None));
        if let Some(append) = old
            .get("append")
            .filter(|_| old.flag("append") == Some(true))
        {
            if old.flag("overwrite") == Some(true) {
                let message = "both append and overwrite are set; remove one of them";
                self.refuse(entry, "overwrite", message);
            }
            file.put("overwrite", flag(false, append));
            file.put("append", list(contents.at.clone(), vec![contents]));
            return;
        }
        let overwrite = old.get("overwrite").cloned();
        file.put("overwrite", overwrite.unwrap_or_else(|| flag(true, old)));
        file.put("contents", contents);
    }

    /// Adds a file. One at the path of an earlier is appended to it, or takes its place.
    fn add(&mut self, entry: &Entry<'_>, node: Node, files: &mut Vec<File>) {
        let (from, appended) = (entry.path.clone(), Vec::new());
        let mut file = File {
            from,
            node,
            appended,
        };
        if !file.node.items("append").is_empty() {
            file.appended.push(format!("{}.contents", entry.path));
        }
        let same = |other: &&mut File| other.node.text("path") == file.node.text("path");
        match files.iter_mut().find(same) {
            None => files.push(file),
            Some(earlier) if !file.appended.is_empty() => self.append(entry, file, earlier),
            Some(earlier) if file.node.flag("overwrite") == Some(false) => {
                let from = &earlier.from;
                let message =
                    format!("{from} writes this file already, and overwrite is false here");
                self.refuse(entry, "path", message);
            }
            Some(earlier) => {
                let message = format!("this file takes the place of {}", earlier.from);
                *earlier = file;
                self.warn(entry, "path", message);
            }
        }
    }

    fn append(&mut self, entry: &Entry<'_>, file: File, earlier: &mut File) {
        for name in ["mode", "user", "group"] {
            match (earlier.node.get(name), file.node.get(name)) {
                (Some(one), Some(other)) if !equal(one, other) => {
                    let from = &earlier.from;
                    let message = format!(
                        "{from} writes this file with another {name}; write the same in both"
                    );
                    self.refuse(entry, name, message);
                }
                (None, Some(other)) => earlier.node.put(name, other.clone()),
                _ => {}
            }
        }
        let mut all = earlier.node.items("append").to_vec();
        all.extend(file.node.items("append").iter().cloned());
        earlier.node.put("append", list(entry.node.at.clone(), all));
        earlier.appended.extend(file.appended);
    }

    /// The files as entries, the paths of what is appended noted.
    fn appended(&mut self, files: Vec<File>) -> Entries {
        for (i, file) in files.iter().enumerate() {
            for (j, from) in file.appended.iter().enumerate() {
                let path = format!("$.storage.files.{i}.append.{j}");
                self.origins.rename(path, from);
            }
        }
        let entry = |file: File| (file.from, file.node);
        files.into_iter().map(entry).collect()
    }

    /// A unit of networkd is a file in its folder, with the mode 0644, and each of its drop-ins is one.
    fn networkd(&mut self, entry: &Entry<'_>, files: &mut Vec<File>) {
        let name = entry.node.text("name").unwrap_or_default();
        let known = [".network", ".netdev", ".link"];
        if !known.iter().any(|end| name.ends_with(end)) || name.contains('/') {
            let message = "expected a file name that ends with .network, .netdev or .link";
            self.refuse(entry, "name", message);
            return;
        }
        let text = entry.node.text("contents").unwrap_or_default();
        if !text.is_empty() {
            let file = networkd_file(format!("{NETWORKD}/{name}"), text, entry);
            self.add(entry, file, files);
        }
        for dropin in Entry::all(Some(entry.node), "dropins", &entry.path) {
            let own = dropin.node.text("name").unwrap_or_default();
            if !own.ends_with(".conf") || own.contains('/') {
                self.refuse(&dropin, "name", "expected a file name that ends with .conf");
                continue;
            }
            let text = dropin.node.text("contents").unwrap_or_default();
            let file = networkd_file(format!("{NETWORKD}/{name}.d/{own}"), text, &dropin);
            self.add(&dropin, file, files);
        }
    }
}

fn networkd_file(path: String, text: &str, entry: &Entry<'_>) -> Node {
    let mut file = object(entry.node);
    file.put("path", Node::text_at(path, entry.at("name").cloned()));
    file.put("overwrite", flag(true, entry.node));
    let (at, value) = (entry.node.at.clone(), Value::Number(0o644));
    file.put("mode", Node { at, value });
    let mut contents = Node::empty();
    let url = data_url::percent_encoded(text.as_bytes());
    contents.put("source", Node::text_at(url, entry.at("contents").cloned()));
    file.put("contents", contents);
    file
}
