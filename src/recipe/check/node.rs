//! `[node]`: defaults of the node settings.

use image::node::{EtcdFormat, EtcdSettings, NodeSettings, Role};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;
use super::size::{TextOrNumber, size};
use crate::recipe::mistakes::Mistake;

/// Bytes of the longest label of an ext4 file system (`s_volume_name` of its superblock).
const EXT4_LABEL: usize = 16;
/// The longest label of a partition in units of UTF-16 (UEFI specification 2.10, 5.3.3).
const GPT_LABEL: usize = 36;

/// Defaults of the node settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawNode {
    /// What the node is for. Default: worker.
    pub role: Option<RawRole>,
    /// The etcd disk of a control plane.
    pub etcd: Option<RawEtcd>,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRole {
    /// Runs etcd on the etcd disk.
    ControlPlane,
    /// Runs workloads only.
    Worker,
}

/// The etcd disk. Exactly one of serial, id, label and partlabel is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawEtcd {
    /// Serial number of the disk.
    pub serial: Option<String>,
    /// A name of the disk in /dev/disk/by-id, or one of Azure's in /dev/disk: platforms.md has those of each cloud.
    pub id: Option<String>,
    /// Label of the file system.
    pub label: Option<String>,
    /// Label of the GPT partition.
    pub partlabel: Option<String>,
    /// Whether a blank disk may be formatted. Default: never.
    pub format: Option<RawEtcdFormat>,
    /// Name of the cluster that the data belongs to. Without it here, the config of each control plane names it.
    pub cluster: Option<String>,
    /// Name of the etcd member that the data belongs to.
    pub member: Option<String>,
    /// The smallest disk that may be formatted, as "1 GiB" or in bytes. Default: 1 GiB.
    pub minimum_size: Option<TextOrNumber>,
}

/// Consent to format.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawEtcdFormat {
    /// A blank disk is refused.
    Never,
    /// A disk that is provably blank is formatted.
    IfBlank,
}

pub(super) fn check(check: &mut Check<'_>, raw: RawNode) -> NodeSettings {
    let RawNode { role, etcd: given } = raw;
    let role = match role {
        Some(RawRole::ControlPlane) => Role::ControlPlane,
        Some(RawRole::Worker) | None => Role::Worker,
    };
    if role == Role::ControlPlane && given.is_none() {
        check.missing(
            "node.etcd",
            "expected [node.etcd] with serial, id, label or partlabel: a control plane has an etcd disk",
        );
    }
    NodeSettings {
        role,
        etcd: given.map(|raw| etcd(check, raw)),
    }
}

fn etcd(check: &mut Check<'_>, raw: RawEtcd) -> EtcdSettings {
    let RawEtcd {
        serial,
        id,
        label,
        partlabel,
        format,
        cluster,
        member,
        minimum_size,
    } = raw;
    let minimum = size(check, "node.etcd.minimum-size", minimum_size.as_ref());
    for (key, name) in [
        ("serial", &serial),
        ("id", &id),
        ("label", &label),
        ("partlabel", &partlabel),
        ("cluster", &cluster),
        ("member", &member),
    ] {
        if let Some(name) = name {
            usable(check, key, name);
        }
    }
    let settings = EtcdSettings {
        serial,
        id,
        label,
        partlabel,
        format: match format {
            Some(RawEtcdFormat::IfBlank) => EtcdFormat::IfBlank,
            Some(RawEtcdFormat::Never) | None => EtcdFormat::Never,
        },
        cluster,
        member,
        // It is about one node's disk, so an image has none.
        adopt: None,
        minimum_size: minimum.unwrap_or(image::layout::GIB),
    };
    let lost = |gone: &String| gone.starts_with("node.etcd.");
    if settings.find().is_err() && !check.gone.iter().any(lost) {
        let place = check.place("node.etcd.serial");
        let found = "not exactly one name says which disk is etcd's";
        check.add(Mistake::at(
            &place,
            found,
            "expected exactly one of serial, id, label and partlabel in [node.etcd]",
        ));
    }
    settings
}

/// Adds a mistake for an empty name, as a variable that is not set gives it: every partition without a label would fit. A label that is too
/// long is a mistake too, since no disk can have it.
fn usable(check: &mut Check<'_>, key: &str, name: &str) {
    let place = check.place(&format!("node.etcd.{key}"));
    let (length, most) = match key {
        "label" => (name.len(), EXT4_LABEL),
        "partlabel" => (name.encode_utf16().count(), GPT_LABEL),
        _ => (0, 0),
    };
    if name.trim().is_empty() {
        let found = format!("`node.etcd.{key}` is empty");
        let expected = "expected a name, or the key left out";
        check.add(Mistake::at(&place, found, expected));
    } else if length > most {
        let found = format!("no disk has a {key} as {name:?}");
        let expected = format!("expected at most {most} characters");
        check.add(Mistake::at(&place, found, expected));
    }
}
