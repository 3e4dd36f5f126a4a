//! The options of a bond: those of version 1, which are the kernel's with `bond-` before, and netplan's own.
//!
//! <https://netplan.readthedocs.io/en/stable/netplan-yaml/#properties-for-device-type-bonds>

use image::bond::{MODE, MODES, PRIMARY};
use serde_json::Value;

use super::data::{Data, is_true, list};

/// How netplan writes a value that the kernel wants as a number.
#[derive(Clone, Copy)]
enum Form {
    /// As the kernel does: a number, a name, or a list.
    Same,
    /// True or false.
    Flag,
    /// A time, in milliseconds where it has no unit.
    Milliseconds,
    /// A time, in seconds where it has no unit.
    Seconds,
}

/// Netplan's parameters, the older names too, and the kernel's options.
const PARAMETERS: &[(&str, &str, Form)] = &[
    ("ad-select", "ad_select", Form::Same),
    ("all-members-active", "all_slaves_active", Form::Flag),
    ("all-slaves-active", "all_slaves_active", Form::Flag),
    ("arp-all-targets", "arp_all_targets", Form::Same),
    ("arp-interval", "arp_interval", Form::Milliseconds),
    ("arp-ip-targets", "arp_ip_target", Form::Same),
    ("arp-validate", "arp_validate", Form::Same),
    ("down-delay", "downdelay", Form::Milliseconds),
    ("fail-over-mac-policy", "fail_over_mac", Form::Same),
    ("gratuitious-arp", "num_grat_arp", Form::Same),
    ("gratuitous-arp", "num_grat_arp", Form::Same),
    ("lacp-rate", "lacp_rate", Form::Same),
    ("learn-packet-interval", "lp_interval", Form::Seconds),
    ("mii-monitor-interval", "miimon", Form::Milliseconds),
    ("min-links", "min_links", Form::Same),
    (MODE, MODE, Form::Same),
    ("packets-per-member", "packets_per_slave", Form::Same),
    ("packets-per-slave", "packets_per_slave", Form::Same),
    (PRIMARY, PRIMARY, Form::Same),
    ("primary-reselect-policy", "primary_reselect", Form::Same),
    ("resend-igmp", "resend_igmp", Form::Same),
    ("transmit-hash-policy", "xmit_hash_policy", Form::Same),
    ("up-delay", "updelay", Form::Milliseconds),
];

/// The options of version 1: `bond-miimon` or `bond_miimon`.
pub(super) fn version_1(params: &Value, at: &str, data: &mut Data) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (key, value) in params.as_object().into_iter().flatten() {
        let own = key.replace('-', "_");
        match own.strip_prefix("bond_").filter(|own| *own != "links") {
            Some(own) => out.push((own.to_owned(), joined(value))),
            None => data.wrong(
                &format!("{at}.params.{key}"),
                &joined(value),
                "an option as bond-mode",
            ),
        }
    }
    with_mode(out)
}

/// The options of version 2.
pub(super) fn version_2(parameters: &Value, at: &str, data: &mut Data) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (key, value) in parameters.as_object().into_iter().flatten() {
        let text = joined(value);
        let known = PARAMETERS.iter().find(|(own, ..)| own == key);
        match known.and_then(|(_, option, form)| Some((*option, in_form(&text, *form)?))) {
            Some((option, value)) => out.push((option.to_owned(), value)),
            None => data.wrong(
                &format!("{at}.parameters.{key}"),
                &text,
                "a parameter of a bond as netplan knows it",
            ),
        }
    }
    with_mode(out)
}

/// A bond without a mode has the kernel's first one.
fn with_mode(mut options: Vec<(String, String)>) -> Vec<(String, String)> {
    if options.iter().all(|(name, _)| name != MODE) {
        options.push((MODE.to_owned(), MODES[0].to_owned()));
    }
    options
}

/// A value as the kernel wants it; none if it has another form.
fn in_form(text: &str, form: Form) -> Option<String> {
    let (per_second, plain) = match form {
        Form::Same => return Some(text.to_owned()),
        Form::Flag => return Some(u8::from(is_true(text)).to_string()),
        Form::Milliseconds => (1000, "ms"),
        Form::Seconds => (1, "s"),
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.trim_end().parse().ok()?;
    let number = match &text[digits.len()..] {
        unit if unit.is_empty() || unit == plain => number,
        "s" => number.checked_mul(per_second)?,
        // Whole seconds only.
        "ms" if number.is_multiple_of(1000) => number / 1000,
        _ => return None,
    };
    Some(number.to_string())
}

/// A scalar, or those of a list with commas between, as the kernel's options have lists.
fn joined(value: &Value) -> String {
    let texts = list(value).filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(",")
}
