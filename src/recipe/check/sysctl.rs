//! `[sysctl]`: settings of the running kernel, as a file of sysctl.d(5).

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::made::Made;
use super::{Check, Place};
use crate::debian::third_party::matches;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// Where the settings are: behind the files of packages and of Slipway, before a config's `95-NAME.conf`.
pub(super) const FILE: &str = "/etc/sysctl.d/90-recipe.conf";
/// The folders of `/proc/sys` (Documentation/admin-guide/sysctl in the kernel's source).
const FOLDERS: [&str; 12] = [
    "abi", "crypto", "debug", "dev", "fs", "fscache", "kernel", "net", "sched", "sunrpc", "user",
    "vm",
];

/// A setting, or a table of settings below a key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum RawSetting {
    Number(i64),
    Text(String),
    Table(BTreeMap<String, RawSetting>),
}

impl JsonSchema for RawSetting {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Setting".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let inner = generator.subschema_for::<Self>();
        json_schema!({
            "description": "A setting of the kernel, or a table of such settings.",
            "type": ["string", "integer", "object"],
            "additionalProperties": inner,
        })
    }
}

/// A value that a node needs, and why.
struct Need {
    path: &'static str,
    allows: fn(&str) -> bool,
    expected: &'static str,
    why: &'static str,
    /// Whether only a node with a kubelet needs it.
    kubelet: bool,
}

const KUBELET_SETS: &str = "the kubelet sets it when it starts, or refuses to start";

const NEEDS: [Need; 8] = [
    Need {
        path: "kernel/panic",
        allows: |value| value.parse::<i64>().is_ok_and(|seconds| seconds != 0),
        expected: "expected 10, the kubelet's own value",
        why: "a node that panics would never come back, and no boot counter would fall",
        kubelet: false,
    },
    Need {
        path: "kernel/modules_disabled",
        allows: |value| value == "0",
        expected: "expected no such setting",
        why: "nothing could load a module any more: no network policy, no volume, no driver of a new disk",
        kubelet: false,
    },
    Need {
        path: "net/ipv4/ip_forward",
        allows: |value| value == "1",
        expected: "expected 1",
        why: "pods would have no network",
        kubelet: true,
    },
    Need {
        path: "net/ipv6/conf/all/forwarding",
        allows: |value| value == "1",
        expected: "expected 1",
        why: "pods would have no network over IPv6",
        kubelet: true,
    },
    Need {
        path: "net/bridge/bridge-nf-call-iptables",
        allows: |value| value == "1",
        expected: "expected 1",
        why: "services would not be reached from pods of the same node",
        kubelet: true,
    },
    Need {
        path: "vm/overcommit_memory",
        allows: |value| value == "1",
        expected: "expected 1",
        why: KUBELET_SETS,
        kubelet: true,
    },
    Need {
        path: "vm/panic_on_oom",
        allows: |value| value == "0",
        expected: "expected 0",
        why: KUBELET_SETS,
        kubelet: true,
    },
    Need {
        path: "kernel/panic_on_oops",
        allows: |value| value == "1",
        expected: "expected 1",
        why: KUBELET_SETS,
        kubelet: true,
    },
];

/// Other paths of variables that a node needs: `devinet_sysctl_forward` of the kernel has one variable for both.
const ALIASES: [(&str, &str); 1] = [("net/ipv4/conf/all/forwarding", "net/ipv4/ip_forward")];

impl Need {
    /// Whether a setting sets it: by its path, by another path of the same variable, or by a pattern of paths as sysctl.d(5) has them.
    fn is_set_by(&self, path: &str) -> bool {
        let aliases = ALIASES.iter().filter(|(_, of)| *of == self.path);
        let mut paths = aliases.map(|(alias, _)| *alias).chain([self.path]);
        let is_of = |known: &str| {
            let (patterns, parts) = (path.split('/'), known.split('/'));
            patterns.clone().count() == parts.clone().count()
                && patterns.zip(parts).all(|(one, other)| matches(one, other))
        };
        paths.any(is_of)
    }
}

/// A setting with its path below `/proc/sys` and its place.
struct Setting {
    path: String,
    value: String,
    place: Place,
}

/// The file of the settings, if there are any.
pub(super) fn check(
    check: &mut Check<'_>,
    raw: &BTreeMap<String, RawSetting>,
    has_kubelet: bool,
) -> Option<Made> {
    let entry = check.tree.entry("sysctl")?;
    let (place, node) = (entry.key.clone(), &entry.node);
    let mut all = Vec::new();
    collect(check, raw, node, &[], &mut all);
    all.sort_by(|one, other| one.path.cmp(&other.path));
    for pair in all.windows(2) {
        if let [one, other] = pair
            && one.path == other.path
        {
            let found = format!("{} is given twice in [sysctl]", one.path.replace('/', "."));
            let mistake = Mistake::at(&other.place, found, "expected each setting once");
            check.add(mistake.also(&one.place, "also given here"));
        }
    }
    for setting in &all {
        needed(check, setting, has_kubelet);
    }
    let line = |setting: &Setting| format!("{} = {}\n", name(&setting.path), setting.value);
    let text: String = all.iter().map(line).collect();
    (!text.is_empty()).then(|| Made::text(check, FILE, "[sysctl]", &place, &text))
}

/// The settings of a table whose keys are below `above`.
fn collect(
    check: &mut Check<'_>,
    raw: &BTreeMap<String, RawSetting>,
    node: &Node,
    above: &[String],
    all: &mut Vec<Setting>,
) {
    for (key, raw) in raw {
        let Some(entry) = node.entry(key) else {
            continue;
        };
        let mut path = above.to_vec();
        path.extend(parts(key, above.is_empty()));
        if !is_name(check, &path, &entry.key, above.is_empty()) {
            continue;
        }
        let value = match raw {
            RawSetting::Table(inner) => {
                collect(check, inner, &entry.node, &path, all);
                continue;
            }
            RawSetting::Number(number) => number.to_string(),
            RawSetting::Text(text) => text.trim().to_owned(),
        };
        let place = entry.node.place.clone();
        if value.is_empty() || value.contains(char::is_control) {
            let found = format!("`{}` cannot be {value:?}", path.join("."));
            check.add(Mistake::at(&place, found, "expected a value on one line"));
            continue;
        }
        let path = path.join("/");
        all.push(Setting { path, value, place });
    }
}

/// The parts of a key by sysctl.d(5): dots divide, and a slash stands for a dot in a name; if a slash comes first, slashes divide.
fn parts(key: &str, is_first: bool) -> Vec<String> {
    if is_first
        && key
            .find(['.', '/'])
            .is_some_and(|at| key[at..].starts_with('/'))
    {
        return key.split('/').map(str::to_owned).collect();
    }
    let parts = key.split('.');
    parts.map(|part| part.replace('/', ".")).collect()
}

/// A path as a line of sysctl.d(5) has it.
fn name(path: &str) -> String {
    match path.contains('.') {
        true => path.to_owned(),
        false => path.replace('/', "."),
    }
}

fn is_name(check: &mut Check<'_>, path: &[String], place: &Place, is_first: bool) -> bool {
    let good = |part: &String| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:@*".contains(c);
        !part.is_empty() && !part.starts_with(['-', '.']) && part.chars().all(allowed)
    };
    let shown = path.join(".");
    if !path.iter().all(good) {
        check.add(Mistake::at(
            place,
            format!("{shown:?} is not the name of a setting"),
            "expected a name as sysctl(8) has it, as net.ipv4.ip_forward",
        ));
        return false;
    }
    let Some(first) = path.first().filter(|_| is_first) else {
        return true;
    };
    if !FOLDERS.contains(&first.as_str()) {
        let mistake = Mistake::at(
            place,
            format!("the kernel has no settings `{first}`"),
            format!("expected one of {}", FOLDERS.join(", ")),
        );
        check.add(mistake.nearest(first, FOLDERS));
        return false;
    }
    true
}

/// Refuses a value with which a node would not work.
fn needed(check: &mut Check<'_>, setting: &Setting, has_kubelet: bool) {
    let mut needs = NEEDS.iter().filter(|need| has_kubelet || !need.kubelet);
    let broken = |need: &&Need| need.is_set_by(&setting.path) && !(need.allows)(&setting.value);
    if let Some(need) = needs.find(broken) {
        let name = name(&setting.path);
        let found = format!("`{name}` cannot be {}: {}", setting.value, need.why);
        check.add(Mistake::at(&setting.place, found, need.expected));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_divided_as_by_sysctl() {
        for (key, is_first, divided) in [
            ("net.ipv4.ip_forward", true, "net|ipv4|ip_forward"),
            ("net/ipv4/conf/eth0.100", true, "net|ipv4|conf|eth0.100"),
            ("net.ipv4.conf.eth0/100", true, "net|ipv4|conf|eth0.100"),
            ("eth0/100", false, "eth0.100"),
            ("all.rp_filter", false, "all|rp_filter"),
        ] {
            assert_eq!(parts(key, is_first).join("|"), divided, "{key}");
        }
        assert_eq!(name("net/ipv4/ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(name("net/conf/eth0.1/x"), "net/conf/eth0.1/x");
    }
}
