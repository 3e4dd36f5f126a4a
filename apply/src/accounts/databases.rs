//! The account files, line by line: other lines stay byte for byte.

use anyhow::Result;

use crate::tree::{Tree, TreeEntry};

/// One of the account files.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    /// Its path.
    pub(crate) path: &'static str,
    lines: Vec<Vec<String>>,
    exists: bool,
    /// Whether the file was edited.
    pub(crate) changed: bool,
}

impl Database {
    /// Reads the file; an absent one is empty and stays absent unless it is a required file.
    pub(crate) fn load(tree: &Tree, path: &'static str) -> Result<Self> {
        let entry = tree.find(path).filter(|entry| entry.stat().is_some());
        let text = entry.as_ref().map(TreeEntry::read).transpose()?;
        let text = String::from_utf8_lossy(text.as_deref().unwrap_or_default()).into_owned();
        Ok(Self {
            path,
            lines: text
                .lines()
                .map(|line| line.split(':').map(str::to_owned).collect())
                .collect(),
            exists: entry.is_some(),
            changed: false,
        })
    }

    /// The file's text.
    pub(crate) fn to_text(&self) -> String {
        self.lines
            .iter()
            .map(|line| line.join(":") + "\n")
            .collect()
    }

    /// All lines, split at the colons.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        self.lines.iter().filter(|line| line.len() > 1)
    }

    /// The line of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Vec<String>> {
        self.lines().find(|line| line[0] == name)
    }

    /// A number of the line of this name.
    pub(crate) fn number(&self, name: &str, field: usize) -> Option<u32> {
        self.get(name)?.get(field)?.parse().ok()
    }

    /// All numbers in this field.
    pub(crate) fn numbers(&self, field: usize) -> Vec<u32> {
        self.lines()
            .filter_map(|line| line.get(field)?.parse().ok())
            .collect()
    }

    /// The first name with this number.
    pub(crate) fn name_of(&self, field: usize, number: u32) -> Option<String> {
        let holds =
            |line: &&Vec<String>| line.get(field).and_then(|n| n.parse().ok()) == Some(number);
        self.lines().find(holds).map(|line| line[0].clone())
    }

    /// Adds a line at the end.
    pub(crate) fn add(&mut self, fields: &[&str]) {
        self.lines
            .push(fields.iter().map(|field| (*field).to_owned()).collect());
        self.changed = true;
    }

    /// Changes a field of the line of this name.
    pub(crate) fn set(&mut self, name: &str, field: usize, value: &str) {
        let line = self
            .lines
            .iter_mut()
            .find(|line| line.len() > 1 && line[0] == name);
        if let Some(slot) = line.and_then(|line| line.get_mut(field))
            && slot != value
        {
            value.clone_into(slot);
            self.changed = true;
        }
    }

    /// Removes the line of this name.
    pub(crate) fn remove(&mut self, name: &str) {
        let before = self.lines.len();
        self.lines.retain(|line| line.len() < 2 || line[0] != name);
        self.changed |= self.lines.len() != before;
    }

    /// Edits the member list (the fourth field) of every line.
    pub(crate) fn edit_members(&mut self, edit: impl Fn(&mut Vec<&str>)) {
        for line in &mut self.lines {
            let Some(slot) = line.get_mut(3) else {
                continue;
            };
            let mut members: Vec<&str> = slot.split(',').filter(|m| !m.is_empty()).collect();
            edit(&mut members);
            let text = members.join(",");
            if *slot != text {
                *slot = text;
                self.changed = true;
            }
        }
    }

    /// Adds a member to the group of this name.
    pub(crate) fn add_member(&mut self, group: &str, member: &str) {
        let Some(line) = self.get(group) else { return };
        let members = line.get(3).cloned().unwrap_or_default();
        if members.split(',').any(|m| m == member) {
            return;
        }
        let text = match members.as_str() {
            "" => member.to_owned(),
            members => format!("{members},{member}"),
        };
        self.set(group, 3, &text);
    }

    /// Adds a range of subordinate ids behind the last one, if the file exists (useradd does it then).
    pub(crate) fn add_range(&mut self, name: &str, first: u32, count: u32) {
        if !self.exists || self.get(name).is_some() {
            return;
        }
        let end = |line: &Vec<String>| {
            let start: u32 = line.get(1)?.parse().ok()?;
            start.checked_add(line.get(2)?.parse().ok()?)
        };
        let start = self
            .lines()
            .filter_map(end)
            .max()
            .unwrap_or(first)
            .max(first);
        if start.checked_add(count).is_some() {
            self.add(&[name, &start.to_string(), &count.to_string()]);
        }
    }
}

/// The settings of login.defs(5) and useradd's defaults, else Debian's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) uids: (u32, u32),
    pub(crate) gids: (u32, u32),
    pub(crate) system_uids: (u32, u32),
    pub(crate) system_gids: (u32, u32),
    /// First subordinate id, and how many a user gets.
    pub(crate) sub_ids: (u32, u32),
    /// Mode of a new home.
    pub(crate) home_mode: u32,
    /// Folder of the homes.
    pub(crate) home: String,
    pub(crate) shell: String,
    /// Primary group of users without their own group.
    pub(crate) group: u32,
}

impl Defaults {
    /// Reads both files.
    pub(crate) fn load(tree: &Tree) -> Self {
        let read = |path: &str| {
            let text = tree.find(path).and_then(|entry| entry.read().ok());
            String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
        };
        Self::parse(&read("/etc/login.defs"), &read("/etc/default/useradd"))
    }

    fn parse(login: &str, useradd: &str) -> Self {
        let number = |name: &str, otherwise: u32| login_number(login, name).unwrap_or(otherwise);
        let setting = |name: &str| useradd_setting(useradd, name);
        let (uid_min, gid_min) = (number("UID_MIN", 1000), number("GID_MIN", 1000));
        let below = |min: u32| min.saturating_sub(1);
        Self {
            uids: (uid_min, number("UID_MAX", 60000)),
            gids: (gid_min, number("GID_MAX", 60000)),
            system_uids: (
                number("SYS_UID_MIN", 101),
                number("SYS_UID_MAX", below(uid_min)),
            ),
            system_gids: (
                number("SYS_GID_MIN", 101),
                number("SYS_GID_MAX", below(gid_min)),
            ),
            sub_ids: (
                number("SUB_UID_MIN", 100_000),
                number("SUB_UID_COUNT", 65_536),
            ),
            home_mode: number("HOME_MODE", 0o700),
            home: setting("HOME").unwrap_or_else(|| "/home".to_owned()),
            // The shell that shadow-utils' useradd has compiled in.
            shell: setting("SHELL").unwrap_or_else(|| "/bin/bash".to_owned()),
            group: setting("GROUP")
                .and_then(|group| group.parse().ok())
                .unwrap_or(100),
        }
    }
}

/// The last value of a name in login.defs(5); a leading 0 makes it octal.
fn login_number(text: &str, name: &str) -> Option<u32> {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name))
            .then(|| words.next().map(str::to_owned))
            .flatten()
    };
    let last = text.lines().filter_map(value).next_back()?;
    match last.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        _ => last.parse().ok(),
    }
}

/// The last value of a name in useradd's defaults that is not empty.
fn useradd_setting(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let rest = line.trim().strip_prefix(name)?;
        Some(rest.strip_prefix('=')?.to_owned())
    };
    text.lines()
        .filter_map(value)
        .rfind(|value| !value.is_empty())
}
