//! `[users.NAME]` and `[groups.NAME]`: system accounts that the build makes, and the numbers of those that packages make.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::Rule;
use super::{Check, covered};
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::{Node, Value};

/// The home of an account that has none.
const NO_HOME: &str = "/nonexistent";
/// The shell of an account without a login.
const NO_SHELL: &str = "/usr/sbin/nologin";
/// Numbers that systemd and the kernel have for others: no owner, "no change" in 16 and 32 bits.
const NEVER: [u32; 3] = [65534, 65535, u32::MAX];

/// A user of the image, with a locked password. One that a package's script makes gets the number and the groups.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawUser {
    /// Its number. Without it, one that follows from the name alone, the same in every image.
    pub uid: Option<u32>,
    /// Its primary group, which has to be there. Without it, one of the user's name and number.
    pub group: Option<String>,
    /// Further groups that it is a member of, which have to be there.
    pub groups: Vec<String>,
    /// Its home, which has to be there: as a folder of `[files]` that belongs to the user. Default: /nonexistent.
    pub home: Option<String>,
    /// Its shell, which has to be there. Default: /usr/sbin/nologin.
    pub shell: Option<String>,
    /// Its full name or purpose.
    pub comment: Option<String>,
}

/// A group of the image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawGroup {
    /// Its number. Without it, one that follows from the name alone, the same in every image.
    pub gid: Option<u32>,
}

/// A user that the recipe asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct User {
    /// Its number.
    pub uid: Option<u32>,
    /// Its primary group.
    pub group: Option<String>,
    /// Further groups.
    pub groups: Vec<String>,
    /// Its home.
    pub home: Option<String>,
    /// Its shell.
    pub shell: Option<String>,
    /// Its full name or purpose.
    pub comment: Option<String>,
}

/// The users and groups that the recipe asks for, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounts {
    /// The users.
    pub users: BTreeMap<String, User>,
    /// The groups, each with its number if it is fixed.
    pub groups: BTreeMap<String, Option<u32>>,
}

pub(super) fn check(
    check: &mut Check<'_>,
    users: BTreeMap<String, RawUser>,
    groups: BTreeMap<String, RawGroup>,
) -> Accounts {
    for table in ["users", "groups"] {
        names(check, table);
    }
    let mut accounts = Accounts::default();
    for (name, raw) in users {
        accounts.users.insert(name.clone(), user(check, &name, raw));
    }
    for (name, RawGroup { gid }) in groups {
        accounts.groups.insert(name, gid);
    }
    let uids = accounts.users.iter();
    numbers(
        check,
        "users",
        "uid",
        uids.map(|(name, user)| (name, user.uid)),
    );
    let gids = accounts.groups.iter();
    numbers(check, "groups", "gid", gids.map(|(name, gid)| (name, *gid)));
    accounts
}

/// Names of accounts, which are the keys of a table.
fn names(check: &mut Check<'_>, table: &str) {
    let Some(Value::Table(entries)) = check.find(table).map(|node| &node.value) else {
        return;
    };
    for (name, entry) in entries {
        if let Err(why) = Rule::Account.check(name) {
            check.add(why.mistake(&entry.key));
        }
    }
}

fn user(check: &mut Check<'_>, name: &str, raw: RawUser) -> User {
    let RawUser {
        uid,
        group,
        groups,
        home,
        shell,
        comment,
    } = raw;
    let key = |key: &str| format!("users.{name}.{key}");
    check.text(&key("group"), Rule::Account);
    check.list(&key("groups"), Rule::Account);
    check.text(&key("home"), Rule::FilePath);
    check.text(&key("shell"), Rule::FilePath);
    for (path, text) in [("home", &home), ("shell", &shell), ("comment", &comment)] {
        let Some(text) = text else { continue };
        let place = check.place(&key(path));
        if text.contains(|c: char| c == ':' || c.is_control()) {
            let found = format!("`{path}` of the user {name} cannot be {text:?}");
            let expected = "expected a text without colons on one line, as passwd(5) has it";
            check.add(Mistake::at(&place, found, expected));
        } else if path == "shell"
            && let Some((found, expected)) = covered(text)
        {
            check.add(Mistake::at(&place, found, expected));
        }
    }
    User {
        uid,
        group,
        groups,
        home,
        shell,
        comment,
    }
}

/// Fixed numbers: none that nobody may have, and each once.
fn numbers<'n>(
    check: &mut Check<'_>,
    table: &str,
    key: &str,
    fixed: impl Iterator<Item = (&'n String, Option<u32>)>,
) {
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    for (name, number) in fixed {
        let Some(number) = number else { continue };
        let place = |name: &str| {
            let node = check.tree.at(&[table, name, key]);
            node.map_or(check.place(table), |node: &Node| node.place.clone())
        };
        let own = place(name);
        if NEVER.contains(&number) {
            let found = format!("no account may have the number {number}");
            check.add(Mistake::at(&own, found, "expected another number"));
        } else if let Some(before) = seen.insert(number, name) {
            let other = place(before);
            let found = format!("`{name}` and `{before}` both have the {key} {number}");
            let mistake = Mistake::at(&own, found, "expected each number once");
            check.add(mistake.also(&other, "the other one"));
        }
    }
}

impl User {
    /// Its home in passwd(5).
    #[must_use]
    pub fn home(&self) -> &str {
        self.home.as_deref().unwrap_or(NO_HOME)
    }

    /// Its shell in passwd(5).
    #[must_use]
    pub fn shell(&self) -> &str {
        self.shell.as_deref().unwrap_or(NO_SHELL)
    }

    /// The shell that has to be a program of the image. That of accounts without a login need not be: none denies a login as well, and
    /// it is not in an image whose packages do not bring it.
    #[must_use]
    pub fn wanted_shell(&self) -> Option<&str> {
        self.shell.as_deref().filter(|shell| *shell != NO_SHELL)
    }

    /// The home that has to be a folder of the image; none of an account without one, or where systemd makes the folder.
    #[must_use]
    pub fn wanted_home(&self) -> Option<&str> {
        let home = self.home.as_deref()?;
        let is_run = home.starts_with("/run/");
        (home != NO_HOME && !is_run).then_some(home)
    }
}
