//! Which node this is: the machine and the disk that a provisioned node is bound to.

use std::collections::BTreeMap;

use linux::disk_identity::{self, Comparison, DiskIdentity, SERIAL};
use serde::{Deserialize, Serialize};

/// UUIDs that vendors of boards and firmware leave as they found them: many machines have them.
const OF_MANY: [&str; 6] = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "fefefefe-fefe-fefe-fefe-fefefefefefe",
];

/// What a provisioned node is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    /// The SMBIOS UUID.
    pub(super) instance: Option<String>,
    /// Serial number of the system disk; all that earlier releases wrote of it.
    pub(super) disk: Option<String>,
    /// The disk's other names, by their kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, String>,
    /// Whether another disk cannot have them. Of this boot only.
    #[serde(skip)]
    proof: bool,
}

impl Identity {
    /// That of this boot. A root in memory has no disk.
    pub(super) fn of(instance: Option<String>, disk: Option<DiskIdentity>) -> Self {
        let DiskIdentity { mut names, proof } = disk.unwrap_or_default();
        Self {
            instance: instance.filter(|uuid| !OF_MANY.contains(&uuid.as_str())),
            disk: names.remove(SERIAL),
            names,
            proof,
        }
    }

    /// Whether this machine is the one that was. One that had a UUID, or has one now, is another than one without: firmware
    /// neither gains nor loses it.
    pub(super) fn compare_instance(&self, was: &Self) -> Comparison {
        let known = |id: &Option<String>| {
            let id = id.as_ref().map(|id| id.to_lowercase());
            id.filter(|id| !OF_MANY.contains(&id.as_str()))
        };
        match (known(&was.instance), known(&self.instance)) {
            (None, None) => Comparison::Unknown,
            (Some(was), Some(now)) if was == now || swapped(&was) == now => Comparison::Same,
            _ => Comparison::Other,
        }
    }

    /// Whether this disk is the one that was.
    pub(super) fn compare_disk(&self, was: &Self) -> Comparison {
        self.disk_identity().compare(&was.disk_identity().names)
    }

    /// This identity as a marker keeps it after `was`: what cannot be read now stays.
    pub(super) fn after(&self, was: &Self) -> Self {
        let disk = if self.disk_identity().is_empty() {
            was
        } else {
            self
        };
        Self {
            instance: self.instance.clone().or_else(|| was.instance.clone()),
            disk: disk.disk.clone(),
            names: disk.names.clone(),
            proof: disk.proof,
        }
    }

    /// Whether a marker has the same text for both.
    pub(super) fn is_written_as(&self, other: &Self) -> bool {
        let Self {
            instance,
            disk,
            names,
            proof: _,
        } = self;
        *instance == other.instance && *disk == other.disk && *names == other.names
    }

    /// The disk's names for people.
    pub(super) fn describe_disk(&self) -> String {
        let text = disk_identity::list(&self.disk_identity().names);
        if text.is_empty() {
            "none".to_owned()
        } else {
            text
        }
    }

    fn disk_identity(&self) -> DiskIdentity {
        let mut names = self.names.clone();
        if let Some(serial) = &self.disk {
            names.insert(SERIAL.to_owned(), serial.clone());
        }
        DiskIdentity {
            names,
            proof: self.proof,
        }
    }
}

/// A UUID with the bytes of its first three fields in the other order: kernels and firmware disagree on them
/// (SMBIOS 2.6, 7.2.1), so that an update may turn them.
fn swapped(uuid: &str) -> String {
    let turn = |field: &str| -> String {
        let bytes: Vec<&str> = (0..field.len())
            .step_by(2)
            .filter_map(|at| field.get(at..at + 2))
            .collect();
        bytes.into_iter().rev().collect()
    };
    let fields = uuid.split('-').enumerate();
    let turned = fields.map(|(at, field)| match at {
        0..3 => turn(field),
        _ => field.to_owned(),
    });
    turned.collect::<Vec<_>>().join("-")
}
