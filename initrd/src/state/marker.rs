//! The provisioning marker in `state`: the instance and the disk that were provisioned, and the config.

use std::path::Path;

use anyhow::{Context, Result};
use image::manifest::ImageId;
use image::paths;
use serde::{Deserialize, Serialize};

use apply::fetched::Sources;
use linux::atomic_file;

/// The instance and the disk that a provisioned node is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    /// Instance id, else the SMBIOS UUID.
    pub(super) instance: Option<String>,
    /// Serial number of the system disk.
    pub(super) disk: Option<String>,
}

/// The marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Provisioned {
    identity: Identity,
    /// The image that provisioned the node.
    image: ImageId,
    /// SHA-256 of the config that was applied.
    config: String,
    /// Name → SHA-256 of the config's sources. Markers of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sources: Option<Sources>,
}

/// The marker compared with this boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Never provisioned.
    First,
    /// This node, this disk.
    Same,
    /// Either the instance or the disk differs: the node moved, or has a new disk with its old content.
    Changed(String),
    /// Both differ: a copy.
    Copied(String),
}

pub(super) fn judge(marker: Option<&Provisioned>, now: &Identity) -> Verdict {
    let Some(marker) = marker else {
        return Verdict::First;
    };
    let was = &marker.identity;
    let say = |name: &str, was: &Option<String>, now: &Option<String>| {
        let text = |id: &Option<String>| id.clone().unwrap_or_else(|| "none".to_owned());
        format!("the {name} was {} and is {}", text(was), text(now))
    };
    let instance = say("instance", &was.instance, &now.instance);
    let disk = say("disk's serial number", &was.disk, &now.disk);
    match (was.instance == now.instance, was.disk == now.disk) {
        (true, true) => Verdict::Same,
        (false, true) => Verdict::Changed(instance),
        (true, false) => Verdict::Changed(disk),
        (false, false) => Verdict::Copied(format!("{instance}, {disk}")),
    }
}

/// The marker; none if the node was never provisioned. A marker that does not parse counts as none: its writing was
/// interrupted, before the provisioning was complete.
pub(super) fn read(state: &Path) -> Result<Option<Provisioned>> {
    let path = state.join(paths::STATE_PROVISIONED);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
}

pub(super) fn write(
    state: &Path,
    identity: &Identity,
    image: &ImageId,
    config: String,
    sources: Sources,
) -> Result<()> {
    let marker = Provisioned {
        identity: identity.clone(),
        image: image.clone(),
        config,
        sources: Some(sources),
    };
    let path = state.join(paths::STATE_PROVISIONED);
    atomic_file::write(&path, &serde_json::to_vec_pretty(&marker)?, 0o644)
        .with_context(|| format!("writing {}", path.display()))
}

/// Removes the files that a copy must not inherit.
pub(super) fn forget(state: &Path) -> Result<()> {
    for name in [
        paths::STATE_PROVISIONED,
        paths::STATE_MACHINE_ID,
        paths::STATE_LEDGER,
        paths::STATE_METADATA,
        paths::STATE_NETWORK,
    ] {
        atomic_file::remove(&state.join(name))
            .with_context(|| format!("removing {name} from the state"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_with_both_changed_is_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let id = |instance: &str, disk: Option<&str>| Identity {
            instance: Some(instance.to_owned()),
            disk: disk.map(str::to_owned),
        };
        let was = id("a", Some("1"));
        assert_eq!(
            judge(read(folder.path()).unwrap().as_ref(), &was),
            Verdict::First
        );
        let image = ImageId {
            name: "demo".into(),
            version: "1".into(),
        };
        let sources = Sources::from([("fw_cfg".to_owned(), "01".to_owned())]);
        write(folder.path(), &was, &image, "00".into(), sources.clone()).unwrap();
        let marker = read(folder.path()).unwrap();
        assert_eq!(marker.as_ref().unwrap().sources, Some(sources));
        let judge = |now: &Identity| judge(marker.as_ref(), now);
        assert_eq!(judge(&was), Verdict::Same);
        assert!(matches!(judge(&id("b", Some("1"))), Verdict::Changed(_)));
        assert!(matches!(judge(&id("a", Some("2"))), Verdict::Changed(_)));
        assert!(matches!(judge(&id("b", None)), Verdict::Copied(_)));
        forget(folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        forget(folder.path()).unwrap();
    }
}
