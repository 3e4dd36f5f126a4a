//! The options of bonds: the kernel's names and values, and systemd-networkd's words for them.
//!
//! The kernel's are those of sysfs (Documentation/networking/bonding.rst), where a value may be a number or a name; networkd
//! knows the names alone (systemd.netdev(5), section `[Bond]`).

/// The option that decides over which others there are. It comes first: the kernel changes it only on a bond without
/// members.
pub const MODE: &str = "mode";
/// The member that is used before all others, by its name.
pub const PRIMARY: &str = "primary";

/// The modes, by their numbers.
pub const MODES: [&str; 7] = [
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
];

/// Values by their numbers.
const VALUES: &[(&str, &[&str])] = &[
    (MODE, &MODES),
    ("ad_select", &["stable", "bandwidth", "count"]),
    ("arp_all_targets", &["any", "all"]),
    (
        "arp_validate",
        &[
            "none",
            "active",
            "backup",
            "all",
            "filter",
            "filter_active",
            "filter_backup",
        ],
    ),
    ("fail_over_mac", &["none", "active", "follow"]),
    ("lacp_rate", &["slow", "fast"]),
    ("primary_reselect", &["always", "better", "failure"]),
    (
        "xmit_hash_policy",
        &[
            "layer2",
            "layer3+4",
            "layer2+3",
            "encap2+3",
            "encap3+4",
            "vlan+srcmac",
        ],
    ),
];

/// networkd's words, and what follows their values.
const NETWORKD: &[(&str, &str, &str)] = &[
    (MODE, "Mode", ""),
    ("ad_actor_sys_prio", "AdActorSystemPriority", ""),
    ("ad_actor_system", "AdActorSystem", ""),
    ("ad_select", "AdSelect", ""),
    ("ad_user_port_key", "AdUserPortKey", ""),
    ("all_slaves_active", "AllSlavesActive", ""),
    ("arp_all_targets", "ARPAllTargets", ""),
    ("arp_interval", "ARPIntervalSec", "ms"),
    ("arp_ip_target", "ARPIPTargets", ""),
    ("arp_missed_max", "ARPMissedMax", ""),
    ("arp_validate", "ARPValidate", ""),
    ("downdelay", "DownDelaySec", "ms"),
    ("fail_over_mac", "FailOverMACPolicy", ""),
    ("lacp_rate", "LACPTransmitRate", ""),
    ("lp_interval", "LearnPacketIntervalSec", "s"),
    ("miimon", "MIIMonitorSec", "ms"),
    ("min_links", "MinLinks", ""),
    ("num_grat_arp", "GratuitousARP", ""),
    ("num_unsol_na", "GratuitousARP", ""),
    ("packets_per_slave", "PacketsPerSlave", ""),
    ("peer_notif_delay", "PeerNotifyDelaySec", "ms"),
    ("primary_reselect", "PrimaryReselectPolicy", ""),
    ("resend_igmp", "ResendIGMP", ""),
    ("tlb_dynamic_lb", "DynamicTransmitLoadBalancing", ""),
    ("updelay", "UpDelaySec", "ms"),
    ("xmit_hash_policy", "TransmitHashPolicy", ""),
];

/// An option with its value by name, where the kernel has names; else as it is.
///
/// # Errors
/// A mode that there is not.
pub fn named(option: &str, value: &str) -> Result<String, String> {
    let names = VALUES.iter().find(|(own, _)| *own == option);
    let names = names.map_or(&[][..], |(_, names)| names);
    let by_number = value
        .parse()
        .ok()
        .and_then(|number: usize| names.get(number));
    if option == MODE && by_number.is_none() && !MODES.contains(&value) {
        return Err(format!(
            "{value:?} is not a mode; expected {}",
            MODES.join(", ")
        ));
    }
    Ok(by_number.map_or(value, |name| name).to_owned())
}

/// The values of an option: one, or where the kernel has a list, several with semicolons or commas between.
pub fn values<'a>(option: &str, value: &'a str) -> impl Iterator<Item = &'a str> {
    let list = is_list(option);
    value.split(move |c| list && matches!(c, ';' | ','))
}

/// Whether an option has several values, each added by itself.
#[must_use]
pub fn is_list(option: &str) -> bool {
    matches!(option, "arp_ip_target" | "ns_ip6_target")
}

/// The line of a `.netdev` file that sets an option; none if networkd has no word for it.
#[must_use]
pub fn networkd(option: &str, value: &str) -> Option<String> {
    let (_, word, unit) = NETWORKD.iter().find(|(own, ..)| *own == option)?;
    let values: Vec<&str> = values(option, value).collect();
    Some(format!("{word}={}{unit}", values.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_names_where_the_kernel_has_names() {
        for (option, value, name) in [
            (MODE, "4", "802.3ad"),
            (MODE, "active-backup", "active-backup"),
            ("lacp_rate", "1", "fast"),
            ("xmit_hash_policy", "1", "layer3+4"),
            ("xmit_hash_policy", "9", "9"),
            ("miimon", "1", "1"),
            ("ad_actor_system", "00:11:22:33:44:55", "00:11:22:33:44:55"),
        ] {
            assert_eq!(
                named(option, value).as_deref(),
                Ok(name),
                "{option}={value}"
            );
        }
        for value in ["7", "8023ad", "", "-1"] {
            let wrong = named(MODE, value).unwrap_err();
            assert!(wrong.contains("802.3ad, balance-tlb"), "{wrong}");
        }
    }

    #[test]
    fn networkd_has_its_own_words() {
        for (option, value, line) in [
            (MODE, "802.3ad", Some("Mode=802.3ad")),
            ("miimon", "100", Some("MIIMonitorSec=100ms")),
            (
                "arp_ip_target",
                "192.0.2.1;192.0.2.2",
                Some("ARPIPTargets=192.0.2.1 192.0.2.2"),
            ),
            ("use_carrier", "1", None),
            (PRIMARY, "eth1", None),
        ] {
            assert_eq!(networkd(option, value).as_deref(), line);
        }
    }
}
