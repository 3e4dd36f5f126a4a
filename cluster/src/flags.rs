//! The flags of Kubernetes' components and their feature gates, by minor version: what an object's arguments are checked
//! against, before a component that does not know one ends with it on a node.
//!
//! The table was made by a program for each version that links its components and lists their flag sets (package `pflag`)
//! and the feature gates that they register. A row is a component or `gate`, a name, and the first and the last minor
//! version that know it; then, for a flag, its type and the versions that call it deprecated; for a gate, the versions that
//! have it on and those that let nobody change it.
//!
//! Rows of `etcd` and `etcd-gate` are of etcd 3.5 and 3.6: the flag sets of Debian's 3.5.16 and of 3.6.8, listed by a program
//! that links each (Go's package `flag`). No patch release of either minor has others.

mod replaced;

use crate::duration::Duration;
use crate::fields::KUBELET;
use crate::schema::{Field, Kind};
use crate::wording::nearest;

#[cfg(test)]
mod tests;

const TABLE: &str = include_str!("flags.tsv");
/// The first word of a gate's row.
pub(crate) const GATE: &str = "gate";
/// The first word of the row of a gate of etcd's.
const ETCD_GATE: &str = "etcd-gate";
/// The component whose deprecated flags are refused: each has a field of its configuration.
const KUBELET_NAME: &str = "kubelet";
/// etcd's name.
pub(crate) const ETCD: &str = "etcd";
/// The minor versions of etcd 3 that the table has.
pub(crate) const ETCD_MINORS: [u32; 2] = [5, 6];

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

/// The row of a name: the one that this minor version knows, else any.
fn row(of: &str, minor: u32, name: &str) -> Option<Row> {
    let named = || rows(of).filter(|row| row.name == name);
    named()
        .find(|row| row.known.have(minor))
        .or_else(|| named().next())
}

/// Whether a component has a flag in this minor version, or Kubernetes a feature gate ([`GATE`]).
pub(crate) fn has(of: &str, minor: u32, name: &str) -> bool {
    row(of, minor, name).is_some_and(|row| row.known.have(minor))
}

/// A minor version, as it is written of this component: Kubernetes' are of 1, etcd's of 3.
fn version(of: &str, minor: u32) -> String {
    match of {
        ETCD | ETCD_GATE => format!("3.{minor}"),
        _ => format!("1.{minor}"),
    }
}

/// Checks an argument of a component. The minor version is of Kubernetes, or of etcd for its own arguments.
///
/// # Errors
/// If this minor version has no such flag, with what takes its place; if it is a deprecated one of the kubelet, or an
/// experimental one of etcd 3.6 that has another name now; or if the value is not of the flag's type.
pub(crate) fn check(component: &str, minor: u32, flag: &str, value: &str) -> Result<(), String> {
    let row = row(component, minor, flag);
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
    if component == ETCD
        && let Some(instead) = replaced::of_etcd(minor, flag)
    {
        return Err(format!(
            "etcd 3.{minor} calls --{flag} deprecated; expected {instead}"
        ));
    }
    match fits(row.kind, value) {
        true if flag == "feature-gates" && component == ETCD => gates(ETCD_GATE, minor, value),
        true if flag == "feature-gates" => gates(GATE, minor, value),
        true => Ok(()),
        false => Err(format!(
            "--{flag} of {component} {} is of type {}, which {value:?} is not",
            version(component, minor),
            row.kind
        )),
    }
}

fn unknown(component: &str, minor: u32, flag: &str, row: Option<Row>) -> String {
    let none = format!(
        "{component} {} has no flag --{flag}",
        version(component, minor)
    );
    match (row, replaced::removed(component, flag)) {
        (Some(row), _) if row.known.first > minor => {
            let from = version(component, row.known.first);
            match replaced::before(component, minor, flag) {
                Some(before) => format!("{none} yet; in its place: {before}"),
                None => format!("{none}; it is there from {from} on"),
            }
        }
        (_, Some(instead)) => format!("{none} any more; in its place: {instead}"),
        (Some(row), _) => format!(
            "{none}; it was there until {}",
            version(component, row.known.last)
        ),
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

/// Whether a value is of a type of package `pflag`, for those whose texts have a form. Words between bars are all that
/// there are.
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
        "uint32" => number().is_some_and(|number| u32::try_from(number).is_ok()),
        "uint16" => number().is_some_and(|number| u16::try_from(number).is_ok()),
        "float32" | "float64" => value.parse::<f64>().is_ok(),
        "duration" => Duration::parse(value).is_some(),
        "mapStringBool" => value.split(',').all(|pair| {
            pair.split_once('=')
                .is_some_and(|(_, on)| fits("bool", on.trim()))
        }),
        words if words.contains('|') => words.split('|').any(|word| word == value),
        _ => true,
    }
}

/// Checks the gates of an argument: `A=true,B=false`, of which `kube:A=true` is a longer form. Gates of other components are not
/// known here.
fn gates(of: &str, minor: u32, value: &str) -> Result<(), String> {
    for (name, on) in value.split(',').filter_map(|pair| pair.split_once('=')) {
        let name = name.trim();
        let name = name.strip_prefix("kube:").unwrap_or(name);
        if !name.contains(':') {
            let on = matches!(on.trim().as_bytes().first(), Some(b'1' | b't' | b'T'));
            gate_of(of, minor, name, on)?;
        }
    }
    Ok(())
}

/// Checks a feature gate of Kubernetes.
///
/// # Errors
/// If this minor version has no such gate, or does not let it be changed.
pub(crate) fn gate(minor: u32, name: &str, on: bool) -> Result<(), String> {
    gate_of(GATE, minor, name, on)
}

fn gate_of(of: &str, minor: u32, name: &str, on: bool) -> Result<(), String> {
    let program = match of {
        ETCD_GATE => "etcd",
        _ => "Kubernetes",
    };
    let program = format!("{program} {}", version(of, minor));
    let row = row(of, minor, name);
    let Some(row) = row.filter(|row| row.known.have(minor)) else {
        let none = format!("{program} has no feature gate {name}");
        return Err(match row {
            Some(row) if row.known.first > minor => {
                format!(
                    "{none}; it is there from {} on",
                    version(of, row.known.first)
                )
            }
            Some(row) => format!("{none}; it was there until {}", version(of, row.known.last)),
            None => {
                let lower = name.to_lowercase();
                match rows(of).find(|row| row.name.to_lowercase() == lower) {
                    Some(row) => format!("{none}; did you mean {}?", row.name),
                    None => none,
                }
            }
        });
    };
    let default = Minors::parse(row.kind).is_some_and(|minors| minors.have(minor));
    if row.marked.is_some_and(|marked| marked.have(minor)) && on != default {
        return Err(format!(
            "{program} does not let {name} be {on}: it is always {default}"
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
