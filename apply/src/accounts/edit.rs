//! Users and groups: the files of passwd(5), shadow(5), group(5) and gshadow(5), edited as shadow-utils edits them on
//! Debian. All edits are made in memory; the files are written later, with the others.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ignition::model::{Group, User};

use crate::tree::Tree;

#[cfg(test)]
mod tests;

use super::databases::{Database, Defaults};

/// What shadow-utils writes into gshadow(5) for a group without a password.
const NO_GROUP_PASSWORD: &str = "!";

/// The home of a user of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Path as passwd has it.
    pub(crate) path: String,
    /// Owner.
    pub(crate) owner: (u32, u32),
    /// Whether it is the home that an existing user has: it is not made if it is absent.
    pub(crate) existing: bool,
}

/// A user who was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerUser {
    pub(crate) name: String,
    pub(crate) uid: u32,
    /// Path as passwd had it.
    pub(crate) home: String,
}

/// The edited accounts of the node.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(crate) passwd: Database,
    pub(crate) shadow: Database,
    pub(crate) group: Database,
    pub(crate) gshadow: Database,
    pub(crate) subuid: Database,
    pub(crate) subgid: Database,
    pub(crate) defaults: Defaults,
    /// Homes to make, or to give to their users.
    pub(crate) homes: Vec<Home>,
    /// Users who were removed.
    pub(crate) former: Vec<FormerUser>,
    /// Real paths of their homes that are removed with them.
    pub(crate) removed: Vec<String>,
    /// Days since 1970, for shadow's "last change".
    pub(crate) today: u64,
    /// Users and groups that existed when the files were read.
    initial: (BTreeSet<String>, BTreeSet<String>),
}

/// The keys of users: name → lines of `authorized_keys`.
pub(crate) type SshKeys = BTreeMap<String, Vec<String>>;

impl Accounts {
    /// Reads the files of the root.
    pub(crate) fn load(tree: &Tree, today: u64) -> Result<Self> {
        let read = |name: &'static str| Database::load(tree, name);
        let mut accounts = Self {
            passwd: read("/etc/passwd")?,
            shadow: read("/etc/shadow")?,
            group: read("/etc/group")?,
            gshadow: read("/etc/gshadow")?,
            subuid: read("/etc/subuid")?,
            subgid: read("/etc/subgid")?,
            defaults: Defaults::load(tree),
            homes: Vec::new(),
            former: Vec::new(),
            removed: Vec::new(),
            today,
            initial: Default::default(),
        };
        accounts.initial = accounts.names();
        Ok(accounts)
    }

    fn names(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let names = |database: &Database| database.lines().map(|line| line[0].clone()).collect();
        (names(&self.passwd), names(&self.group))
    }

    /// Users and groups that were added since the files were read.
    pub(crate) fn added(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let (users, groups) = self.names();
        (&users - &self.initial.0, &groups - &self.initial.1)
    }

    /// Removes users and groups that an interrupted attempt was adding: their lines may be in only some of the files.
    pub(crate) fn remove_interrupted(
        &mut self,
        users: &BTreeSet<String>,
        groups: &BTreeSet<String>,
    ) {
        for name in users {
            for database in [
                &mut self.passwd,
                &mut self.shadow,
                &mut self.subuid,
                &mut self.subgid,
            ] {
                database.remove(name);
            }
            self.leave_groups(name);
        }
        for name in groups {
            self.group.remove(name);
            self.gshadow.remove(name);
        }
        self.initial = self.names();
    }

    /// The files.
    pub(crate) const fn databases(&self) -> [&Database; 6] {
        [
            &self.group,
            &self.gshadow,
            &self.passwd,
            &self.shadow,
            &self.subuid,
            &self.subgid,
        ]
    }

    /// The uid of a user.
    pub(crate) fn uid(&self, name: &str) -> Option<u32> {
        self.passwd.number(name, 2)
    }

    /// The gid of a group.
    pub(crate) fn gid(&self, name: &str) -> Option<u32> {
        self.group.number(name, 2)
    }

    /// Uid, gid and home of a user.
    pub(crate) fn user(&self, name: &str) -> Option<(u32, u32, String)> {
        let line = self.passwd.get(name)?;
        Some((
            line.get(2)?.parse().ok()?,
            line.get(3)?.parse().ok()?,
            line.get(5)?.clone(),
        ))
    }

    /// Makes, changes or removes a group.
    ///
    /// # Errors
    /// The mistake in the entry, without a password.
    pub(crate) fn apply_group(&mut self, wanted: &Group) -> Result<(), String> {
        check_name(&wanted.name)?;
        let name = wanted.name.as_str();
        let exists = self.group.get(name).is_some();
        if wanted.should_exist == Some(false) {
            if exists {
                self.remove_group(name)?;
            }
            return Ok(());
        }
        // As for groupadd and groupmod: an empty one is none.
        let hash = wanted.password_hash.as_deref();
        let hash = hash.filter(|hash| !hash.is_empty());
        let gid = wanted.gid.map(id).transpose()?;
        if let Some(gid) = gid
            && let Some(other) = self.group.name_of(2, gid).filter(|other| other != name)
        {
            return Err(format!("gid {gid} belongs to the group {other}"));
        }
        if exists {
            if let Some(gid) = gid {
                self.group.set(name, 2, &gid.to_string());
            }
            if let Some(hash) = hash {
                self.gshadow.set(name, 1, field(hash)?);
            }
            return Ok(());
        }
        let gid = match gid {
            Some(gid) => gid,
            None => self.free_gid(wanted.system == Some(true), None)?,
        };
        self.add_group(name, gid, field(hash.unwrap_or(NO_GROUP_PASSWORD))?);
        Ok(())
    }

    fn add_group(&mut self, name: &str, gid: u32, hash: &str) {
        self.group.add(&[name, "x", &gid.to_string(), ""]);
        self.gshadow.add(&[name, hash, "", ""]);
    }

    fn remove_group(&mut self, name: &str) -> Result<(), String> {
        let gid = self
            .gid(name)
            .map(|gid| gid.to_string())
            .unwrap_or_default();
        if let Some(user) = self.passwd.lines().find(|line| line.get(3) == Some(&gid)) {
            return Err(format!("it is the primary group of the user {}", user[0]));
        }
        self.group.remove(name);
        self.gshadow.remove(name);
        Ok(())
    }

    /// Makes, changes or removes a user.
    ///
    /// # Errors
    /// The mistake in the entry, without a password.
    pub(crate) fn apply_user(&mut self, wanted: &User) -> Result<(), String> {
        check_name(&wanted.name)?;
        let exists = self.passwd.get(&wanted.name).is_some();
        match (exists, wanted.should_exist != Some(false)) {
            // An account that is removed from one file may still be in the others, if its removal was interrupted.
            (_, false) => {
                self.remove_user(&wanted.name);
                Ok(())
            }
            (true, true) => self.change_user(wanted),
            (false, true) => self.add_user(wanted),
        }
    }

    fn add_user(&mut self, wanted: &User) -> Result<(), String> {
        let name = wanted.name.as_str();
        let system = wanted.system == Some(true);
        let uid = match wanted.uid.map(id).transpose()? {
            Some(uid) => match self.passwd.name_of(2, uid) {
                Some(other) => return Err(format!("uid {uid} belongs to the user {other}")),
                None => uid,
            },
            None => self.free_uid(system)?,
        };
        let gid = self.primary_group(wanted, uid)?;
        let home = match wanted.home_dir.as_deref() {
            Some(home) if !home.is_empty() => home.to_owned(),
            _ => format!("{}/{name}", self.defaults.home),
        };
        let shell = wanted.shell.as_deref().filter(|shell| !shell.is_empty());
        let shell = shell.unwrap_or(&self.defaults.shell).to_owned();
        let gecos = field(wanted.gecos.as_deref().unwrap_or_default())?;
        let (uid_text, gid_text) = (uid.to_string(), gid.to_string());
        let line = [
            name,
            "x",
            &uid_text,
            &gid_text,
            gecos,
            field(&home)?,
            field(&shell)?,
        ];
        self.passwd.add(&line);
        self.add_shadow(wanted)?;
        if !system {
            let count = self.defaults.sub_ids.1;
            self.subuid.add_range(name, self.defaults.sub_ids.0, count);
            self.subgid.add_range(name, self.defaults.sub_ids.0, count);
        }
        if wanted.no_create_home != Some(true) {
            self.homes.push(Home {
                path: home,
                owner: (uid, gid),
                existing: false,
            });
        }
        self.join_groups(name, wanted.groups.as_deref().unwrap_or_default())
    }

    /// The gid of the primary group of a new user; without one in the config, a group with the user's name is made.
    fn primary_group(&mut self, wanted: &User, uid: u32) -> Result<u32, String> {
        let name = wanted.name.as_str();
        match (&wanted.primary_group, wanted.no_user_group == Some(true)) {
            (Some(group), _) if !group.is_empty() => self.group_named(group),
            (_, true) => Ok(self.defaults.group),
            (_, false) => {
                if self.group.get(name).is_some() {
                    return Err(format!(
                        "a group {name} exists; give it as primaryGroup, or set noUserGroup"
                    ));
                }
                let gid = self.free_gid(wanted.system == Some(true), Some(uid))?;
                self.add_group(name, gid, NO_GROUP_PASSWORD);
                Ok(gid)
            }
        }
    }

    /// The line in `/etc/shadow`. As with useradd, the passwords of system users do not age.
    fn add_shadow(&mut self, wanted: &User) -> Result<(), String> {
        let hash = field(password_field(
            wanted.password_hash.as_deref().unwrap_or_default(),
        ))?;
        let today = self.today.to_string();
        let (least, most, warn) = match wanted.system == Some(true) {
            true => ("", "", ""),
            false => ("0", "99999", "7"),
        };
        let line = [&wanted.name, hash, &today, least, most, warn, "", "", ""];
        self.shadow.add(&line);
        Ok(())
    }

    fn change_user(&mut self, wanted: &User) -> Result<(), String> {
        let name = wanted.name.as_str();
        if let Some(uid) = wanted.uid.map(id).transpose()?
            && self.uid(name) != Some(uid)
        {
            return Err(format!(
                "the user {name} exists with another uid; the uid of an existing user is not changed"
            ));
        }
        if let Some(gecos) = &wanted.gecos {
            self.passwd.set(name, 4, field(gecos)?);
        }
        if let Some(shell) = wanted.shell.as_deref().filter(|shell| !shell.is_empty()) {
            self.passwd.set(name, 6, field(shell)?);
        }
        let group = wanted.primary_group.as_deref();
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            let gid = self.group_named(group)?;
            self.passwd.set(name, 3, &gid.to_string());
        }
        if let Some(home) = wanted.home_dir.as_deref().filter(|home| !home.is_empty()) {
            self.change_home(name, home)?;
        }
        self.keep_home(wanted);
        if let Some(hash) = &wanted.password_hash {
            self.shadow.set(name, 1, field(password_field(hash))?);
            self.shadow.set(name, 2, &self.today.to_string());
        }
        match &wanted.groups {
            Some(groups) if !groups.is_empty() => {
                self.leave_groups(name);
                self.join_groups(name, groups)
            }
            _ => Ok(()),
        }
    }

    fn change_home(&mut self, name: &str, home: &str) -> Result<(), String> {
        let (uid, gid, old) = self.user(name).unwrap_or_default();
        if old != home {
            self.passwd.set(name, 5, field(home)?);
            self.homes.push(Home {
                path: home.to_owned(),
                owner: (uid, gid),
                existing: false,
            });
        }
        Ok(())
    }

    /// Records the home of an existing user, which only a mount may have made.
    fn keep_home(&mut self, wanted: &User) {
        let Some((uid, gid, path)) = self.user(&wanted.name) else {
            return;
        };
        let is_new = self.homes.iter().any(|home| home.path == path);
        if wanted.no_create_home != Some(true) && !is_new {
            self.homes.push(Home {
                path,
                owner: (uid, gid),
                existing: true,
            });
        }
    }

    fn remove_user(&mut self, name: &str) {
        if let Some((uid, _, home)) = self.user(name) {
            self.former.push(FormerUser {
                name: name.to_owned(),
                uid,
                home,
            });
        }
        let own = self.passwd.get(name).and_then(|line| line.get(3).cloned());
        self.passwd.remove(name);
        self.shadow.remove(name);
        self.subuid.remove(name);
        self.subgid.remove(name);
        self.leave_groups(name);
        let unused = self.group.get(name).is_some_and(|line| {
            line.get(2) == own.as_ref() && line.get(3).is_none_or(String::is_empty)
        });
        if unused {
            // Not removed if it is another user's primary group.
            self.remove_group(name).unwrap_or_default();
        }
        if self.group.get(name).is_none() {
            self.gshadow.remove(name);
        }
    }

    fn leave_groups(&mut self, name: &str) {
        for database in [&mut self.group, &mut self.gshadow] {
            database.edit_members(|members| members.retain(|member| *member != name));
        }
    }

    fn join_groups(&mut self, name: &str, groups: &[String]) -> Result<(), String> {
        for group in groups {
            if self.group.get(group).is_none() {
                return Err(format!("the group {group} does not exist"));
            }
            self.group.add_member(group, name);
            self.gshadow.add_member(group, name);
        }
        Ok(())
    }

    /// A group by name or number.
    fn group_named(&self, group: &str) -> Result<u32, String> {
        let by_number = || {
            let gid: u32 = group.parse().ok()?;
            self.group.name_of(2, gid).map(|_| gid)
        };
        self.gid(group)
            .or_else(by_number)
            .ok_or(format!("the group {group} does not exist"))
    }

    fn free_uid(&self, system: bool) -> Result<u32, String> {
        let (low, high) = match system {
            true => self.defaults.system_uids,
            false => self.defaults.uids,
        };
        free(&self.passwd.numbers(2), low, high, system).ok_or("no uid is free".to_owned())
    }

    fn free_gid(&self, system: bool, preferred: Option<u32>) -> Result<u32, String> {
        let used = self.group.numbers(2);
        if let Some(gid) = preferred.filter(|gid| !used.contains(gid)) {
            return Ok(gid);
        }
        let (low, high) = match system {
            true => self.defaults.system_gids,
            false => self.defaults.gids,
        };
        free(&used, low, high, system).ok_or("no gid is free".to_owned())
    }
}

/// The next free id, as shadow-utils choose it: for regular users upward from the highest in use, for system users
/// downward from the lowest.
fn free(used: &[u32], low: u32, high: u32, downward: bool) -> Option<u32> {
    let within = || used.iter().copied().filter(|id| (low..=high).contains(id));
    let is_free = |id: &u32| !used.contains(id);
    if downward {
        let next = within()
            .min()
            .map_or(Some(high), |lowest| lowest.checked_sub(1));
        next.filter(|id| *id >= low)
            .or_else(|| (low..=high).rev().find(is_free))
    } else {
        let next = within().max().map_or(low, |highest| highest + 1);
        Some(next)
            .filter(|id| *id <= high)
            .or_else(|| (low..=high).find(is_free))
    }
}

fn id(number: i64) -> Result<u32, String> {
    // The last number means "no id" to the kernel.
    u32::try_from(number)
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or(format!("{number} is not a valid id"))
}

/// The field for an absent password: a value that no password matches.
fn password_field(hash: &str) -> &str {
    if hash.is_empty() { "*" } else { hash }
}

/// A value that fits between two colons of a line. The message leaves the value out: it may be a secret.
fn field(text: &str) -> Result<&str, String> {
    match text.contains([':', '\n', '\0']) {
        true => Err("a value holds a colon or a line break".to_owned()),
        false => Ok(text),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let strange = |c: char| c.is_whitespace() || c.is_control() || ":/,\\".contains(c);
    if name.is_empty() {
        Err("the name is empty".to_owned())
    } else if name.starts_with(['-', '+', '~']) || name.contains(strange) || name.len() > 32 {
        Err(format!("{name:?} is not a valid name for a user or group"))
    } else if name.bytes().all(|b| b.is_ascii_digit()) || name == "." || name == ".." {
        Err(format!("{name:?} would be taken for a number or a folder"))
    } else {
        Ok(())
    }
}
