//! Metadata: instance, names, addresses and keys, in one form for every vendor.

use image::network::{HOST_NAME_LENGTH, is_host_name};

use crate::network::Described;

/// A machine's metadata. Values that the vendor does not provide are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The vendor's id of this machine.
    pub instance_id: Option<String>,
    /// The type of the machine, as `m5.large`.
    pub instance_type: Option<String>,
    /// Availability zone.
    pub zone: Option<String>,
    /// Region.
    pub region: Option<String>,
    /// The host name, with its domain if the vendor gives one.
    pub hostname: Option<String>,
    /// Addresses inside the vendor's network, the first interface's first.
    pub local_ipv4: Vec<String>,
    /// Public addresses, by which the machine is reached from the internet.
    pub public_ipv4: Vec<String>,
    /// As `local_ipv4`.
    pub local_ipv6: Vec<String>,
    /// As `public_ipv4`.
    pub public_ipv6: Vec<String>,
    /// SSH keys.
    pub ssh_keys: Vec<SshKey>,
    /// Its links, addresses and routes.
    pub network: Option<Described>,
    /// Values of this vendor alone: Afterburn's key without its prefix and platform, and the value.
    pub extra: Vec<(String, String)>,
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    /// The user that the vendor names for it, if any.
    pub user: Option<String>,
    /// The line of `authorized_keys`.
    pub key: String,
}

impl Metadata {
    /// Drops values that must not reach a file: values with control characters, invalid names. A name that is too long
    /// for the kernel loses its domain. Returns a note for each dropped value.
    pub(crate) fn clean(&mut self) -> Vec<String> {
        let mut dropped = Vec::new();
        for (name, value) in [
            ("instance id", &mut self.instance_id),
            ("instance type", &mut self.instance_type),
            ("zone", &mut self.zone),
            ("region", &mut self.region),
        ] {
            if value.as_deref().is_some_and(|text| !is_plain(text)) {
                *value = None;
                dropped.push(format!(
                    "ignoring the platform's {name}: it holds control characters"
                ));
            }
        }
        if let Some(name) = self.hostname.take() {
            self.hostname = host_name(&name);
            if self.hostname.is_none() {
                dropped.push("ignoring the platform's host name: it is not valid".to_owned());
            }
        }
        for list in [
            &mut self.local_ipv4,
            &mut self.public_ipv4,
            &mut self.local_ipv6,
            &mut self.public_ipv6,
        ] {
            list.retain(|address| address.parse::<std::net::IpAddr>().is_ok());
        }
        self.extra.retain(|(_, value)| is_plain(value));
        let before = self.ssh_keys.len();
        self.ssh_keys.retain(SshKey::is_usable);
        if self.ssh_keys.len() < before {
            let lost = before - self.ssh_keys.len();
            dropped.push(format!(
                "ignoring {lost} of the platform's SSH keys: they are not valid"
            ));
        }
        dropped
    }
}

impl SshKey {
    pub(crate) fn for_anybody(key: &str) -> Self {
        Self {
            user: None,
            key: key.trim().to_owned(),
        }
    }

    fn is_usable(&self) -> bool {
        is_plain(&self.key)
            && self.key.split_whitespace().count() >= 2
            && !self.key.starts_with('#')
            && self.user.as_deref().is_none_or(is_user)
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

/// Whether useradd(8) accepts the name.
fn is_user(name: &str) -> bool {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    let other = |c: char| first(c) || c.is_ascii_digit() || c == '-' || c == '.';
    name.starts_with(first) && name.len() <= 32 && name.chars().all(other)
}

/// The first word, since EC2 may return several names; without its domain if only that fits.
fn host_name(text: &str) -> Option<String> {
    let name = text.split_whitespace().next()?.trim_end_matches('.');
    if !is_host_name(name) {
        return None;
    }
    match name.len() <= HOST_NAME_LENGTH {
        true => Some(name.to_owned()),
        false => name.split('.').next().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_fit_the_kernel() {
        let long = format!("web-1.{}.example", "c".repeat(60));
        for (text, expected) in [
            ("web-1", Some("web-1")),
            ("web-1.nodes.example.", Some("web-1.nodes.example")),
            ("a.example b.example", Some("a.example")),
            (long.as_str(), Some("web-1")),
            ("", None),
            ("a..b", None),
            ("-a", None),
            ("a;reboot", None),
        ] {
            assert_eq!(host_name(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_must_not_reach_a_file_is_dropped_with_a_note() {
        let key = "ssh-ed25519 AAAA me";
        let mut metadata = Metadata {
            instance_id: Some("i-1\nLD_PRELOAD=x".to_owned()),
            zone: Some("a".to_owned()),
            hostname: Some("a b\n".to_owned()),
            local_ipv4: vec!["10.0.0.1".to_owned(), "$(x)".to_owned()],
            ssh_keys: vec![
                SshKey::for_anybody(key),
                SshKey::for_anybody("ssh-rsa AAAA\ncommand"),
                SshKey {
                    user: Some("../root".to_owned()),
                    key: key.to_owned(),
                },
            ],
            ..Metadata::default()
        };
        let dropped = metadata.clean();
        assert_eq!(dropped.len(), 2, "{dropped:?}");
        assert_eq!(metadata.instance_id, None);
        assert_eq!(metadata.zone.as_deref(), Some("a"));
        assert_eq!(metadata.hostname.as_deref(), Some("a"));
        assert_eq!(metadata.local_ipv4, ["10.0.0.1"]);
        assert_eq!(metadata.ssh_keys, [SshKey::for_anybody(key)]);
    }
}
