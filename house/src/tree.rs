//! One target's modules: their files, the items that each defines, and every path in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A path in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its segments, `crate` and `super` included.
    pub segments: Vec<String>,
    /// Its line, from 1.
    pub line: usize,
}

/// A module, in its own file or within another's.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Its name in its parent; empty for a root.
    pub name: String,
    /// Number of its parent.
    pub parent: Option<usize>,
    /// Number of its file.
    pub file: usize,
    /// Child modules by name.
    pub children: BTreeMap<String, usize>,
    /// Names of the items that it defines.
    pub items: BTreeSet<String>,
    /// Names in scope by its `use` items, with their paths.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Modules and enums whose names a `use …::*` brings into scope.
    pub globs: Vec<Vec<String>>,
    /// All paths in its code.
    pub named: Vec<Named>,
}

/// A function with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its signature.
    pub line: usize,
    /// Lines from its signature to the closing brace.
    pub lines: usize,
}

/// A source file.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path below the workspace's folder.
    pub path: PathBuf,
    /// Number of the module whose file it is.
    pub module: usize,
    /// The number of its lines.
    pub lines: usize,
    /// Its functions, without those of tests.
    pub functions: Vec<Function>,
}

/// All modules of one target. The root is module 0 and file 0.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Its modules.
    pub modules: Vec<Module>,
    /// Its files.
    pub files: Vec<File>,
    /// Test-only modules, which are not read: their paths without `.rs`.
    pub tests: Vec<PathBuf>,
}

impl Tree {
    /// The file of a module.
    #[must_use]
    pub fn file_of(&self, module: usize) -> usize {
        self.modules[module].file
    }

    /// The names of a module's ancestors and its own, from the root's child down; empty for the root.
    #[must_use]
    pub fn path_of(&self, module: usize) -> Vec<&str> {
        let mut names = Vec::new();
        let mut at = Some(module);
        while let Some(number) = at {
            let module = &self.modules[number];
            if module.parent.is_some() {
                names.push(module.name.as_str());
            }
            at = module.parent;
        }
        names.reverse();
        names
    }
}
