//! The recipe's own files of modprobe.d(5), as far as they concern the init, which loads modules by itself: options, blacklists
//! and soft dependencies. What `alias`, `install` and `remove` say is for the running node alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use image::modules::{ModuleIndex, canonical};

use crate::recipe::{FileEntry, FileKind};

/// Folders of such files; a file of an earlier one hides that of the same name in a later one.
const FOLDERS: [&str; 4] = [
    "/etc/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// What the files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// All files in their order, for the key of the step.
    pub(super) text: String,
    /// Lines `softdep`, as depmod writes them.
    pub(super) soft: String,
    options: BTreeMap<String, String>,
    blacklist: BTreeSet<String>,
}

impl Rules {
    /// Reads those of a recipe's files.
    ///
    /// # Errors
    /// Names a file of the building host that cannot be read.
    pub(super) fn read(files: &[FileEntry]) -> Result<Self> {
        let mut found: BTreeMap<&str, String> = BTreeMap::new();
        for folder in FOLDERS {
            for file in files {
                let name = file
                    .path
                    .strip_prefix(folder)
                    .and_then(|rest| rest.strip_prefix('/'));
                let name = name.filter(|name| name.ends_with(".conf") && !name.contains('/'));
                if let Some(name) = name.filter(|name| !found.contains_key(name)) {
                    found.insert(name, content(&file.kind)?);
                }
            }
        }
        Ok(Self::parse(
            found.into_values().collect::<Vec<_>>().join("\n"),
        ))
    }

    fn parse(text: String) -> Self {
        let mut out = Self::default();
        // A line goes on behind a backslash at its end.
        for line in text.replace("\\\n", " ").lines() {
            let line = line.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let (name, rest) = rest
                .trim()
                .split_once(char::is_whitespace)
                .unwrap_or((rest.trim(), ""));
            match word {
                "options" => {
                    let options = out.options.entry(canonical(name)).or_default();
                    if !options.is_empty() {
                        options.push(' ');
                    }
                    options.push_str(rest.trim());
                }
                "blacklist" => drop(out.blacklist.insert(canonical(name))),
                "softdep" => out.soft += &format!("{line}\n"),
                _ => {}
            }
        }
        out.text = text;
        out
    }

    /// Writes options and blacklists into the index.
    pub(super) fn mark(&self, index: &mut ModuleIndex) {
        for module in &mut index.modules {
            if let Some(options) = self.options.get(&module.name) {
                module.options.clone_from(options);
            }
            module.blacklisted = self.blacklist.contains(&module.name);
        }
    }
}

fn content(kind: &FileKind) -> Result<String> {
    let bytes = match kind {
        FileKind::Content(bytes) => bytes.clone(),
        FileKind::Source(path) => {
            fs::read(path).with_context(|| format!("reading {}", path.display()))?
        }
        // A link to /dev/null switches a file off, as a removal does.
        FileKind::Download(_) | FileKind::Link(_) | FileKind::Directory | FileKind::Remove => {
            Vec::new()
        }
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::modules::Module;

    fn file(path: &str, text: &str) -> FileEntry {
        FileEntry {
            path: path.to_owned(),
            kind: FileKind::Content(text.into()),
            mode: 0o644,
            user: "root".to_owned(),
            group: "root".to_owned(),
            origin: String::new(),
        }
    }

    #[test]
    fn options_and_blacklists_reach_the_index() {
        let files = [
            file(
                "/usr/lib/modprobe.d/a.conf",
                "options nvme_core io_timeout=1\n",
            ),
            file(
                "/etc/modprobe.d/a.conf",
                "# a comment\noptions nvme-core io_timeout=60 \\\n  multipath=N\nblacklist i6300esb\n",
            ),
            file(
                "/etc/modprobe.d/b.conf",
                "options nvme_core admin_timeout=9\nsoftdep nvme pre: x\ninstall y /bin/false\n",
            ),
            file("/etc/modprobe.d/no", "blacklist nvme_core\n"),
            file("/etc/modprobe.d/deep/c.conf", "blacklist nvme_core\n"),
        ];
        let rules = Rules::read(&files).unwrap();
        assert_eq!(rules.soft, "softdep nvme pre: x\n");
        let module = |name: &str| Module {
            name: name.to_owned(),
            ..Module::default()
        };
        let mut index = ModuleIndex {
            modules: vec![module("i6300esb"), module("nvme_core")],
            ..ModuleIndex::default()
        };
        rules.mark(&mut index);
        assert!(index.modules[0].blacklisted && !index.modules[1].blacklisted);
        let options: Vec<&str> = index.modules[1].options.split_whitespace().collect();
        assert_eq!(options, ["io_timeout=60", "multipath=N", "admin_timeout=9"]);
        assert_eq!(Rules::read(&[]).unwrap(), Rules::default());
    }
}
