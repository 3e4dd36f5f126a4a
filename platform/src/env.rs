//! The environment file in Afterburn's form, for units (`EnvironmentFile=`). Pure: from metadata to text.
//!
//! Afterburn's keys differ from vendor to vendor: each provider's row has its keys ([`crate::env_keys`]). The keys
//! `SLIPWAY_…` are the same for all.

use std::fmt::Write;

use crate::env_keys::{CUSTOM, EnvKeys, Value};
use crate::metadata::Metadata;
use crate::provider::Provider;

/// The file's text: sorted lines, without absent values.
#[must_use]
pub fn render(provider: &Provider, metadata: &Metadata) -> String {
    let mut lines: Vec<(String, String)> = afterburn(&provider.env_keys, metadata)
        .into_iter()
        .chain(own(provider.id, metadata))
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

fn afterburn(keys: &EnvKeys, metadata: &Metadata) -> Vec<(String, String)> {
    let name = keys.name;
    let mut out = Vec::new();
    for (key, value) in keys.keys {
        for (number, value) in value.of(metadata) {
            out.push((format!("AFTERBURN_{name}_{key}{number}"), value));
        }
    }
    // Values of a single vendor have Afterburn's keys too; its custom platform has no others.
    if name != CUSTOM.name {
        let extra = metadata.extra.iter();
        out.extend(extra.map(|(key, value)| (format!("AFTERBURN_{name}_{key}"), value.clone())));
    }
    out
}

fn own(id: &str, metadata: &Metadata) -> Vec<(String, String)> {
    let mut out = vec![("SLIPWAY_PLATFORM".to_owned(), id.to_owned())];
    for (key, value) in [
        ("INSTANCE_ID", Value::InstanceId),
        ("INSTANCE_TYPE", Value::InstanceType),
        ("ZONE", Value::Zone),
        ("REGION", Value::Region),
        ("HOSTNAME", Value::Hostname),
        ("IPV4_LOCAL", Value::Local4),
        ("IPV4_PUBLIC", Value::Public4),
        ("IPV6_LOCAL", Value::Local6),
        ("IPV6_PUBLIC", Value::Public6),
    ] {
        let values = value.of(metadata).into_iter();
        out.extend(values.map(|(_, value)| (format!("SLIPWAY_{key}"), value)));
    }
    out
}

/// A value as systemd reads it (systemd.exec(5)): plain if no character has a special meaning there, else in double
/// quotes.
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
    use crate::providers::by_id;

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
            render(by_id("metal").unwrap(), &metadata),
            "AFTERBURN_CUSTOM_HOSTNAME=rack-1\nAFTERBURN_CUSTOM_PUBLIC_IPV4=192.0.2.7\n\
             SLIPWAY_HOSTNAME=rack-1\nSLIPWAY_INSTANCE_ID=4c4c-1\nSLIPWAY_IPV4_PUBLIC=192.0.2.7\n\
             SLIPWAY_PLATFORM=metal\n"
        );
        assert_eq!(
            render(by_id("aws").unwrap(), &Metadata::default()),
            "SLIPWAY_PLATFORM=aws\n"
        );
    }
}
