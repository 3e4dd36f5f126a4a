//! The packages of a workspace: names, roots of their targets, dependencies on each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

/// A member of the workspace.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, below that of the workspace; empty for the package at the top.
    pub folder: PathBuf,
    /// Root files of the library and of the programs, the library first; below the workspace's folder.
    pub roots: Vec<PathBuf>,
    /// Whether the first root is a library's.
    pub has_library: bool,
    /// Packages of the workspace that it or its build script depends on, by name, with the line in its `Cargo.toml`.
    pub dependencies: BTreeMap<String, usize>,
}

impl Package {
    /// The library's name in paths.
    #[must_use]
    pub fn library(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The path of its `Cargo.toml` below the workspace's folder.
    #[must_use]
    pub fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }
}

/// Reads the packages of the workspace in a folder, in the order of `members`, the root package last.
///
/// # Errors
/// If a `Cargo.toml` cannot be read.
pub fn read(workspace: &Path) -> Result<Vec<Package>> {
    let (_, top) = manifest(workspace, Path::new(""))?;
    let members = top
        .get("workspace")
        .and_then(|table| table.get("members"))
        .and_then(Value::as_array)
        .context("finding [workspace] members")?;
    let mut folders: Vec<PathBuf> = members
        .iter()
        .filter_map(Value::as_str)
        .map(PathBuf::from)
        .collect();
    if top.contains_key("package") {
        folders.push(PathBuf::new());
    }
    let mut packages = Vec::new();
    for folder in &folders {
        packages.push(package(workspace, folder)?);
    }
    let names: Vec<String> = packages
        .iter()
        .map(|package| package.name.clone())
        .collect();
    for package in &mut packages {
        package.dependencies.retain(|name, _| names.contains(name));
    }
    Ok(packages)
}

fn manifest(workspace: &Path, folder: &Path) -> Result<(String, Table)> {
    let path = workspace.join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let table = text
        .parse()
        .with_context(|| format!("parsing {}", path.display()))?;
    Ok((text, table))
}

fn package(workspace: &Path, folder: &Path) -> Result<Package> {
    let (text, table) = manifest(workspace, folder)?;
    let name = table
        .get("package")
        .and_then(|package| package.get("name"))
        .and_then(Value::as_str)
        .with_context(|| format!("finding the package's name in {}", folder.display()))?;
    let (roots, has_library) = roots(workspace, folder, &table)?;
    Ok(Package {
        name: name.to_owned(),
        folder: folder.to_owned(),
        roots,
        has_library,
        dependencies: dependencies(&text, &table),
    })
}

/// Dependencies of the package and of its build script, without those of tests. A renamed dependency has the package's
/// name in `package`.
fn dependencies(text: &str, table: &Table) -> BTreeMap<String, usize> {
    let of = |table: &Table| -> Vec<String> {
        ["dependencies", "build-dependencies"]
            .iter()
            .filter_map(|kind| table.get(*kind).and_then(Value::as_table))
            .flatten()
            .map(|(name, value)| {
                let other = value.get("package").and_then(Value::as_str);
                other.unwrap_or(name).to_owned()
            })
            .collect()
    };
    let mut names = of(table);
    let targets = table.get("target").and_then(Value::as_table);
    for target in targets.into_iter().flatten() {
        names.extend(target.1.as_table().map(of).unwrap_or_default());
    }
    names
        .into_iter()
        .map(|name| {
            let line = text
                .lines()
                .position(|line| line.split(['.', '=', ' ']).next() == Some(name.as_str()));
            (name, line.map_or(1, |line| line + 1))
        })
        .collect()
}

/// Root files by the rules of Cargo: `src/lib.rs`, `src/main.rs`, `src/bin/`, and the paths in `[lib]` and `[[bin]]`.
fn roots(workspace: &Path, folder: &Path, table: &Table) -> Result<(Vec<PathBuf>, bool)> {
    let mut roots = Vec::new();
    let named = |value: &Value| value.get("path").and_then(Value::as_str).map(PathBuf::from);
    let library = table.get("lib").and_then(named);
    roots.push(folder.join(library.unwrap_or_else(|| "src/lib.rs".into())));
    let has_library = workspace.join(&roots[0]).is_file();
    roots.push(folder.join("src/main.rs"));
    let programs = table.get("bin").and_then(Value::as_array);
    for program in programs.into_iter().flatten() {
        roots.extend(named(program).map(|path| folder.join(path)));
    }
    let bin = folder.join("src/bin");
    if workspace.join(&bin).is_dir() {
        let mut found = Vec::new();
        for entry in fs::read_dir(workspace.join(&bin))? {
            let path = bin.join(entry?.file_name());
            match path.extension() {
                Some(extension) if extension == "rs" => found.push(path),
                _ => found.push(path.join("main.rs")),
            }
        }
        found.sort();
        roots.extend(found);
    }
    roots.retain(|root| workspace.join(root).is_file());
    let mut seen = Vec::new();
    roots.retain(|root| {
        let new = !seen.contains(root);
        seen.push(root.clone());
        new
    });
    Ok((roots, has_library))
}
