//! Users and groups.

use super::fields::{copy, copy_filled, copy_once, is_filled, object, put};
use super::schema::ACCOUNT;
use super::{Entry, Translation};
use crate::schema::{GROUP, USER};
use crate::tree::Node;

impl Translation {
    pub(super) fn passwd(&mut self, old: Option<&Node>) -> Node {
        let Some(passwd) = old else {
            return Node::empty();
        };
        let mut new = object(passwd);
        let mut users = Vec::new();
        for entry in Entry::all(old, "users", "$.passwd") {
            let user = self.user(&entry);
            users.push((entry.path, user));
        }
        let groups = Entry::all(old, "groups", "$.passwd")
            .into_iter()
            .map(|entry| {
                let mut group = object(entry.node);
                copy(entry.node, &mut group, &["name", "gid"]);
                copy_filled(entry.node, &mut group, &["passwordHash", "system"]);
                (entry.path, group)
            });
        for (name, entries, schema) in [
            ("groups", groups.collect(), &GROUP),
            ("users", users, &USER),
        ] {
            let at = passwd.get(name).and_then(|node| node.at.clone());
            let entries = Self::joined(entries, "name", schema);
            let list = self.list(&format!("$.passwd.{name}"), at, entries);
            put(&mut new, name, list);
        }
        new
    }

    fn user(&mut self, entry: &Entry<'_>) -> Node {
        let old = entry.node;
        let mut user = object(old);
        copy(old, &mut user, &["name", "passwordHash"]);
        copy_once(old, &mut user, &["sshAuthorizedKeys"]);
        let account = match old.get("create") {
            Some(create) => {
                let beside = ACCOUNT
                    .iter()
                    .filter_map(|field| Some((field.name, old.get(field.name)?)))
                    .find(|(_, node)| is_filled(node));
                if let Some((name, _)) = beside {
                    let message = format!(
                        "both create and {name} are set; move the fields of create to the user itself"
                    );
                    self.refuse(entry, name, message);
                }
                create
            }
            None => old,
        };
        let flags = ["noCreateHome", "noLogInit", "noUserGroup", "system"];
        copy(account, &mut user, &["uid"]);
        copy_filled(
            account,
            &mut user,
            &["gecos", "homeDir", "primaryGroup", "shell"],
        );
        copy_filled(account, &mut user, &flags);
        copy_once(account, &mut user, &["groups"]);
        user
    }
}
