//! The control groups of a node: a folder in each hierarchy of this host, which is the root of what the node sees.
//!
//! Hosts with controllers in hierarchies of version 1 (cgroups(7)), with or without an empty one of version 2 beside them,
//! and hosts with version 2 alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Where the host has them.
const HOST: &str = "/sys/fs/cgroup";
/// What the names of groups begin with.
const PREFIX: &str = "slipway-";
/// How long groups of ended processes may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// One hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// The options of its mount; none for version 2.
    pub(crate) options: Option<String>,
    /// Its folder below `/sys/fs/cgroup`, empty if it is that folder itself.
    pub(crate) folder: String,
}

/// The groups of a node.
#[derive(Debug)]
pub(crate) struct ControlGroups {
    pub(crate) hierarchies: Vec<Hierarchy>,
    name: String,
}

impl ControlGroups {
    /// Makes a group for the node `name` in each hierarchy.
    ///
    /// # Errors
    /// If a hierarchy is not mounted where it should be, or is not writable.
    pub(crate) fn make(name: &str) -> Result<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
        let groups = Self {
            hierarchies: hierarchies(&text),
            // Another run beside this one may have a node of the same name.
            name: format!("{PREFIX}{}-{name}", std::process::id()),
        };
        for hierarchy in &groups.hierarchies {
            remove_left(&Path::new(HOST).join(&hierarchy.folder));
        }
        for hierarchy in &groups.hierarchies {
            let folder = groups.folder(hierarchy);
            fs::create_dir(&folder)
                .with_context(|| format!("making the control group {}", folder.display()))?;
            prepare(hierarchy, &folder)?;
        }
        Ok(groups)
    }

    /// The files by which a process joins the groups, as this host sees them.
    pub(crate) fn joins(&self) -> Vec<PathBuf> {
        let folders = self.hierarchies.iter().map(|one| self.folder(one));
        folders.map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// The same files as a node sees them, whose root is the group.
    pub(crate) fn joins_inside(&self) -> Vec<PathBuf> {
        let folders = self
            .hierarchies
            .iter()
            .map(|one| Path::new(HOST).join(&one.folder));
        folders.map(|folder| folder.join("cgroup.procs")).collect()
    }

    fn folder(&self, hierarchy: &Hierarchy) -> PathBuf {
        Path::new(HOST).join(&hierarchy.folder).join(&self.name)
    }

    /// Removes the groups with all below them, once their processes have ended.
    ///
    /// # Errors
    /// If one is still busy after ten seconds.
    pub(crate) fn remove(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for hierarchy in &self.hierarchies {
            let folder = self.folder(hierarchy);
            while folder.exists() {
                match remove_below(&folder) {
                    Ok(()) => break,
                    Err(error) => {
                        ensure!(
                            Instant::now() < until,
                            "removing the control group {}: {error}",
                            folder.display()
                        );
                        sleep(Duration::from_millis(20));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        // The processes were killed; a group that is still busy is removed by the next node of that name.
        drop(self.remove());
    }
}

/// Removes the groups of runs that were killed; what is busy stays.
fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let run = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if run.is_some_and(|run| !Path::new("/proc").join(run).exists()) {
            drop(remove_below(&entry.path()));
        }
    }
}

/// Depth first: a group with groups below it cannot be removed, and its files need not be.
fn remove_below(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_below(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

/// A new group of `cpuset` has no processors until it is given some; one of version 2 has the controllers that its parent
/// passes on.
fn prepare(hierarchy: &Hierarchy, folder: &Path) -> Result<()> {
    let parent = folder.parent().context("the parent of a control group")?;
    match hierarchy.options.as_deref() {
        Some("cpuset") => {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = fs::read_to_string(parent.join(file))
                    .with_context(|| format!("reading {file} of {}", parent.display()))?;
                fs::write(folder.join(file), value.trim())
                    .with_context(|| format!("writing {file} of {}", folder.display()))?;
            }
        }
        None if hierarchy.folder.is_empty() => {
            let all = fs::read_to_string(parent.join("cgroup.controllers"))
                .context("reading the controllers of this host")?;
            let wanted: Vec<String> = all
                .split_whitespace()
                .map(|name| format!("+{name}"))
                .collect();
            fs::write(parent.join("cgroup.subtree_control"), wanted.join(" "))
                .context("passing the controllers on")?;
        }
        _ => {}
    }
    Ok(())
}

/// The hierarchies of `/proc/self/cgroup` (cgroups(7)): `NUMBER:CONTROLLERS:PATH`, `name=NAME` for one without controllers,
/// nothing for version 2.
fn hierarchies(text: &str) -> Vec<Hierarchy> {
    let lines = text.lines().filter_map(|line| line.split(':').nth(1));
    let first: Vec<&str> = lines
        .filter(|controllers| !controllers.is_empty())
        .collect();
    let mut all: Vec<Hierarchy> = first
        .iter()
        .map(|controllers| match controllers.strip_prefix("name=") {
            Some(name) => Hierarchy {
                options: Some(format!("none,name={name}")),
                folder: name.to_owned(),
            },
            None => Hierarchy {
                options: Some((*controllers).to_owned()),
                folder: (*controllers).to_owned(),
            },
        })
        .collect();
    if first.is_empty() {
        all.push(Hierarchy {
            options: None,
            folder: String::new(),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read() {
        let hybrid = "4:memory:/other\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n";
        let found: Vec<_> = hierarchies(hybrid)
            .into_iter()
            .map(|one| (one.options.unwrap_or_default(), one.folder))
            .collect();
        let expected = [
            ("memory", "memory"),
            ("cpu,cpuacct", "cpu,cpuacct"),
            ("none,name=systemd", "systemd"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let alone = hierarchies("0::/user.slice\n");
        assert_eq!(
            alone,
            [Hierarchy {
                options: None,
                folder: String::new()
            }]
        );
    }
}
