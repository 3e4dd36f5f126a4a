//! The flags of Kubernetes' components and their feature gates, by minor version: what an object's arguments are checked
//! against, before a component that does not know one ends with it on a node.
//!
//! The table was made by a program for each version that links its components and lists their flag sets (package `pflag`)
//! and the feature gates that they register. A row is a component or `gate`, a name, and the first and the last minor
//! version that know it; then, for a flag, its type and the versions that call it deprecated; for a gate, the versions that
//! have it on and those that let nobody change it.

use crate::duration::Duration;
use crate::fields::KUBELET;
use crate::schema::{Field, Kind};
use crate::wording::nearest;

#[cfg(test)]
mod tests;

const TABLE: &str = include_str!("flags.tsv");
/// The first word of a gate's row.
const GATE: &str = "gate";
/// The component whose deprecated flags are refused: each has a field of its configuration.
const KUBELET_NAME: &str = "kubelet";

/// Flags of versions before the table's, and what takes their place (Kubernetes' change logs of 1.15 to 1.33).
const REMOVED: [(&str, &str, &str); 21] = [
    (
        "kube-apiserver",
        "basic-auth-file",
        "--oidc-issuer-url or client certificates",
    ),
    ("kube-apiserver", "insecure-bind-address", "--bind-address"),
    ("kube-apiserver", "insecure-port", "api-server.port"),
    (
        "kube-apiserver",
        "kubelet-https",
        "nothing, it is always so",
    ),
    (
        "kube-apiserver",
        "service-account-api-audiences",
        "--api-audiences",
    ),
    ("kube-controller-manager", "address", "--bind-address"),
    (
        "kube-controller-manager",
        "enable-taint-manager",
        "nothing, it is always so",
    ),
    (
        "kube-controller-manager",
        "experimental-cluster-signing-duration",
        "--cluster-signing-duration",
    ),
    (
        "kube-controller-manager",
        "pod-eviction-timeout",
        "default-not-ready-toleration-seconds and default-unreachable-toleration-seconds in api-server.args",
    ),
    ("kube-controller-manager", "port", "--secure-port"),
    ("kube-scheduler", "address", "--bind-address"),
    (
        "kube-scheduler",
        "algorithm-provider",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    (
        "kube-scheduler",
        "policy-config-file",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    ("kube-scheduler", "port", "--secure-port"),
    (
        "kube-scheduler",
        "scheduler-name",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    (
        KUBELET_NAME,
        "allow-privileged",
        "nothing, Pod Security Admission decides",
    ),
    (
        KUBELET_NAME,
        "cni-bin-dir",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "cni-conf-dir",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "container-runtime",
        "nothing, it is always remote",
    ),
    (
        KUBELET_NAME,
        "network-plugin",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "pod-infra-container-image",
        "containerd's own configuration",
    ),
];

/// Minor versions, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Minors {
    first: u32,
    last: u32,
}

impl Minors {
    /// Reads `34-36`, or `-` for none.
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        Some(Self {
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        })
    }

    const fn have(self, minor: u32) -> bool {
        self.first <= minor && minor <= self.last
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    known: Minors,
    /// A flag's type. A gate's versions that have it on.
    kind: &'static str,
    /// The versions that call a flag deprecated, or that do not let a gate be changed.
    marked: Option<Minors>,
}

/// The rows of a component, or of the gates.
fn rows(of: &str) -> impl Iterator<Item = Row> {
    TABLE.lines().filter_map(move |line| {
        let mut cells = line.strip_prefix(of)?.strip_prefix('\t')?.split('\t');
        Some(Row {
            name: cells.next()?,
            known: Minors::parse(cells.next()?)?,
            kind: cells.next()?,
            marked: Minors::parse(cells.next()?),
        })
    })
}

/// Checks an argument of a component.
///
/// # Errors
/// If this minor version has no such flag, with what takes its place; if it is a deprecated one of the kubelet; or if the
/// value is not of the flag's type.
pub(crate) fn check(component: &str, minor: u32, flag: &str, value: &str) -> Result<(), String> {
    let row = rows(component).find(|row| row.name == flag);
    let Some(row) = row.filter(|row| row.known.have(minor)) else {
        return Err(unknown(component, minor, flag, row));
    };
    let deprecated = row.marked.is_some_and(|marked| marked.have(minor));
    if deprecated && component == KUBELET_NAME {
        let instead = match kubelet_field(flag, KUBELET) {
            Some(field) => format!("expected {field} in [kubelet.config]"),
            None => "expected a field of [kubelet.config]".to_owned(),
        };
        return Err(format!(
            "the kubelet 1.{minor} calls --{flag} deprecated; {instead}"
        ));
    }
    match fits(row.kind, value) {
        true if flag == "feature-gates" => gates(minor, value),
        true => Ok(()),
        false => Err(format!(
            "--{flag} of {component} 1.{minor} is of type {}, which {value:?} is not",
            row.kind
        )),
    }
}

fn unknown(component: &str, minor: u32, flag: &str, row: Option<Row>) -> String {
    let none = format!("{component} 1.{minor} has no flag --{flag}");
    let removed = REMOVED
        .iter()
        .find(|(of, name, _)| (*of, *name) == (component, flag));
    match (row, removed) {
        (_, Some((_, _, instead))) => format!("{none} any more; in its place: {instead}"),
        (Some(row), _) if row.known.first > minor => {
            format!("{none}; it is there from 1.{} on", row.known.first)
        }
        (Some(row), _) => format!("{none}; it was there until 1.{}", row.known.last),
        (None, None) => {
            let names: Vec<&str> = rows(component)
                .filter(|row| row.known.have(minor))
                .map(|row| row.name)
                .collect();
            match nearest(flag, names.into_iter()) {
                Some(near) => format!("{none}; did you mean --{near}?"),
                None => none,
            }
        }
    }
}

/// Whether a value is of a type of package `pflag`, for those whose texts have a form.
fn fits(kind: &str, value: &str) -> bool {
    let number = || value.replace('_', "").parse::<i128>().ok();
    match kind {
        // Go's strconv.ParseBool.
        "bool" => matches!(
            value,
            "1" | "t"
                | "T"
                | "true"
                | "TRUE"
                | "True"
                | "0"
                | "f"
                | "F"
                | "false"
                | "FALSE"
                | "False"
        ),
        "int" | "int64" => number().is_some_and(|number| i64::try_from(number).is_ok()),
        "int32" => number().is_some_and(|number| i32::try_from(number).is_ok()),
        "uint" | "uint64" => number().is_some_and(|number| u64::try_from(number).is_ok()),
        "uint16" => number().is_some_and(|number| u16::try_from(number).is_ok()),
        "float32" | "float64" => value.parse::<f64>().is_ok(),
        "duration" => Duration::parse(value).is_some(),
        "mapStringBool" => value.split(',').all(|pair| {
            pair.split_once('=')
                .is_some_and(|(_, on)| fits("bool", on.trim()))
        }),
        _ => true,
    }
}

/// Checks the gates of an argument: `A=true,B=false`, of which `kube:A=true` is a longer form. Gates of other components are not
/// known here.
fn gates(minor: u32, value: &str) -> Result<(), String> {
    for (name, on) in value.split(',').filter_map(|pair| pair.split_once('=')) {
        let name = name.trim();
        let name = name.strip_prefix("kube:").unwrap_or(name);
        if !name.contains(':') {
            let on = matches!(on.trim().as_bytes().first(), Some(b'1' | b't' | b'T'));
            gate(minor, name, on)?;
        }
    }
    Ok(())
}

/// Checks a feature gate.
///
/// # Errors
/// If this minor version has no such gate, or does not let it be changed.
pub(crate) fn gate(minor: u32, name: &str, on: bool) -> Result<(), String> {
    let row = rows(GATE).find(|row| row.name == name);
    let Some(row) = row.filter(|row| row.known.have(minor)) else {
        let none = format!("Kubernetes 1.{minor} has no feature gate {name}");
        return Err(match row {
            Some(row) if row.known.first > minor => {
                format!("{none}; it is there from 1.{} on", row.known.first)
            }
            Some(row) => format!("{none}; it was there until 1.{}", row.known.last),
            None => {
                let lower = name.to_lowercase();
                match rows(GATE).find(|row| row.name.to_lowercase() == lower) {
                    Some(row) => format!("{none}; did you mean {}?", row.name),
                    None => none,
                }
            }
        });
    };
    let default = Minors::parse(row.kind).is_some_and(|minors| minors.have(minor));
    if row.marked.is_some_and(|marked| marked.have(minor)) && on != default {
        return Err(format!(
            "Kubernetes 1.{minor} does not let {name} be {on}: it is always {default}"
        ));
    }
    Ok(())
}

/// The path of the kubelet's field that a flag's name stands for.
fn kubelet_field(flag: &str, fields: &[Field]) -> Option<String> {
    let wanted = flag.replace('-', "");
    fields.iter().find_map(|field| match field.kind {
        _ if field.name.to_lowercase() == wanted => Some(field.name.to_owned()),
        Kind::Object(fields) => {
            kubelet_field(flag, fields).map(|inner| format!("{}.{inner}", field.name))
        }
        _ => None,
    })
}
