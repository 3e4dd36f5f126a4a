//! Uses between the files of a crate: every path in the code is followed through imports and re-exports to the file
//! that defines the item.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::floors::Floors;
use crate::source;
use crate::tree::{File, Module, Tree};
use crate::workspace::Package;

/// Limit for imports that lead to imports: longer than any real chain, so only a circle reaches it.
const DEPTH: usize = 16;

/// A use of one file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// Number of the using file.
    pub from: usize,
    /// Number of the used file.
    pub to: usize,
    /// Line in the using file, from 1.
    pub line: usize,
    /// The path as written.
    pub path: String,
    /// The room of the using file.
    pub room: Option<Room>,
    /// The used rooms: the one that the path names and, if it differs, the one that defines the item.
    pub used: Vec<Room>,
}

/// A module at the top of a target, with its children.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    /// Number of the target, the library first.
    pub target: usize,
    /// The module's name.
    pub name: String,
}

/// A package's code.
#[derive(Clone, Debug)]
pub struct Crate {
    /// The package, as read from its manifest.
    pub package: Package,
    /// Its targets' modules, the library first.
    pub trees: Vec<Tree>,
    /// The floors of each target's root.
    pub floors: Vec<Floors>,
    /// Uses of one file by another. Files are numbered through all targets, as [`Crate::files`] lists them.
    pub arrows: Vec<Arrow>,
    /// Target and module path of each file.
    places: Vec<(usize, Vec<String>)>,
}

/// A module of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    tree: usize,
    module: usize,
}

/// The target of a path.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// The module that the path itself names.
    named: Place,
    /// The module that defines the item.
    defined: Place,
}

impl Crate {
    /// Reads a package's sources.
    ///
    /// # Errors
    /// If a file cannot be read or is not Rust.
    pub fn read(workspace: &Path, package: &Package) -> Result<Self> {
        let mut found = Self {
            package: package.clone(),
            trees: Vec::new(),
            floors: Vec::new(),
            arrows: Vec::new(),
            places: Vec::new(),
        };
        for root in &package.roots {
            found.trees.push(source::read(workspace, root)?);
            let text = fs::read_to_string(workspace.join(root))
                .with_context(|| format!("reading {}", root.display()))?;
            found.floors.push(Floors::read(&text));
        }
        let place = |(target, file): (usize, &File)| {
            let path = found.trees[target].path_of(file.module);
            (target, path.into_iter().map(str::to_owned).collect())
        };
        found.places = found.files().map(place).collect();
        found.arrows = found.find_arrows();
        Ok(found)
    }

    /// All files, with the number of their target.
    pub fn files(&self) -> impl Iterator<Item = (usize, &File)> {
        let trees = self.trees.iter().enumerate();
        trees.flat_map(|(number, tree)| tree.files.iter().map(move |file| (number, file)))
    }

    /// The paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files().map(|(_, file)| file.path.clone()).collect()
    }

    /// The room of a file; none for a root.
    #[must_use]
    pub fn room(&self, target: usize, file: &File) -> Option<Room> {
        self.room_of(Place {
            tree: target,
            module: file.module,
        })
    }

    /// Whether one file's module is the parent, or the parent's parent and so on, of another's.
    #[must_use]
    pub fn is_ancestor(&self, ancestor: usize, file: usize) -> bool {
        let ((one, above), (other, below)) = (&self.places[ancestor], &self.places[file]);
        one == other && above.len() < below.len() && below.starts_with(above)
    }

    fn room_of(&self, place: Place) -> Option<Room> {
        let path = self.trees[place.tree].path_of(place.module);
        path.first().map(|name| Room {
            target: place.tree,
            name: (*name).to_owned(),
        })
    }

    fn module(&self, place: Place) -> &Module {
        &self.trees[place.tree].modules[place.module]
    }

    fn number(&self, place: Place) -> usize {
        let before = &self.trees[..place.tree];
        let before: usize = before.iter().map(|tree| tree.files.len()).sum();
        before + self.module(place).file
    }

    fn find_arrows(&self) -> Vec<Arrow> {
        let mut arrows = Vec::new();
        for (tree, number) in self.modules() {
            let at = Place {
                tree,
                module: number,
            };
            let mut seen = BTreeSet::new();
            for named in &self.module(at).named {
                let Some(reached) = self.resolve(at, &named.segments, DEPTH, false) else {
                    continue;
                };
                if !seen.insert((&named.segments, named.line)) {
                    continue;
                }
                let mut used: Vec<Room> = [reached.named, reached.defined]
                    .into_iter()
                    .filter_map(|place| self.room_of(place))
                    .collect();
                used.dedup();
                arrows.push(Arrow {
                    from: self.number(at),
                    to: self.number(reached.defined),
                    line: named.line,
                    path: named.segments.join("::"),
                    room: self.room_of(at),
                    used,
                });
            }
        }
        arrows.retain(|arrow| arrow.from != arrow.to);
        arrows
    }

    fn modules(&self) -> impl Iterator<Item = (usize, usize)> {
        let trees = self.trees.iter().enumerate();
        trees.flat_map(|(tree, modules)| {
            (0..modules.modules.len()).map(move |module| (tree, module))
        })
    }

    /// Follows a path from a module. None if it leads out of the crate, or if `strict` and no item of that name is
    /// known.
    fn resolve(
        &self,
        at: Place,
        segments: &[String],
        depth: usize,
        strict: bool,
    ) -> Option<Reached> {
        let depth = depth.checked_sub(1)?;
        let (first, mut rest) = segments.split_first()?;
        let here = self.module(at);
        let inside = |module: usize| Place { module, ..at };
        let start = match first.as_str() {
            "crate" => inside(0),
            "self" => at,
            "super" => {
                let mut up = here.parent?;
                while let Some(("super", more)) = rest.split_first().map(|(s, r)| (s.as_str(), r)) {
                    (up, rest) = (self.module(inside(up)).parent?, more);
                }
                inside(up)
            }
            name => {
                if let Some(child) = here.children.get(name) {
                    inside(*child)
                } else if let Some(import) = here.imports.get(name) {
                    // `use image;` and `use image as contract;` lead out of the crate.
                    let path = [import, rest].concat();
                    let out = import.len() == 1 && !here.children.contains_key(&import[0]);
                    return if out && self.library(at, &import[0]).is_none() {
                        None
                    } else {
                        self.resolve(at, &path, depth, strict)
                    };
                } else if let Some(root) = self.library(at, name) {
                    root
                } else {
                    return self.by_glob(at, segments, depth);
                }
            }
        };
        self.walk(start, rest, depth, strict)
    }

    /// The library's root, if a program of the same package names it.
    fn library(&self, at: Place, name: &str) -> Option<Place> {
        let other = self.package.has_library && at.tree > 0;
        (other && name == self.package.library()).then_some(Place { tree: 0, module: 0 })
    }

    fn walk(&self, start: Place, rest: &[String], depth: usize, strict: bool) -> Option<Reached> {
        let mut at = start;
        for (number, segment) in rest.iter().enumerate() {
            let here = self.module(at);
            let found = |place| Reached {
                named: at,
                defined: place,
            };
            if let Some(child) = here.children.get(segment) {
                at.module = *child;
                continue;
            }
            if here.items.contains(segment) {
                return Some(found(at));
            }
            if let Some(import) = here.imports.get(segment) {
                let path = [import, &rest[number + 1..]].concat();
                let reached = self.resolve(at, &path, depth, strict);
                return Some(found(reached.map_or(at, |reached| reached.defined)));
            }
            if let Some(reached) = self.by_glob(at, &rest[number..], depth) {
                return Some(found(reached.defined));
            }
            return (!strict).then_some(found(at));
        }
        Some(Reached {
            named: at,
            defined: at,
        })
    }

    /// Looks up a path in the scope of a module's `use …::*` imports.
    fn by_glob(&self, at: Place, segments: &[String], depth: usize) -> Option<Reached> {
        self.module(at).globs.iter().find_map(|glob| {
            let path = [glob, segments].concat();
            self.resolve(at, &path, depth, true)
        })
    }
}
