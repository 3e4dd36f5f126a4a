//! The metadata as a config: host name and SSH keys. It is merged over the image's config and under the user's, so that
//! the user's values win and one code path applies all of them.

use image::paths::HOSTNAME;
use serde_json::json;

use crate::metadata::Metadata;
use crate::provider::Provider;

/// The user of keys for which the vendor names no user: that of Fedora CoreOS and Flatcar.
const USUAL: &str = "core";
/// Their user if the configs have no `core`.
const ROOT: &str = "root";

/// An Ignition config with the machine's host name in `/etc/hostname` and its keys; none if it has neither.
///
/// Keys without a user are for `core` if the configs have this user, else for root. Keys for a named user are for that
/// user if the configs have it, or if it is root, else for the usual one, as by Afterburn, which knows no other: a user name
/// in a vendor's project does not create an account, and no key is lost. `notes` gets the users whose keys are another's.
#[must_use]
pub fn config(
    provider: &Provider,
    metadata: &Metadata,
    users: &[&str],
    notes: &mut Vec<String>,
) -> Option<String> {
    let knows = |user: &str| user == ROOT || users.contains(&user);
    let usual = if knows(USUAL) { USUAL } else { ROOT };
    let mut keys: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut strangers: Vec<&str> = Vec::new();
    for key in &metadata.ssh_keys {
        let mut user = key.user.as_deref().unwrap_or(usual);
        if !knows(user) {
            strangers.push(user);
            user = usual;
        }
        match keys.iter_mut().find(|(known, _)| *known == user) {
            Some((_, list)) if list.contains(&key.key.as_str()) => {}
            Some((_, list)) => list.push(&key.key),
            None => keys.push((user, vec![&key.key])),
        }
    }
    strangers.sort_unstable();
    strangers.dedup();
    for user in strangers {
        notes.push(format!(
            "{provider}: the keys of {user} are for {usual}: the config has no such user"
        ));
    }
    if keys.is_empty() && metadata.hostname.is_none() {
        return None;
    }
    let users: Vec<_> = keys
        .iter()
        .map(|(user, keys)| json!({"name": user, "sshAuthorizedKeys": keys}))
        .collect();
    // Names are already checked: letters, digits, dots, hyphens.
    let file = |name: &String| {
        json!({
            "path": HOSTNAME,
            "mode": 0o644,
            "overwrite": true,
            "contents": {"source": format!("data:,{name}%0A")},
        })
    };
    let files: Vec<_> = metadata.hostname.iter().map(file).collect();
    let config = json!({
        "ignition": {"version": "3.5.0"},
        "passwd": {"users": users},
        "storage": {"files": files},
    });
    Some(config.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::SshKey;
    use crate::providers::by_id;

    fn key(user: Option<&str>, key: &str) -> SshKey {
        SshKey {
            user: user.map(str::to_owned),
            key: key.to_owned(),
        }
    }

    #[test]
    fn keys_go_to_users_that_the_config_has() {
        let metadata = Metadata {
            hostname: Some("web-1.example".to_owned()),
            ssh_keys: vec![
                key(None, "ssh-rsa A"),
                key(Some("alice"), "ssh-rsa B"),
                key(Some("mallory"), "ssh-rsa C"),
                key(Some("root"), "ssh-rsa A"),
            ],
            ..Metadata::default()
        };
        let made = |users: &[&str]| {
            let mut notes = Vec::new();
            let text = config(by_id("gcp").unwrap(), &metadata, users, &mut notes).unwrap();
            let (parsed, report) = ignition::Config::parse(text.as_bytes(), "x").unwrap();
            assert!(report.entries.is_empty(), "{report:?}");
            (parsed.model().unwrap(), notes)
        };
        let listed = |model: ignition::model::Config| -> Vec<(String, Vec<String>)> {
            let users = model.passwd.unwrap().users.unwrap().into_iter();
            users
                .map(|user| (user.name, user.ssh_authorized_keys.unwrap()))
                .collect()
        };
        let pair = |user: &str, keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            (user.to_owned(), keys)
        };
        let (model, notes) = made(&["alice"]);
        let file = &model.storage.as_ref().unwrap().files.as_ref().unwrap()[0];
        let source = file.contents.as_ref().unwrap().source.as_deref().unwrap();
        assert_eq!(
            ignition::data_url::decode(source).unwrap(),
            b"web-1.example\n"
        );
        assert_eq!(
            listed(model),
            [
                pair("root", &["ssh-rsa A", "ssh-rsa C"]),
                pair("alice", &["ssh-rsa B"])
            ]
        );
        assert_eq!(
            notes,
            ["gcp: the keys of mallory are for root: the config has no such user"]
        );
        let (model, notes) = made(&["core"]);
        assert_eq!(
            listed(model),
            [
                pair("core", &["ssh-rsa A", "ssh-rsa B", "ssh-rsa C"]),
                pair("root", &["ssh-rsa A"])
            ]
        );
        assert_eq!(notes.len(), 2);
    }

    #[test]
    fn a_machine_without_metadata_adds_nothing() {
        let notes = &mut Vec::new();
        assert_eq!(
            config(by_id("qemu").unwrap(), &Metadata::default(), &[], notes),
            None
        );
    }
}
