//! The numbers of system accounts, each a function of the name alone: what is kept in `/var` across images has the same owners
//! whatever packages a later image has, and in whichever order their scripts run.
//!
//! A name that Debian's packages often make has a number in the table, so that no two of these are equal. Any other name has one
//! that follows from its hash; two of these may be equal, which the build refuses: it never moves one of them silently.

use std::ops::RangeInclusive;

use sha2::{Digest as _, Sha256};

/// Numbers that Debian's tools give to system accounts (Debian Policy 9.2.2; `FIRST_SYSTEM_UID` in adduser.conf(5)).
pub(super) const DYNAMIC: RangeInclusive<u32> = 100..=999;
/// The number in that range that base-passwd has for a group of its own, `users`.
pub(super) const USERS: u32 = 100;
/// The first number of the table; [`USERS`] is before it.
const FIRST: u32 = 101;
/// Numbers by hash: those behind the table. What a node makes while it runs is taken from 999 downwards.
const HASHED: RangeInclusive<u32> = 400..=899;

/// Names with numbers in the order of this list. A number is for ever: new names are added at the end.
const KNOWN: &[&str] = &[
    // systemd and udev.
    "systemd-journal",
    "systemd-network",
    "systemd-resolve",
    "systemd-timesync",
    "systemd-coredump",
    "systemd-oom",
    "systemd-journal-remote",
    "systemd-journal-upload",
    "systemd-journal-gateway",
    "input",
    "sgx",
    "clock",
    "kvm",
    "render",
    "netdev",
    "crontab",
    "ssl-cert",
    "tss",
    "uuidd",
    // The bus, logins, names.
    "messagebus",
    "_ssh",
    "sshd",
    "polkitd",
    "sssd",
    "nslcd",
    "_nscd",
    "unscd",
    "dnsmasq",
    "unbound",
    "bind",
    "_chrony",
    "ntpsec",
    "ntp",
    "openntpd",
    "avahi",
    "tcpdump",
    "syslog",
    "rsyslog",
    "_rpc",
    "statd",
    "ganesha",
    "gluster",
    "ceph",
    // Mail, web, databases.
    "postfix",
    "postdrop",
    "Debian-exim",
    "dovecot",
    "dovenull",
    "opendkim",
    "haproxy",
    "squid",
    "varnish",
    "vcache",
    "memcache",
    "redis",
    "valkey",
    "mysql",
    "postgres",
    "etcd",
    "rabbitmq",
    "epmd",
    "mosquitto",
    "tomcat",
    "nginx",
    // Monitoring.
    "prometheus",
    "grafana",
    "Debian-snmp",
    "collectd",
    "munin",
    "nagios",
    "zabbix",
    "icinga",
    "telegraf",
    "node-exporter",
    "puppet",
    "salt",
    // Networks and virtual machines.
    "frr",
    "frrvty",
    "quagga",
    "bird",
    "openvpn",
    "strongswan",
    "openvswitch",
    "hugetlbfs",
    "keepalived_script",
    "libvirt",
    "libvirt-qemu",
    "libvirt-dnsmasq",
    "swtpm",
    "docker",
    "_lldpd",
    "munge",
    "slurm",
    "pcscd",
    "fwupd-refresh",
    "wireshark",
    "plocate",
    "mlocate",
    "_dhcpcd",
    "dhcpcd",
    "clamav",
    "tang",
    "_tang",
    "stunnel4",
    "debian-tor",
    "iodine",
    "pdns",
    "kea",
    "_kea",
    "_etcd",
];

/// The number of an account, as a user and as a group.
pub(super) fn number(name: &str) -> u32 {
    if let Some(at) = KNOWN.iter().position(|known| *known == name) {
        return FIRST + u32::try_from(at).unwrap_or_default();
    }
    let digest = Sha256::digest(name.as_bytes());
    let hash = digest[..4]
        .iter()
        .fold(0, |hash: u32, byte| hash << 8 | u32::from(*byte));
    HASHED.start() + hash % (HASHED.end() - HASHED.start() + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// An account that the last image had keeps its number: if this fails, nodes in the field get wrong owners.
    #[test]
    fn numbers_are_for_ever() {
        for (name, expected) in [
            ("systemd-journal", 101),
            ("systemd-network", 102),
            ("messagebus", 120),
            ("sshd", 122),
            ("postgres", 158),
            ("_etcd", 210),
            ("agent", 550),
            ("app", 736),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
    }

    #[test]
    fn the_tables_numbers_are_apart_from_each_other_and_from_hashed_ones() {
        let names: BTreeSet<&&str> = KNOWN.iter().collect();
        assert_eq!(names.len(), KNOWN.len());
        let last = number(KNOWN[KNOWN.len() - 1]);
        assert!(FIRST > USERS && last < *HASHED.start(), "{last}");
        for name in ["a", "b", "some-agent", "x"] {
            assert!(HASHED.contains(&number(name)) && DYNAMIC.contains(&number(name)));
        }
    }
}
