//! What the first boot of a root changes below `/var`, computed before anything is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::var_list::Content;

use super::brought::Brought;
use super::cut::failpoint;
use super::follow::{self, Follows, Lists, Look};

/// What is to be removed and made.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    sysroot: &'a Path,
    /// The hashes of what the image has and that follows it, by path.
    hashes: BTreeMap<&'a str, String>,
    /// Files and links that images brought and this one has not, by path.
    gone: BTreeMap<String, PathBuf>,
    /// Folders that images brought and that are in the way of a file or a link, the deepest first.
    emptied: Vec<(String, PathBuf)>,
    /// What is to be made where nothing is.
    pub(super) new: Vec<&'a str>,
    /// What is to be made in place of an earlier root's.
    pub(super) replaced: Vec<&'a str>,
    /// What the node has as the image has it, whoever put it there: a boot that was cut off, too.
    same: Vec<&'a str>,
    /// What the node has changed or deleted, or has from elsewhere.
    own: BTreeSet<&'a str>,
    /// What was deleted of it, or is behind a link.
    absent: BTreeSet<&'a str>,
}

impl<'a> Plan<'a> {
    /// Compares the lists of a root with the node.
    pub(super) fn new(
        sysroot: &'a Path,
        lists: &'a Lists,
        brought: &Brought,
        follows: &Follows,
    ) -> Result<Self> {
        let mut plan = Self {
            sysroot,
            hashes: BTreeMap::new(),
            gone: follows.gone(sysroot, lists)?,
            emptied: Vec::new(),
            new: Vec::new(),
            replaced: Vec::new(),
            same: Vec::new(),
            own: BTreeSet::new(),
            absent: BTreeSet::new(),
        };
        for (path, content) in lists {
            let compared = plan.compare(path, content, brought.has(path), follows);
            compared.with_context(|| format!("comparing {path}"))?;
        }
        Ok(plan)
    }

    fn compare(
        &mut self,
        path: &'a str,
        content: &Content,
        brought: bool,
        follows: &Follows,
    ) -> Result<()> {
        let Some(hash) = follow::of_image(self.sysroot, path, content)? else {
            if !brought {
                self.new.push(path);
            }
            return Ok(());
        };
        match follows.look(self.sysroot, path, &hash)? {
            Look::Known | Look::Absent if !brought => self.new.push(path),
            Look::Known => {}
            Look::Absent => drop(self.absent.insert(path)),
            Look::Same => self.same.push(path),
            // A folder comes in its place.
            Look::Behind if self.gone.contains_key(path) => self.new.push(path),
            Look::Behind => self.replaced.push(path),
            Look::Folder => match follows.emptied(self.sysroot, path, &self.gone)? {
                Some(folders) => {
                    self.emptied.extend(folders);
                    self.new.push(path);
                }
                None => drop(self.own.insert(path)),
            },
            Look::Own => drop(self.own.insert(path)),
        }
        self.hashes.insert(path, hash);
        Ok(())
    }

    /// Lets the records be right whichever part of this plan is carried out: what is to be removed counts neither as brought nor as
    /// deleted on the node, and what is to be made counts as an image's.
    pub(super) fn announce(&self, brought: &mut Brought, follows: &mut Follows) {
        for path in self.removed() {
            brought.remove(&path);
        }
        for path in self.new.iter().chain(&self.replaced).chain(&self.same) {
            if let Some(hash) = self.hashes.get(path) {
                follows.add(path, hash);
            }
        }
    }

    /// Removes what is to be removed; gives how many files and links.
    pub(super) fn remove(&self) -> Result<usize> {
        let about = |place: &Path| format!("removing {}", place.display());
        for place in self.gone.values() {
            failpoint()?;
            fs::remove_file(place).with_context(|| about(place))?;
        }
        for (_, place) in &self.emptied {
            failpoint()?;
            fs::remove_dir(place).with_context(|| about(place))?;
        }
        Ok(self.gone.len())
    }

    /// Records what was done; `there` is what is there of that which was to be made where nothing is. Gives the files and links that do
    /// not follow the image, since the node has its own or has deleted them.
    pub(super) fn settle(
        &self,
        there: Vec<&'a str>,
        lists: &Lists,
        brought: &mut Brought,
        follows: &mut Follows,
    ) -> Result<Vec<String>> {
        let mut own = self.own.clone();
        brought.add(there.into_iter().chain(own.iter().copied()));
        brought.add(self.replaced.iter().chain(&self.same).copied());
        own.extend(&self.absent);
        follows.tidy(self.sysroot, &self.removed(), |path| brought.has(path))?;
        for path in self.new.iter().chain(&self.replaced).chain(&self.same) {
            let Some(hash) = self.hashes.get(path) else {
                continue;
            };
            match follow::of_node(self.sysroot, path)? {
                Some(node) if node == *hash => follows.note(path, hash),
                _ => drop(own.insert(path)),
            }
        }
        let programs = own.into_iter();
        let programs = programs.filter(|path| !matches!(lists[*path], Content::Folder(_)));
        Ok(programs.map(str::to_owned).collect())
    }

    /// The paths of all that is to be removed.
    fn removed(&self) -> BTreeSet<String> {
        let emptied = self.emptied.iter().map(|(path, _)| path);
        self.gone.keys().chain(emptied).cloned().collect()
    }
}
