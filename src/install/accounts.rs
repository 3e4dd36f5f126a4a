//! The accounts of a tree: passwd(5), group(5) and their shadows read, system accounts given numbers that follow from their names,
//! further accounts added, and all owners in the tree changed with them.
//!
//! Scripts make accounts with the next free number, by adduser, useradd or systemd-sysusers: which one depends on the packages
//! before. Giving numbers beforehand would change what scripts do, since many set up an account only where they make it; so they run
//! as on any Debian, and the numbers are changed afterwards, in one place and whatever tool made the account. A number that a
//! script has written into a file of its own is not found.

mod numbers;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::rootfs::Rootfs;
use crate::code;
use crate::host::cache::Key;
use crate::layer::merge::PACKAGES_SEED;
use crate::layer::{Entry, Kind, Source};
use numbers::{DYNAMIC, USERS, number};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const SHADOW: &str = "/etc/shadow";
const GSHADOW: &str = "/etc/gshadow";
/// Lines of packages about accounts, sysusers.d(5).
const SYSUSERS: &str = "/usr/lib/sysusers.d/";

/// A line of passwd(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The number.
    pub uid: u32,
    /// The primary group's number.
    pub gid: u32,
    /// The full name or purpose.
    pub comment: String,
    /// The home.
    pub home: String,
    /// The shell.
    pub shell: String,
}

/// A line of group(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The number.
    pub gid: u32,
    /// The members, but for those whose primary group it is.
    pub members: Vec<String>,
}

/// Numbers that are fixed, by name.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// Of users.
    pub users: BTreeMap<String, u32>,
    /// Of groups.
    pub groups: BTreeMap<String, u32>,
}

/// Two accounts with one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// Whether they are users; else groups.
    pub users: bool,
    /// Their names.
    pub names: [String; 2],
    /// The number.
    pub number: u32,
}

/// The accounts of a tree.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// The users, in the file's order.
    pub users: Vec<User>,
    /// The groups, in the file's order.
    pub groups: Vec<Group>,
    /// Names that packages' lines of sysusers.d(5) give a number.
    numbered: BTreeSet<String>,
    shadow: String,
    gshadow: String,
    /// Names that have another one's number by intention.
    shared_users: BTreeSet<String>,
    shared_groups: BTreeSet<String>,
    moved_users: BTreeMap<u32, u32>,
    moved_groups: BTreeMap<u32, u32>,
}

impl Accounts {
    /// Those of an installed tree.
    ///
    /// # Errors
    /// If a file cannot be read or is not of its form.
    pub fn read(rootfs: &Rootfs) -> Result<Self> {
        let text = |path: &str| -> Result<String> {
            match rootfs.entries().iter().any(|entry| entry.path == path) {
                true => Ok(String::from_utf8(rootfs.read(path)?)?),
                false => Ok(String::new()),
            }
        };
        let read = |path: &str| text(path).with_context(|| format!("reading {path}"));
        let paths = rootfs.entries().iter().map(|entry| entry.path.as_str());
        let lines = paths.filter(|path| path.starts_with(SYSUSERS) && path.ends_with(".conf"));
        let lines: Result<Vec<String>> = lines.map(read).collect();
        Self::parse(
            [
                &read(PASSWD)?,
                &read(GROUP)?,
                &read(SHADOW)?,
                &read(GSHADOW)?,
            ],
            &lines?.join("\n"),
        )
    }

    fn parse([passwd, group, shadow, gshadow]: [&str; 4], sysusers: &str) -> Result<Self> {
        let users = lines(passwd).map(|line| user(line).with_context(|| about(PASSWD, line)));
        let groups = lines(group).map(|line| {
            let parsed = self::group(line);
            parsed.with_context(|| about(GROUP, line))
        });
        let users: Vec<User> = users.collect::<Result<_>>()?;
        let groups: Vec<Group> = groups.collect::<Result<_>>()?;
        Ok(Self {
            shared_users: doubles(users.iter().map(|user| (&user.name, user.uid))),
            shared_groups: doubles(groups.iter().map(|group| (&group.name, group.gid))),
            users,
            groups,
            numbered: numbered(sysusers),
            shadow: shadow.to_owned(),
            gshadow: gshadow.to_owned(),
            ..Self::default()
        })
    }

    /// Whether scripts gave the account a number, which another set of packages might change.
    fn is_dynamic(&self, name: &str, number: u32) -> bool {
        DYNAMIC.contains(&number) && !self.numbered.contains(name)
    }

    /// Gives each account of a script its own number, or the fixed one.
    pub fn renumber(&mut self, fixed: &Fixed) {
        for user in &self.users {
            if self.is_dynamic(&user.name, user.uid) {
                let own = user_number(&user.name, fixed);
                // A second name of one number stays one.
                self.moved_users.entry(user.uid).or_insert(own);
            }
        }
        for group in &self.groups {
            // As a user's number that one is adduser's first.
            if group.gid != USERS && self.is_dynamic(&group.name, group.gid) {
                let own = group_number(&group.name, fixed);
                self.moved_groups.entry(group.gid).or_insert(own);
            }
        }
        let (users, groups) = (&self.moved_users, &self.moved_groups);
        for user in &mut self.users {
            (user.uid, user.gid) = (moved(users, user.uid), moved(groups, user.gid));
        }
        for group in &mut self.groups {
            group.gid = moved(groups, group.gid);
        }
    }

    /// The user of a name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// The group of a name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Adds a group without members, unless it is there.
    pub fn add_group(&mut self, name: &str, fixed: &Fixed) {
        if self.group(name).is_none() {
            self.groups.push(Group {
                name: name.to_owned(),
                gid: group_number(name, fixed),
                members: Vec::new(),
            });
            self.gshadow.push_str(&format!("{name}:!*::\n"));
        }
    }

    /// Adds a user with a locked password, as systemd-sysusers does; its numbers are set here. `epoch` is in seconds since 1970. The
    /// group has to be there.
    pub fn add_user(&mut self, mut user: User, group: &str, fixed: &Fixed, epoch: u64) {
        user.uid = user_number(&user.name, fixed);
        user.gid = self.group(group).map_or(user.gid, |group| group.gid);
        let day = epoch / (24 * 60 * 60);
        self.shadow
            .push_str(&format!("{}:!*:{day}::::::\n", user.name));
        self.users.push(user);
    }

    /// Makes a user a member of a group, which has to be there.
    pub fn add_member(&mut self, group: &str, user: &str) {
        let found = self.groups.iter_mut().find(|found| found.name == group);
        let Some(found) = found.filter(|found| !found.members.iter().any(|one| one == user)) else {
            return;
        };
        found.members.push(user.to_owned());
        let text = self
            .gshadow
            .lines()
            .map(|line| match line.rsplit_once(':') {
                Some((before, members)) if line.split(':').next() == Some(group) => {
                    let comma = if members.is_empty() { "" } else { "," };
                    format!("{before}:{members}{comma}{user}\n")
                }
                _ => format!("{line}\n"),
            });
        self.gshadow = text.collect();
    }

    /// Pairs of accounts that have one number.
    #[must_use]
    pub fn clashes(&self) -> Vec<Clash> {
        let users = self.users.iter().map(|user| (&user.name, user.uid));
        let groups = self.groups.iter().map(|group| (&group.name, group.gid));
        let mut found = twins(users, true, &self.shared_users);
        found.extend(twins(groups, false, &self.shared_groups));
        found
    }

    /// A number that neither a user nor a group has.
    #[must_use]
    pub fn free(&self) -> Option<u32> {
        let is_free = |number: &u32| {
            self.users.iter().all(|user| user.uid != *number)
                && self.groups.iter().all(|group| group.gid != *number)
        };
        DYNAMIC.rev().skip(100).find(is_free)
    }

    /// The tree with these accounts: the four files, and the owners of all others.
    ///
    /// # Errors
    /// If the list of the content of `/var` cannot be read.
    pub fn apply(&self, rootfs: Rootfs) -> Result<Rootfs> {
        let passwd: String = self.users.iter().map(User::line).collect();
        let group: String = self.groups.iter().map(Group::line).collect();
        let has_seed = rootfs.entries().iter().any(|one| one.path == PACKAGES_SEED);
        let seed = match has_seed {
            true => String::from_utf8(rootfs.read(PACKAGES_SEED)?)?,
            false => String::new(),
        };
        let seed = self.seed(&seed);
        let mut texts = BTreeMap::from([
            (PASSWD, passwd),
            (GROUP, group),
            (SHADOW, self.shadow.clone()),
            (GSHADOW, self.gshadow.clone()),
            (PACKAGES_SEED, seed),
        ]);
        texts.retain(|_, text| !text.is_empty());
        let mut key = Key::of("accounts", code::ROOTFS).key("rootfs", &rootfs.key);
        for (path, text) in &texts {
            key = key.text(path, text);
        }
        let moves = format!("{:?} {:?}", self.moved_users, self.moved_groups);
        let key = key.text("moves", &moves).finish();
        Ok(rootfs.changed(key, |entry: &mut Entry| {
            entry.uid = moved(&self.moved_users, entry.uid);
            entry.gid = moved(&self.moved_groups, entry.gid);
            if let (Kind::File(source), Some(text)) =
                (&mut entry.kind, texts.get(entry.path.as_str()))
            {
                *source = Source::Bytes(text.clone().into_bytes());
            }
        }))
    }

    /// The list of the packages' content of `/var`, which has numbers of owners.
    fn seed(&self, text: &str) -> String {
        let mut out = String::new();
        for line in text.split_inclusive('\n') {
            let words: Vec<&str> = line.split(' ').collect();
            let numbers = match words.as_slice() {
                [_, _, _, uid, gid, ..] => uid.parse().ok().zip(gid.parse().ok()),
                _ => None,
            };
            let Some((uid, gid)) = numbers else {
                out.push_str(line);
                continue;
            };
            let (uid, gid) = (
                moved(&self.moved_users, uid),
                moved(&self.moved_groups, gid),
            );
            let (uid, gid) = (uid.to_string(), gid.to_string());
            let mut words = words;
            (words[3], words[4]) = (&uid, &gid);
            out.push_str(&words.join(" "));
        }
        out
    }
}

impl User {
    fn line(&self) -> String {
        let Self {
            name,
            uid,
            gid,
            comment,
            home,
            shell,
        } = self;
        format!("{name}:x:{uid}:{gid}:{comment}:{home}:{shell}\n")
    }
}

impl Group {
    fn line(&self) -> String {
        format!("{}:x:{}:{}\n", self.name, self.gid, self.members.join(","))
    }
}

fn about(path: &str, line: &str) -> String {
    format!("{path} has the line {line:?}, which is not of its form")
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty())
}

fn user(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, comment, home, shell] = fields[..] else {
        return None;
    };
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        comment: comment.to_owned(),
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

fn group(line: &str) -> Option<Group> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields[..] else {
        return None;
    };
    let members = members.split(',').filter(|name| !name.is_empty());
    Some(Group {
        name: name.to_owned(),
        gid: gid.parse().ok()?,
        members: members.map(str::to_owned).collect(),
    })
}

/// The names that lines `u NAME NUMBER` and `g NAME NUMBER` give a number.
fn numbered(sysusers: &str) -> BTreeSet<String> {
    let names = sysusers.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let kind = words.next()?.trim_end_matches('!');
        let (name, id) = (words.next()?, words.next()?);
        let is_number = id.split(':').next()?.parse::<u32>().is_ok();
        (["u", "g"].contains(&kind) && is_number).then(|| name.to_owned())
    });
    names.collect()
}

fn moved(numbers: &BTreeMap<u32, u32>, number: u32) -> u32 {
    numbers.get(&number).copied().unwrap_or(number)
}

fn user_number(name: &str, fixed: &Fixed) -> u32 {
    let own = fixed.users.get(name).copied();
    own.unwrap_or_else(|| number(name))
}

/// A group has the number of the user of its name, unless it has one of its own.
fn group_number(name: &str, fixed: &Fixed) -> u32 {
    let own = fixed.groups.get(name).copied();
    own.unwrap_or_else(|| user_number(name, fixed))
}

/// The names that come second with a number.
fn doubles<'a>(accounts: impl Iterator<Item = (&'a String, u32)>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let doubles = accounts.filter(|(_, number)| !seen.insert(*number));
    doubles.map(|(name, _)| name.clone()).collect()
}

/// Pairs with one number, but for names that shared theirs on purpose.
fn twins<'a>(
    accounts: impl Iterator<Item = (&'a String, u32)>,
    users: bool,
    shared: &BTreeSet<String>,
) -> Vec<Clash> {
    let mut by_number: BTreeMap<u32, Vec<&String>> = BTreeMap::new();
    for (name, number) in accounts.filter(|(name, _)| !shared.contains(*name)) {
        by_number.entry(number).or_default().push(name);
    }
    let twins = by_number.into_iter().filter_map(|(number, names)| {
        let [one, other, ..] = names[..] else {
            return None;
        };
        Some(Clash {
            users,
            names: [one.clone(), other.clone()],
            number,
        })
    });
    twins.collect()
}

#[cfg(test)]
mod tests;
