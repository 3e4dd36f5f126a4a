//! Variants of Butane, their versions, and the sections that Slipway refuses.

use crate::read::json::{Json, Value};
use crate::report::Report;

/// The variants and versions, each with the minor number of the specification 3 of Ignition that it becomes. Butane's
/// own table, and Slipway's variant. <https://coreos.github.io/butane/specs/>
const VERSIONS: [(&str, &str, u8); 18] = [
    ("fcos", "1.0.0", 0),
    ("fcos", "1.1.0", 1),
    ("fcos", "1.2.0", 2),
    ("fcos", "1.3.0", 2),
    ("fcos", "1.4.0", 3),
    ("fcos", "1.5.0", 4),
    ("fcos", "1.6.0", 5),
    ("fcos", "1.7.0", 6),
    ("fcos", "1.8.0-experimental", 7),
    ("flatcar", "1.0.0", 3),
    ("flatcar", "1.1.0", 4),
    ("flatcar", "1.2.0-experimental", 7),
    ("r4e", "1.0.0", 3),
    ("r4e", "1.1.0", 4),
    ("r4e", "1.2.0-experimental", 7),
    ("fiot", "1.0.0", 4),
    ("fiot", "1.1.0-experimental", 7),
    ("slipway", "1.0.0", 6),
];

/// Sections that depend on another distribution's disk layout, and why they are refused.
const REFUSED: [(&str, &str); 4] = [
    (
        "boot_device",
        "it rewrites the partitions of Fedora CoreOS; Slipway's system disk has its own, made by the image",
    ),
    (
        "grub",
        "it writes to the boot partition of Fedora CoreOS; Slipway boots by systemd-boot, without GRUB",
    ),
    (
        "extensions",
        "it layers packages by rpm-ostree; Slipway's packages are named in the recipe",
    ),
    (
        "openshift",
        "it is for the Machine Config Operator of OpenShift",
    ),
];

/// The distribution that a config was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Fcos,
    Flatcar,
    /// RHEL for Edge and Fedora IoT, which have the same rules.
    Edge,
    Slipway,
}

/// Finds variant and version before anything else is read.
pub(super) fn find(yaml: &Json) -> Result<(Variant, u8), Report> {
    let refuse = |key: &str, message: String| {
        let mut report = Report::default();
        let at = yaml.value.get(key).unwrap_or(yaml).at.clone();
        report.error(&format!("$.{key}"), Some(&at), message);
        report
    };
    let word = |key: &str| match yaml.value.get(key).map(|json| &json.value) {
        Some(Value::Text(text) | Value::Plain(text)) => text.as_str(),
        _ => "",
    };
    let name = word("variant");
    let variant = match name {
        "fcos" => Variant::Fcos,
        "flatcar" => Variant::Flatcar,
        "r4e" | "fiot" => Variant::Edge,
        "slipway" => Variant::Slipway,
        "openshift" => {
            let message = "a config for OpenShift becomes a MachineConfig for its operator, which no Slipway node runs; \
                           expected fcos, flatcar, r4e, fiot or slipway";
            return Err(refuse("variant", message.to_owned()));
        }
        found => {
            let message = format!("found {found:?}; expected fcos, flatcar, r4e, fiot or slipway");
            return Err(refuse("variant", message));
        }
    };
    let of_variant = || VERSIONS.iter().filter(|(variant, _, _)| *variant == name);
    match of_variant().find(|(_, version, _)| *version == word("version")) {
        Some((_, _, minor)) => Ok((variant, *minor)),
        None => {
            let known: Vec<&str> = of_variant().map(|(_, version, _)| *version).collect();
            let message = match yaml.value.get("version") {
                Some(_) => format!(
                    "found {:?}; expected one of {}",
                    word("version"),
                    known.join(", ")
                ),
                None => format!("missing; {name} has the versions {}", known.join(", ")),
            };
            Err(refuse("version", message))
        }
    }
}

/// The document without the sections that are refused.
pub(super) fn without_refused(yaml: &Json, report: &mut Report) -> Json {
    let mut yaml = yaml.clone();
    if let Value::Object(entries) = &mut yaml.value {
        entries.retain(|(key, at, _)| {
            let refused = REFUSED.iter().find(|(name, _)| name == key);
            if let Some((name, why)) = refused {
                let message = format!("{name} is not for Slipway: {why}");
                report.error(&format!("$.{name}"), Some(at), message);
            }
            refused.is_none()
        });
    }
    yaml
}
