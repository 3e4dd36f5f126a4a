//! Provision: the config applied to the root.
//!
//! All or nothing: everything is planned and checked first, and all problems are reported together; only then is the
//! first byte written. The journal in `state` has every change before it is made, so that an interrupted run is undone
//! and started over. A second run accepts the result of the first one.

mod ignition_result;
#[cfg(test)]
pub(crate) mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::accounts::{Accounts, SshKeys};
use crate::fetched::Fetched;
use crate::journal::files::{FileJournal, Intent};
use crate::target::Target;
use crate::tree::Tree;
use crate::volumes::Opened;
use crate::volumes::crypttab;
use crate::{accounts, files, units};
use image::fault::Fault;

/// Counts of what was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Files, directories and links.
    pub entries: usize,
    /// Files among them.
    pub files: usize,
    /// Users and groups in the config.
    pub accounts: usize,
    /// Units in the config.
    pub units: usize,
    /// Warnings, which refuse nothing.
    pub warnings: Vec<String>,
}

/// Checks a config against the verified root alone, before `/var` is mounted: a problem that is found here would occur
/// on every attempt.
///
/// # Errors
/// All problems at once.
pub fn check(target: &Target, fetched: &Fetched) -> Result<()> {
    let tree = Tree::open(&target.root, target.rules)?;
    plan(fetched, &tree, &FileJournal::default(), 0).map(drop)
}

/// Results of the disks stage.
#[derive(Clone, Debug, Default)]
pub struct DiskResults {
    /// Mount points of the config's file systems, and folders that were made for them.
    pub mounted: Vec<String>,
    /// Encrypted volumes.
    pub volumes: Vec<Opened>,
}

/// Applies a config to the root, where `/etc` and `/var` are writable. The journal is on the disk before the first
/// write.
///
/// # Errors
/// All problems of the config on this root, before the first write; or the first write that failed.
pub fn apply(
    target: &Target,
    fetched: &Fetched,
    disk_results: &DiskResults,
    journal: &mut FileJournal,
) -> Result<Applied> {
    let tree = Tree::open(&target.root, target.rules)?;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    apply_to(fetched, &tree, disk_results, journal, (boot_id.trim(), now))
}

fn apply_to(
    fetched: &Fetched,
    tree: &Tree,
    disk_results: &DiskResults,
    journal: &mut FileJournal,
    (boot_id, now): (&str, u64),
) -> Result<Applied> {
    let repeated = is_repeated(tree, journal);
    journal.undo(tree)?;
    let plan = plan(fetched, tree, journal, now)?;
    if journal.is_kept() {
        let intent = plan.intent(tree, disk_results);
        let intent = intent.context("looking at what the config will change")?;
        journal.begin(&fetched.hash(), intent)?;
    }
    files::empty(tree, &plan.entries).context("applying storage")?;
    accounts::apply(tree, &plan.accounts, &plan.keys, &disk_results.mounted)
        .context("applying passwd")?;
    for entry in &plan.entries {
        entry.apply(tree, repeated).context("applying storage")?;
    }
    plan.units.apply(tree).context("applying systemd")?;
    crypttab::apply(tree, &disk_results.volumes).context("applying luks")?;
    ignition_result::write(tree, fetched.user_config, boot_id, now)?;
    tree.finish()?;
    let passwd = fetched.model.passwd.as_ref();
    let systemd = fetched.model.systemd.as_ref();
    Ok(Applied {
        entries: plan.entries.len(),
        files: plan.entries.iter().filter(|entry| entry.is_file()).count(),
        accounts: passwd.map_or(0, |passwd| {
            let count = |of: Option<usize>| of.unwrap_or(0);
            count(passwd.users.as_ref().map(Vec::len)) + count(passwd.groups.as_ref().map(Vec::len))
        }),
        units: systemd
            .and_then(|systemd| systemd.units.as_ref())
            .map_or(0, Vec::len),
        warnings: plan.warnings,
    })
}

/// Whether an earlier run completed, and no journal has the state before it.
fn is_repeated(tree: &Tree, journal: &FileJournal) -> bool {
    let result = tree.find(ignition_result::PATH);
    !journal.is_resumed() && result.is_some_and(|entry| entry.stat().is_some())
}

/// The plan of all changes to the root.
struct FilePlan<'a> {
    accounts: Accounts,
    keys: SshKeys,
    entries: Vec<files::Entry<'a>>,
    units: units::Units,
    warnings: Vec<String>,
}

impl FilePlan<'_> {
    /// All paths that will be written to, with their present state.
    fn intent(&self, tree: &Tree, disk_results: &DiskResults) -> Result<Intent> {
        let mut intent = Intent::default();
        let mounted = &disk_results.mounted;
        accounts::intend(tree, &self.accounts, &self.keys, mounted, &mut intent)?;
        for entry in &self.entries {
            entry.intend(tree, &mut intent)?;
        }
        self.units.intend(tree, &mut intent)?;
        crypttab::intend(tree, &disk_results.volumes, &mut intent)?;
        intent.file(tree, ignition_result::PATH, None)?;
        Ok(intent)
    }
}

fn plan<'a>(
    fetched: &'a Fetched,
    tree: &Tree,
    journal: &FileJournal,
    now: u64,
) -> Result<FilePlan<'a>> {
    let (mut wrong, mut warnings) = (Vec::new(), Vec::new());
    let mut accounts = Accounts::load(tree, now / 86_400).context("reading the accounts")?;
    let (users, groups) = journal.accounts();
    accounts.remove_interrupted(users, groups);
    let model = &fetched.model;
    let keys = accounts::plan(model, tree, &mut accounts, &mut wrong, &mut warnings);
    let journal = (journal, is_repeated(tree, journal));
    let entries = files::plan(fetched, tree, &accounts, journal, &mut wrong);
    let units = units::plan(model, tree, &fetched.files, &mut wrong, &mut warnings);
    for path in units.paths() {
        if let Err(error) = tree.check_writable(path) {
            wrong.push(format!("$.systemd.units: {error}"));
        }
    }
    if !wrong.is_empty() {
        return Err(
            Fault::new("the config cannot be applied to this image; nothing was written")
                .found(wrong.join("\n"))
                .fix("correct the config")
                .into(),
        );
    }
    Ok(FilePlan {
        accounts,
        keys,
        entries,
        units,
        warnings,
    })
}
