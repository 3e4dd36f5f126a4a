//! Environment keys: the values of the metadata and their keys in the environment file.

use crate::metadata::Metadata;

/// A platform's keys, after the prefix `AFTERBURN_NAME_` (<https://coreos.github.io/afterburn/usage/attributes/>).
#[derive(Clone, Copy, Debug)]
pub struct EnvKeys {
    /// Afterburn's name of the platform.
    pub name: &'static str,
    /// Each key with its value.
    pub keys: &'static [(&'static str, Value)],
}

/// The keys that Afterburn reserves for platforms that it does not support.
pub(crate) const CUSTOM: EnvKeys = EnvKeys {
    name: "CUSTOM",
    keys: &[
        ("HOSTNAME", Value::Hostname),
        ("PRIVATE_IPV4", Value::Local4),
        ("PRIVATE_IPV6", Value::Local6),
        ("PUBLIC_IPV4", Value::Public4),
        ("PUBLIC_IPV6", Value::Public6),
    ],
};

/// A value of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The instance's id.
    InstanceId,
    /// The instance's type.
    InstanceType,
    /// The availability zone.
    Zone,
    /// The region.
    Region,
    /// The host name.
    Hostname,
    /// The first local IPv4 address.
    Local4,
    /// The first public IPv4 address.
    Public4,
    /// The first local IPv6 address.
    Local6,
    /// The first public IPv6 address.
    Public6,
    /// Each local IPv4 address, with its number behind the key.
    EachLocal4,
    /// Each public IPv4 address, with its number behind the key.
    EachPublic4,
    /// Each local IPv6 address, with its number behind the key.
    EachLocal6,
    /// Each public IPv6 address, with its number behind the key.
    EachPublic6,
}

impl Value {
    /// The values, each with the suffix of its key.
    pub(crate) fn of(self, metadata: &Metadata) -> Vec<(String, String)> {
        let one = |value: &Option<String>| -> Vec<(String, String)> {
            let value = value.iter();
            value.map(|value| (String::new(), value.clone())).collect()
        };
        let first = |list: &[String]| one(&list.first().cloned());
        let each = |list: &[String]| {
            let numbered = |(i, value): (usize, &String)| (format!("_{i}"), value.clone());
            list.iter().enumerate().map(numbered).collect()
        };
        match self {
            Self::InstanceId => one(&metadata.instance_id),
            Self::InstanceType => one(&metadata.instance_type),
            Self::Zone => one(&metadata.zone),
            Self::Region => one(&metadata.region),
            Self::Hostname => one(&metadata.hostname),
            Self::Local4 => first(&metadata.local_ipv4),
            Self::Public4 => first(&metadata.public_ipv4),
            Self::Local6 => first(&metadata.local_ipv6),
            Self::Public6 => first(&metadata.public_ipv6),
            Self::EachLocal4 => each(&metadata.local_ipv4),
            Self::EachPublic4 => each(&metadata.public_ipv4),
            Self::EachLocal6 => each(&metadata.local_ipv6),
            Self::EachPublic6 => each(&metadata.public_ipv6),
        }
    }
}
