//! The environment file in Afterburn's shape, for units (`EnvironmentFile=`). Pure: from metadata to text.
//!
//! Afterburn's keys differ from vendor to vendor (its `docs/usage/attributes.md`); each platform that it knows gets its keys
//! as it has them, the others those that it reserves for them (`AFTERBURN_CUSTOM_…`). The keys `SLIPWAY_…` are the same
//! everywhere.

use std::fmt::Write;

use image::platform::Platform;

use crate::metadata::Metadata;

/// The file's text: sorted lines, only of what the machine said.
#[must_use]
pub fn render(platform: Platform, metadata: &Metadata) -> String {
    let mut lines: Vec<(String, String)> = afterburn(platform, metadata)
        .into_iter()
        .chain(own(platform, metadata))
        .collect();
    lines.sort();
    lines.dedup_by(|one, other| one.0 == other.0);
    let mut text = String::new();
    for (key, value) in lines {
        // Writing to a String cannot fail.
        writeln!(text, "{key}={}", quoted(&value)).unwrap_or_default();
    }
    text
}

/// Where a value comes from.
#[derive(Clone, Copy)]
enum Of {
    InstanceId,
    InstanceType,
    Zone,
    Region,
    Hostname,
    /// The first one.
    Local4,
    Public4,
    Local6,
    Public6,
    /// Each with its number behind the key.
    EachLocal4,
    EachPublic4,
    EachLocal6,
    EachPublic6,
}

fn values(metadata: &Metadata, of: Of) -> Vec<(String, String)> {
    let one = |value: &Option<String>| -> Vec<(String, String)> {
        let value = value.iter();
        value.map(|value| (String::new(), value.clone())).collect()
    };
    let first = |list: &[String]| one(&list.first().cloned());
    let each = |list: &[String]| {
        let numbered = |(i, value): (usize, &String)| (format!("_{i}"), value.clone());
        list.iter().enumerate().map(numbered).collect()
    };
    match of {
        Of::InstanceId => one(&metadata.instance_id),
        Of::InstanceType => one(&metadata.instance_type),
        Of::Zone => one(&metadata.zone),
        Of::Region => one(&metadata.region),
        Of::Hostname => one(&metadata.hostname),
        Of::Local4 => first(&metadata.local_ipv4),
        Of::Public4 => first(&metadata.public_ipv4),
        Of::Local6 => first(&metadata.local_ipv6),
        Of::Public6 => first(&metadata.public_ipv6),
        Of::EachLocal4 => each(&metadata.local_ipv4),
        Of::EachPublic4 => each(&metadata.public_ipv4),
        Of::EachLocal6 => each(&metadata.local_ipv6),
        Of::EachPublic6 => each(&metadata.public_ipv6),
    }
}

/// Afterburn's name of the platform, and its keys.
#[allow(clippy::too_many_lines, reason = "a table")]
const fn keys(platform: Platform) -> (&'static str, &'static [(&'static str, Of)]) {
    match platform {
        Platform::Aws => (
            "AWS",
            &[
                ("AVAILABILITY_ZONE", Of::Zone),
                ("HOSTNAME", Of::Hostname),
                ("INSTANCE_ID", Of::InstanceId),
                ("INSTANCE_TYPE", Of::InstanceType),
                ("IPV4_LOCAL", Of::Local4),
                ("IPV4_PUBLIC", Of::Public4),
                ("REGION", Of::Region),
            ],
        ),
        Platform::Azure => (
            "AZURE",
            &[
                ("IPV4_DYNAMIC", Of::Local4),
                ("IPV4_VIRTUAL", Of::Public4),
                ("VMSIZE", Of::InstanceType),
            ],
        ),
        Platform::DigitalOcean => (
            "DIGITALOCEAN",
            &[
                ("HOSTNAME", Of::Hostname),
                ("IPV4_PRIVATE", Of::EachLocal4),
                ("IPV4_PUBLIC", Of::EachPublic4),
                ("IPV6_PRIVATE", Of::EachLocal6),
                ("IPV6_PUBLIC", Of::EachPublic6),
                ("REGION", Of::Region),
            ],
        ),
        Platform::Gcp => (
            "GCP",
            &[
                ("HOSTNAME", Of::Hostname),
                ("IP_EXTERNAL", Of::EachPublic4),
                ("IP_LOCAL", Of::EachLocal4),
            ],
        ),
        Platform::Hetzner => (
            "HETZNER",
            &[
                ("AVAILABILITY_ZONE", Of::Zone),
                ("HOSTNAME", Of::Hostname),
                ("INSTANCE_ID", Of::InstanceId),
                ("PRIVATE_IPV4", Of::EachLocal4),
                ("PUBLIC_IPV4", Of::Public4),
                ("PUBLIC_IPV6", Of::Public6),
                ("REGION", Of::Region),
            ],
        ),
        Platform::Kubevirt => (
            "KUBEVIRT",
            &[
                ("HOSTNAME", Of::Hostname),
                ("INSTANCE_ID", Of::InstanceId),
                ("INSTANCE_TYPE", Of::InstanceType),
            ],
        ),
        Platform::Openstack => (
            "OPENSTACK",
            &[
                ("HOSTNAME", Of::Hostname),
                ("INSTANCE_ID", Of::InstanceId),
                ("INSTANCE_TYPE", Of::InstanceType),
                ("IPV4_LOCAL", Of::Local4),
                ("IPV4_PUBLIC", Of::Public4),
            ],
        ),
        Platform::Proxmoxve => (
            "PROXMOXVE",
            &[("HOSTNAME", Of::Hostname), ("INSTANCE_ID", Of::InstanceId)],
        ),
        Platform::File
        | Platform::Metal
        | Platform::Nutanix
        | Platform::Qemu
        | Platform::Vmware => (
            "CUSTOM",
            &[
                ("HOSTNAME", Of::Hostname),
                ("PRIVATE_IPV4", Of::Local4),
                ("PRIVATE_IPV6", Of::Local6),
                ("PUBLIC_IPV4", Of::Public4),
                ("PUBLIC_IPV6", Of::Public6),
            ],
        ),
    }
}

fn afterburn(platform: Platform, metadata: &Metadata) -> Vec<(String, String)> {
    let (name, keys) = keys(platform);
    let mut out = Vec::new();
    for (key, of) in keys {
        for (number, value) in values(metadata, *of) {
            out.push((format!("AFTERBURN_{name}_{key}{number}"), value));
        }
    }
    // What only one vendor has goes by Afterburn's keys too.
    if name != "CUSTOM" {
        let extra = metadata.extra.iter();
        out.extend(extra.map(|(key, value)| (format!("AFTERBURN_{name}_{key}"), value.clone())));
    }
    out
}

fn own(platform: Platform, metadata: &Metadata) -> Vec<(String, String)> {
    let mut out = vec![("SLIPWAY_PLATFORM".to_owned(), platform.id().to_owned())];
    for (key, of) in [
        ("INSTANCE_ID", Of::InstanceId),
        ("INSTANCE_TYPE", Of::InstanceType),
        ("ZONE", Of::Zone),
        ("REGION", Of::Region),
        ("HOSTNAME", Of::Hostname),
        ("IPV4_LOCAL", Of::Local4),
        ("IPV4_PUBLIC", Of::Public4),
        ("IPV6_LOCAL", Of::Local6),
        ("IPV6_PUBLIC", Of::Public6),
    ] {
        let values = values(metadata, of).into_iter();
        out.extend(values.map(|(_, value)| (format!("SLIPWAY_{key}"), value)));
    }
    out
}

/// As systemd reads it (systemd.exec(5)): plain where nothing in it means anything, else in double quotes.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-._:/@+,=".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    let mut out = String::from("\"");
    for c in value.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\' | '$' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_as_systemd_reads_them() {
        for (value, expected) in [
            ("m5.large", "m5.large"),
            ("2001:db8::1", "2001:db8::1"),
            ("a b", "\"a b\""),
            ("$(x)`\"\\", "\"\\$(x)\\`\\\"\\\\\""),
            ("a\nLD_PRELOAD=x", "\"aLD_PRELOAD=x\""),
            ("", "\"\""),
        ] {
            assert_eq!(quoted(value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_machine_without_a_vendor_has_the_keys_that_are_kept_for_it() {
        let metadata = Metadata {
            instance_id: Some("4c4c-1".to_owned()),
            hostname: Some("rack-1".to_owned()),
            public_ipv4: vec!["192.0.2.7".to_owned()],
            ..Metadata::default()
        };
        assert_eq!(
            render(Platform::Metal, &metadata),
            "AFTERBURN_CUSTOM_HOSTNAME=rack-1\nAFTERBURN_CUSTOM_PUBLIC_IPV4=192.0.2.7\n\
             SLIPWAY_HOSTNAME=rack-1\nSLIPWAY_INSTANCE_ID=4c4c-1\nSLIPWAY_IPV4_PUBLIC=192.0.2.7\n\
             SLIPWAY_PLATFORM=metal\n"
        );
        assert_eq!(
            render(Platform::Aws, &Metadata::default()),
            "SLIPWAY_PLATFORM=aws\n"
        );
    }
}
