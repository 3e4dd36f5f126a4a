//! Users on the disk: account files, homes, ssh keys.

use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use ignition::model::Config;

use crate::journal::files::Intent;
use crate::tree::{Tree, TreeEntry, is_below, join, split};

mod databases;
mod edit;

use databases::Database;
pub(crate) use edit::{Accounts, SshKeys};
use edit::{FormerUser, Home};

/// Edits the accounts in memory according to the config, groups first. Problems are added to `wrong`, warnings to `warnings`.
pub(crate) fn plan(
    config: &Config,
    tree: &Tree,
    accounts: &mut Accounts,
    wrong: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> SshKeys {
    let mut keys = SshKeys::new();
    let Some(passwd) = &config.passwd else {
        return keys;
    };
    for (i, group) in passwd.groups.iter().flatten().enumerate() {
        if let Err(error) = accounts.apply_group(group) {
            wrong.push(format!("$.passwd.groups.{i}: {error}"));
        }
    }
    for (i, user) in passwd.users.iter().flatten().enumerate() {
        if let Err(error) = accounts.apply_user(user) {
            wrong.push(format!("$.passwd.users.{i}: {error}"));
            continue;
        }
        let lines = user.ssh_authorized_keys.clone().unwrap_or_default();
        if lines.is_empty() || user.should_exist == Some(false) {
            continue;
        }
        if lines.iter().any(|line| line.trim().contains(['\n', '\0'])) {
            wrong.push(format!("$.passwd.users.{i}: an ssh key holds a line break"));
        }
        let home = accounts
            .user(&user.name)
            .map(|(_, _, home)| home)
            .unwrap_or_default();
        if let Err(error) = tree.check_writable(&join(&home, ".ssh")) {
            wrong.push(format!("$.passwd.users.{i}: {error}"));
        }
        keys.insert(user.name.clone(), lines);
    }
    for home in accounts.homes.iter().filter(|home| !home.existing) {
        if let Err(error) = tree.check_writable(&home.path) {
            wrong.push(format!("$.passwd.users: home {error}"));
        }
    }
    accounts.removed = removed_homes(tree, accounts, warnings);
    keys
}

/// Real paths of the homes that go with their users, as by `userdel --remove`. The others are named in `warnings`.
fn removed_homes(tree: &Tree, accounts: &Accounts, warnings: &mut Vec<String>) -> Vec<String> {
    let mut removed = Vec::new();
    for user in &accounts.former {
        let entry = tree.find(&ignition::validate::clean(&user.home));
        let Some(entry) = entry.filter(|entry| entry.stat().is_some()) else {
            continue;
        };
        match check_removable(tree, accounts, user, &entry) {
            Ok(()) => removed.push(entry.real),
            Err(why) => warnings.push(format!(
                "$.passwd.users: {} is removed, and the home {} stays: {why}",
                user.name, user.home
            )),
        }
    }
    removed
}

/// Whether a home is the user's alone.
fn check_removable(
    tree: &Tree,
    accounts: &Accounts,
    user: &FormerUser,
    home: &TreeEntry,
) -> Result<(), String> {
    if !tree.is_writable(&home.real) {
        return Err("the root is read-only there".to_owned());
    }
    if home.stat().is_none_or(|meta| !meta.is_dir()) {
        return Err("it is not a directory".to_owned());
    }
    if user.uid == 0 || tree.owner(home).0 != user.uid {
        return Err("it does not belong to that user".to_owned());
    }
    for line in accounts.passwd.lines() {
        let other = line.get(5).map(|other| ignition::validate::clean(other));
        let Some(Ok(other)) = other.map(|other| tree.real_folder(&other)) else {
            continue;
        };
        if other == home.real || is_below(&other, &home.real) {
            return Err(format!("the home of {} is there too", line[0]));
        }
    }
    tree.check_removable(home)
}

/// Removes homes, then writes homes, account files and keys, in this order: a user whose home could not be made gets no
/// account, and a run that is interrupted before a home is removed finds its user again. `mounted` are the mount points of this
/// run and the folders that were made for them.
pub(crate) fn apply(
    tree: &Tree,
    accounts: &Accounts,
    keys: &SshKeys,
    mounted: &[String],
) -> Result<()> {
    for home in &accounts.removed {
        if let Some(entry) = tree.find(home) {
            tree.remove(&entry)?;
        }
    }
    for home in &accounts.homes {
        make_home(tree, home, accounts.defaults.home_mode, mounted)?;
    }
    let shadow = accounts.gid("shadow").unwrap_or(0);
    for (database, mode, group) in [
        (&accounts.group, 0o644, 0),
        (&accounts.gshadow, 0o640, shadow),
        (&accounts.passwd, 0o644, 0),
        (&accounts.shadow, 0o640, shadow),
        (&accounts.subuid, 0o644, 0),
        (&accounts.subgid, 0o644, 0),
    ] {
        if database.changed {
            write(tree, database, mode, (0, group))?;
        }
    }
    for (name, lines) in keys {
        write_keys(tree, accounts, name, lines)?;
    }
    Ok(())
}

/// Records the paths that [`apply`] will write to.
pub(crate) fn intend(
    tree: &Tree,
    accounts: &Accounts,
    keys: &SshKeys,
    mounted: &[String],
    intent: &mut Intent,
) -> Result<()> {
    for home in &accounts.removed {
        intent.folder(tree, home)?;
    }
    for home in &accounts.homes {
        let there = tree.find(&home.path).filter(|entry| entry.stat().is_some());
        match there {
            None if home.existing => {}
            None => intent.home(tree, &home.path)?,
            Some(entry) => {
                for folder in within(mounted, &entry.real) {
                    intent.folder(tree, folder)?;
                }
            }
        }
    }
    for database in accounts.databases() {
        if database.changed {
            let text = database.to_text();
            intent.file(tree, database.path, Some(text.as_bytes()))?;
        }
    }
    for (name, lines) in keys {
        if let Some((_, _, home)) = accounts.user(name) {
            let file = key_file(tree, &home);
            intent.file(tree, &file, Some(key_text(lines).as_bytes()))?;
        }
    }
    let (users, groups) = accounts.added();
    intent.accounts(users, groups);
    Ok(())
}

/// The file of a user's keys below the home.
fn key_file(tree: &Tree, home: &str) -> String {
    let (folders, file) = tree.rules.key_file;
    let folder = folders
        .iter()
        .fold(home.to_owned(), |above, name| join(&above, name));
    join(&folder, file)
}

fn key_text(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

/// Replaces an account file; keeps owner and mode.
fn write(tree: &Tree, database: &Database, mode: u32, owner: (u32, u32)) -> Result<()> {
    let entry = tree.entry(database.path)?;
    let (mode, owner) = match entry.stat() {
        Some(meta) => (meta.permissions().mode() & 0o7777, tree.owner(&entry)),
        None => (mode, owner),
    };
    tree.write(&entry, database.to_text().as_bytes(), mode, owner)
}

/// Makes a home from `/etc/skel`. It is filled under a temporary name and then renamed, so that a half-filled one never
/// counts as complete. An existing home is not changed, as with useradd; except that a folder which only the mounts
/// made, and which still belongs to root, becomes the user's, with mode 0700. For a user who exists none is made.
fn make_home(tree: &Tree, home: &Home, mode: u32, mounted: &[String]) -> Result<()> {
    if home.existing
        && tree
            .find(&home.path)
            .is_none_or(|entry| entry.stat().is_none())
    {
        return Ok(());
    }
    let entry = tree.entry(&home.path)?;
    if entry.stat().is_some() {
        for folder in within(mounted, &entry.real) {
            let entry = tree.entry(folder)?;
            if tree.owner(&entry) == (0, 0) {
                tree.chmod(&entry, 0o700)?;
                tree.own(&entry, home.owner)?;
            }
        }
        return Ok(());
    }
    let (above, name) = split(&home.path);
    let beside = join(above, &crate::tree::temporary_name(name));
    let entry = tree.entry(&beside)?;
    entry.remove()?;
    tree.make_folder(&entry, mode, home.owner)?;
    copy(tree, "/etc/skel", &beside, home.owner)?;
    tree.rename(&beside, &home.path)
}

/// The folders that are a home or inside it.
fn within<'a>(folders: &'a [String], home: &str) -> impl Iterator<Item = &'a String> {
    let inner = format!("{home}/");
    folders
        .iter()
        .filter(move |folder| **folder == home || folder.starts_with(&inner))
}

fn copy(tree: &Tree, from: &str, to: &str, owner: (u32, u32)) -> Result<()> {
    let Some(folder) = tree.find(from) else {
        return Ok(());
    };
    for name in folder.names() {
        let (source, target) = (join(from, &name), join(to, &name));
        let Some(entry) = tree.find(&source) else {
            continue;
        };
        let Some(meta) = entry.stat() else { continue };
        let mode = meta.permissions().mode() & 0o7777;
        let copy_place = tree.entry(&target)?;
        if meta.is_dir() {
            tree.make_folder(&copy_place, mode, owner)?;
            copy(tree, &source, &target, owner)?;
        } else if let Some(link) = entry.link_target() {
            tree.link(&copy_place, &link, owner)?;
        } else if meta.is_file() {
            tree.write_new(&copy_place, &entry.read()?, mode, owner)?;
        }
    }
    Ok(())
}

/// Writes `~/.ssh/authorized_keys.d/ignition`, or `~/.ssh/authorized_keys` if the rules ask for it; all of it belongs
/// to the user, who alone can read it.
fn write_keys(tree: &Tree, accounts: &Accounts, name: &str, lines: &[String]) -> Result<()> {
    let Some((uid, gid, home)) = accounts.user(name) else {
        return Ok(());
    };
    let owner = (uid, gid);
    let (folders, file) = tree.rules.key_file;
    let mut folder = home;
    for part in folders {
        folder = join(&folder, part);
        let entry = tree.entry(&folder)?;
        if entry.stat().is_none() {
            tree.make_folder(&entry, 0o700, owner)?;
        }
    }
    let entry = tree.entry(&join(&folder, file))?;
    tree.write(&entry, key_text(lines).as_bytes(), 0o600, owner)
}
