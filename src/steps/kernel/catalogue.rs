//! A kernel's modules in the form of depmod's lists, and the selection for an initramfs.
//!
//! Formats: the text files of `depmod(8)`, and `modules.builtin(5)`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use image::modules::{Builtin, Module, ModuleIndex, canonical, matches};

use crate::recipe::nearest;

/// All modules of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    release: String,
    /// File and direct and indirect dependencies (as names, in loading order) by name.
    loadable: BTreeMap<String, (String, Vec<String>)>,
    /// Modules to load before and after (soft dependencies), as names or aliases.
    soft: BTreeMap<String, (Vec<String>, Vec<String>)>,
    aliases: BTreeMap<String, Vec<String>>,
    builtin: BTreeMap<String, Vec<String>>,
    /// Firmware files that built-in drivers name.
    builtin_firmware: BTreeSet<String>,
}

impl Catalogue {
    /// Reads the lists in a folder `…/lib/modules/<release>`.
    ///
    /// # Errors
    /// Names the list that cannot be read.
    pub fn read(folder: &Path, release: &str) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        Ok(Self::parse(
            release,
            &text("modules.dep")?,
            &text("modules.softdep")?,
            &text("modules.alias")?,
            &text("modules.builtin")?,
            &text("modules.builtin.modinfo")?,
        ))
    }

    fn parse(
        release: &str,
        dependencies: &str,
        soft: &str,
        aliases: &str,
        builtin: &str,
        builtin_info: &str,
    ) -> Self {
        let mut out = Self {
            release: release.to_owned(),
            ..Self::default()
        };
        for line in dependencies.lines() {
            if let Some((path, needs)) = line.split_once(':') {
                // depmod writes the dependencies in reverse loading order.
                let needs = needs.split_whitespace().rev().map(name_of).collect();
                out.loadable.insert(name_of(path), (path.to_owned(), needs));
            }
        }
        out.add_soft(soft);
        for line in aliases.lines() {
            let mut words = line.split_whitespace();
            if let (Some("alias"), Some(pattern), Some(name)) =
                (words.next(), words.next(), words.next())
            {
                out.aliases
                    .entry(canonical(name))
                    .or_default()
                    .push(pattern.to_owned());
            }
        }
        for path in builtin.lines() {
            out.builtin.entry(name_of(path)).or_default();
        }
        for record in builtin_info.split('\0') {
            if let Some((name, pattern)) = record.split_once(".alias=") {
                out.builtin
                    .entry(canonical(name))
                    .or_default()
                    .push(pattern.to_owned());
            }
            if let Some((_, file)) = record.split_once(".firmware=") {
                out.builtin_firmware.insert(file.to_owned());
            }
        }
        out
    }

    /// Adds lines as `softdep NAME pre: A B post: C`.
    pub fn add_soft(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() != Some("softdep") {
                continue;
            }
            let Some(name) = words.next() else { continue };
            let (before, after) = self.soft.entry(canonical(name)).or_default();
            let mut list = None;
            for word in words {
                match (word, &mut list) {
                    ("pre:", _) => list = Some(&mut *before),
                    ("post:", _) => list = Some(&mut *after),
                    (other, Some(list)) => list.push(other.to_owned()),
                    (_, None) => {}
                }
            }
        }
    }

    /// The kernel's release, as `uname -r`.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The names of all modules, loadable and built in.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let all = self.loadable.keys().chain(self.builtin.keys());
        all.map(String::as_str)
    }

    /// Whether modprobe(8) knows a word: the name of a module, or one of its aliases.
    #[must_use]
    pub fn answers(&self, word: &str) -> bool {
        let mut patterns = self.aliases.values().chain(self.builtin.values()).flatten();
        self.knows(word) || patterns.any(|pattern| matches(pattern, word))
    }

    /// Whether the kernel has it, loadable or built in.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        let name = canonical(name);
        self.loadable.contains_key(&name) || self.builtin.contains_key(&name)
    }

    /// Whether a module is built into the kernel.
    #[must_use]
    pub fn is_builtin(&self, name: &str) -> bool {
        self.builtin.contains_key(&canonical(name))
    }

    /// The index of an initramfs with the wanted modules and their dependencies. Built-in modules need no file.
    ///
    /// # Errors
    /// All wanted names that the kernel lacks, each with the nearest one that it has.
    pub fn choose<'n>(&self, wanted: impl IntoIterator<Item = &'n str>) -> Result<ModuleIndex> {
        let (mut chosen, mut unknown) = (BTreeSet::new(), Vec::new());
        let mut open: Vec<String> = Vec::new();
        for name in wanted {
            if self.knows(name) {
                open.push(canonical(name));
            } else {
                unknown.push(self.unknown(name));
            }
        }
        if !unknown.is_empty() {
            bail!("{}", unknown.join("\n"));
        }
        while let Some(name) = open.pop() {
            let Some((_, needs)) = self.loadable.get(&name) else {
                continue;
            };
            if chosen.insert(name.clone()) {
                open.extend(needs.iter().cloned());
                let (before, after) = self.soft_of(&name);
                open.extend(before.into_iter().chain(after));
            }
        }
        let module = |name: &String| {
            let (path, dependencies) = self.loadable.get(name)?;
            let (soft, post) = self.soft_of(name);
            Some(Module {
                name: name.clone(),
                path: uncompressed(path).to_owned(),
                dependencies: dependencies.clone(),
                soft,
                post,
                aliases: self.aliases.get(name).cloned().unwrap_or_default(),
                ..Module::default()
            })
        };
        Ok(ModuleIndex {
            release: self.release.clone(),
            modules: chosen.iter().filter_map(module).collect(),
            builtin: self
                .builtin
                .iter()
                .map(|(name, aliases)| Builtin {
                    name: name.clone(),
                    aliases: aliases.clone(),
                })
                .collect(),
            signed: false,
        })
    }

    /// The firmware files that built-in drivers name, as they name them.
    pub fn builtin_firmware(&self) -> impl Iterator<Item = &str> {
        self.builtin_firmware.iter().map(String::as_str)
    }

    /// The file of a module below the release's folder, the same as in the package.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<&str> {
        self.loadable.get(name).map(|(path, _)| path.as_str())
    }

    /// Loadable modules to load before and after, by name.
    fn soft_of(&self, name: &str) -> (Vec<String>, Vec<String>) {
        let Some((before, after)) = self.soft.get(name) else {
            return Default::default();
        };
        let resolve = |words: &Vec<String>| {
            let mut out: Vec<String> = Vec::new();
            for word in words {
                for found in self.resolve(word) {
                    if found != name && !out.contains(&found) {
                        out.push(found);
                    }
                }
            }
            out
        };
        (resolve(before), resolve(after))
    }

    /// The loadable modules of a name or an alias.
    fn resolve(&self, word: &str) -> Vec<String> {
        let name = canonical(word);
        if self.loadable.contains_key(&name) {
            return vec![name];
        }
        if self.builtin.contains_key(&name) {
            return Vec::new();
        }
        self.aliases
            .iter()
            .filter(|(name, patterns)| {
                self.loadable.contains_key(*name)
                    && patterns.iter().any(|pattern| matches(pattern, word))
            })
            .map(|(name, _)| name.clone())
            .collect()
    }

    fn unknown(&self, name: &str) -> String {
        let name = canonical(name);
        let nearest = nearest(&name, self.names())
            .map(|known| format!("; did you mean {known}?"))
            .unwrap_or_default();
        format!("kernel {} has no module {name}{nearest}", self.release)
    }
}

/// The kernel's name of a module file.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    canonical(file.split(".ko").next().unwrap_or(file))
}

/// A module file's path without the suffix of its compression.
fn uncompressed(path: &str) -> &str {
    [".xz", ".zst", ".gz"]
        .iter()
        .find_map(|suffix| path.strip_suffix(suffix))
        .unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        Catalogue::parse(
            "6.12",
            "kernel/drivers/md/dm-verity.ko.xz: kernel/lib/reed_solomon/reed_solomon.ko.xz kernel/drivers/md/dm-bufio.ko.xz kernel/drivers/md/dm-mod.ko.xz\n\
             kernel/drivers/md/dm-bufio.ko.xz: kernel/drivers/md/dm-mod.ko.xz\n\
             kernel/drivers/md/dm-mod.ko.xz:\n\
             kernel/lib/reed_solomon/reed_solomon.ko.xz:\n\
             kernel/fs/erofs/erofs.ko.zst: kernel/lib/libcrc32c.ko\n\
             kernel/lib/libcrc32c.ko:\n\
             kernel/arch/x86/crypto/crc32c-intel.ko:\n",
            "# a comment\nsoftdep libcrc32c pre: crc32c post: absent\n",
            "alias fs-erofs erofs\nalias crc32c crc32c_intel\nalias crypto-crc32c crc32c_intel\n",
            "kernel/fs/ext4/ext4.ko\nkernel/crypto/crc32c_generic.ko\n",
            "ext4.alias=fs-ext4\0ext4.license=GPL\0crc32c_generic.alias=crc32c\0tg3.firmware=tigon/tg3.bin\0",
        )
    }

    #[test]
    fn the_choice_holds_what_is_needed_in_loading_order() {
        let index = catalogue().choose(["dm_verity", "erofs", "ext4"]).unwrap();
        let names: Vec<&str> = index.modules.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "crc32c_intel",
                "dm_bufio",
                "dm_mod",
                "dm_verity",
                "erofs",
                "libcrc32c",
                "reed_solomon"
            ]
        );
        let verity = index.module("dm-verity").unwrap();
        assert_eq!(verity.dependencies, ["dm_mod", "dm_bufio", "reed_solomon"]);
        assert_eq!(index.module("libcrc32c").unwrap().soft, ["crc32c_intel"]);
        let erofs = index.module("erofs").unwrap();
        assert_eq!(erofs.path, "kernel/fs/erofs/erofs.ko");
        assert_eq!(erofs.aliases, ["fs-erofs"]);
        assert!(index.is_builtin("ext4"));
        assert_eq!(index.builtin[1].aliases, ["fs-ext4"]);
    }

    #[test]
    fn built_in_drivers_name_their_firmware() {
        let catalogue = catalogue();
        let files: Vec<&str> = catalogue.builtin_firmware().collect();
        assert_eq!(files, ["tigon/tg3.bin"]);
    }

    #[test]
    fn all_unknown_modules_are_named_with_the_nearest() {
        let error = catalogue().choose(["erofss", "igb", "ext4"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "kernel 6.12 has no module erofss; did you mean erofs?\nkernel 6.12 has no module igb"
        );
    }
}
