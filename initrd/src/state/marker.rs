//! The provisioning marker in `state`: the instance and the disk that were provisioned, and the config.

use std::path::Path;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::manifest::ImageId;
use image::paths;
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use apply::fetched::Sources;
use linux::atomic_file;
use linux::disk_identity::Comparison;

/// Version of the marker's form.
const VERSION: u32 = 1;

/// What every marker begins with, whatever its form. Those of earlier releases have no version: theirs is the first.
#[derive(Deserialize)]
struct Form {
    #[serde(default = "first")]
    version: u32,
}

const fn first() -> u32 {
    1
}

/// The marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Provisioned {
    #[serde(default = "first")]
    version: u32,
    identity: Identity,
    /// The image that provisioned the node.
    image: ImageId,
    /// SHA-256 of the config that was applied.
    config: String,
    /// Name → SHA-256 of the config's sources. Markers of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sources: Option<Sources>,
    /// UUID of the file system of the partition `var`; none where the config or memory holds `/var`, and in markers of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) var: Option<String>,
}

/// The marker compared with this boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Never provisioned.
    First,
    /// This node.
    Same,
    /// This node, but its machine or its disk is another: a board was replaced, a snapshot restored.
    Changed(String),
    /// A copy of another node's disk.
    Copied(String),
}

/// The verdict, by whether machine and disk are the marker's. `docs/architecture.md` has the same table.
///
/// One that is the same decides for the node. Where neither can be told, as on a machine without a UUID whose disk has no
/// name, the node is kept: a reboot must never be a first boot.
pub(super) fn judge(marker: Option<&Provisioned>, now: &Identity) -> Verdict {
    use Comparison::{Other, Same, Unknown};
    let Some(marker) = marker else {
        return Verdict::First;
    };
    let was = &marker.identity;
    let instance = || {
        let text = |id: &Option<String>| id.clone().unwrap_or_else(|| "none".to_owned());
        format!(
            "the machine's UUID was {} and is {}",
            text(&was.instance),
            text(&now.instance)
        )
    };
    let disk = || {
        let (was, now) = (was.describe_disk(), now.describe_disk());
        match was == now {
            true => format!("the disk's names ({now}) are those of copies too"),
            false => format!("the disk's names were {was} and are {now}"),
        }
    };
    match (now.compare_instance(was), now.compare_disk(was)) {
        (Same, Same | Unknown) | (Unknown, Same | Unknown) => Verdict::Same,
        (Same, Other) => Verdict::Changed(disk()),
        (Other, Same) => Verdict::Changed(instance()),
        (Unknown, Other) => Verdict::Copied(disk()),
        (Other, Other | Unknown) => Verdict::Copied(format!("{}, {}", instance(), disk())),
    }
}

/// Writes the identity of this boot into the marker, if it says more or other than the marker: the next change is then
/// compared with this one.
pub(super) fn renew(state: &Path, mut marker: Provisioned, now: &Identity) -> Result<()> {
    let renewed = now.after(&marker.identity);
    if renewed.is_written_as(&marker.identity) {
        return Ok(());
    }
    marker.identity = renewed;
    write(state, &marker)
}

/// The marker; none if the node was never provisioned.
///
/// # Errors
/// If it cannot be read; a [`Fault`] if it does not parse, or is of a newer release.
pub(super) fn read(state: &Path) -> Result<Option<Provisioned>> {
    let path = state.join(paths::STATE_PROVISIONED);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    // It is renamed to its place only when it is complete and synced: no power cut truncates it. Taken for absent, a damaged
    // one would be a new first boot, which runs the config's wipes again.
    Ok(text.map(|text| parse(&text)).transpose()?)
}

fn parse(text: &[u8]) -> Result<Provisioned, Fault> {
    let refused = |is: &str| {
        Fault::new(format!(
            "the marker of this node's provisioning, {} in the partition state, {is}",
            paths::STATE_PROVISIONED
        ))
    };
    let damaged = |error: serde_json::Error| {
        refused("is damaged")
            .expected("the JSON that the first boot wrote")
            .found(error.to_string())
    };
    let Form { version } = serde_json::from_slice(text).map_err(damaged)?;
    if version != VERSION {
        return Err(refused("is of another release of slipway")
            .expected(format!("version {VERSION}"))
            .found(format!("version {version}"))
            .fix("boot the image that this node had before, or a newer one"));
    }
    serde_json::from_slice(text).map_err(damaged)
}

/// The marker of this node, with what its config was made of.
pub(super) fn new(
    identity: &Identity,
    image: &ImageId,
    (config, sources): (String, Sources),
    var: Option<String>,
) -> Provisioned {
    Provisioned {
        version: VERSION,
        identity: identity.clone(),
        image: image.clone(),
        config,
        sources: Some(sources),
        var,
    }
}

pub(super) fn write(state: &Path, marker: &Provisioned) -> Result<()> {
    let path = state.join(paths::STATE_PROVISIONED);
    atomic_file::write(&path, &serde_json::to_vec_pretty(marker)?, 0o644)
        .with_context(|| format!("writing {}", path.display()))
}

/// Removes the files that a copy must not inherit.
pub(super) fn forget(state: &Path) -> Result<()> {
    forget_provisioning(state)?;
    remove(state, paths::STATE_ETCD)
}

/// Removes the files that another provisioning of the same node must not inherit. The record of its etcd volume stays: the
/// volume does too.
pub(super) fn forget_provisioning(state: &Path) -> Result<()> {
    [
        paths::STATE_PROVISIONED,
        paths::STATE_MACHINE_ID,
        paths::STATE_LEDGER,
        paths::STATE_METADATA,
        paths::STATE_NETWORK,
    ]
    .iter()
    .try_for_each(|name| remove(state, name))
}

fn remove(state: &Path, name: &str) -> Result<()> {
    atomic_file::remove(&state.join(name))
        .with_context(|| format!("removing {name} from the state"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::disk_identity::DiskIdentity;

    /// Kinds and names of a disk.
    type Names = &'static [(&'static str, &'static str)];
    /// The machine and the disk that were, those that are, whether the disk's names are proof, and the verdict.
    type Row = (&'static str, Names, &'static str, Names, bool, &'static str);

    /// A node with this UUID and these names of its disk.
    fn node(instance: &str, disk: &[(&str, &str)], proof: bool) -> Identity {
        let names = disk
            .iter()
            .map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()));
        let disk = DiskIdentity {
            names: names.collect(),
            proof,
        };
        let instance = (!instance.is_empty()).then(|| instance.to_owned());
        Identity::of(instance, Some(disk))
    }

    fn marker(identity: &Identity) -> Provisioned {
        // As it was written and is read: what this boot alone knows is gone.
        let text = serde_json::to_string(identity).unwrap();
        Provisioned {
            version: VERSION,
            identity: serde_json::from_str(&text).unwrap(),
            image: ImageId {
                name: "demo".into(),
                version: "1".into(),
            },
            config: "00".into(),
            sources: None,
            var: None,
        }
    }

    /// The table of `docs/architecture.md`: the machine, the disk, the verdict.
    #[test]
    fn copies_are_provisioned_and_a_reboot_never_is() {
        const ONE: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        const SWAPPED: &str = "ba284e1b-a12f-d211-883f-0016d3cca427";
        const TWO: &str = "2b4e28ba-2fa1-11d2-883f-0016d3cca427";
        const JUNK: &str = "03000200-0400-0500-0006-000700080009";
        let (same, changed, copied) = ("same", "changed", "copied");
        let own: Names = &[("wwn", "5000c500a1"), ("serial", "S1")];
        let other: Names = &[("wwn", "5000c500a2"), ("serial", "S2")];
        let cloud: Names = &[("namespace", "1"), ("serial", "nvme_card-pd")];
        let none: Names = &[];
        let rows: [Row; 25] = [
            // The same machine: whatever its disk is, it is this node.
            (ONE, own, ONE, own, true, same),
            (ONE, own, ONE, other, true, changed),
            (ONE, own, ONE, none, false, same),
            (ONE, none, ONE, own, true, same),
            (ONE, none, ONE, none, false, same),
            (ONE, cloud, ONE, cloud, false, same),
            (ONE, own, SWAPPED, own, true, same),
            (ONE, cloud, SWAPPED, cloud, false, same),
            // Another machine: only a disk that proves to be the same one is this node's.
            (ONE, own, TWO, own, true, changed),
            (ONE, own, TWO, other, true, copied),
            (ONE, own, TWO, none, false, copied),
            (ONE, none, TWO, none, false, copied),
            (ONE, none, TWO, own, true, copied),
            (ONE, cloud, TWO, cloud, false, copied),
            (ONE, own, TWO, own, false, copied),
            ("", none, ONE, none, false, copied),
            (ONE, cloud, "", none, false, copied),
            ("", own, ONE, own, true, changed),
            // A machine that nothing names: its disk decides, and where that has no name either it is kept.
            ("", own, "", own, true, same),
            ("", own, "", other, true, copied),
            ("", own, "", none, false, same),
            ("", none, "", own, true, same),
            ("", none, "", none, false, same),
            ("", cloud, "", cloud, false, same),
            (JUNK, none, JUNK, none, false, same),
        ];
        for (was, was_disk, now, now_disk, proof, expected) in rows {
            let marker = marker(&node(was, was_disk, proof));
            let verdict = judge(Some(&marker), &node(now, now_disk, proof));
            let found = match verdict {
                Verdict::First => "first",
                Verdict::Same => same,
                Verdict::Changed(_) => changed,
                Verdict::Copied(_) => copied,
            };
            assert_eq!(found, expected, "{was:?} {was_disk:?} {now:?} {now_disk:?}");
        }
        assert_eq!(judge(None, &node(ONE, own, true)), Verdict::First);
    }

    #[test]
    fn a_marker_of_an_earlier_release_is_understood() {
        let text = r#"{"identity": {"instance": "a", "disk": "S1"}, "image": {"name": "demo", "version": "1"}, "config": "00"}"#;
        let old: Provisioned = serde_json::from_str(text).unwrap();
        let full: &[(&str, &str)] = &[("eui", "0025385b71b0e4a1"), ("serial", "S1")];
        for (instance, names, proof, copy) in [
            ("a", full, true, false),
            ("b", full, true, false),
            ("b", full, false, true),
            ("b", &[("serial", "S2")], true, true),
        ] {
            let verdict = judge(Some(&old), &node(instance, names, proof));
            assert_eq!(matches!(verdict, Verdict::Copied(_)), copy, "{verdict:?}");
        }
        // One of a machine that gave neither.
        let text = text.replace(r#""a""#, "null").replace(r#""S1""#, "null");
        let old: Provisioned = serde_json::from_str(&text).unwrap();
        for (names, proof) in [(full, true), (&[][..], false)] {
            assert_eq!(judge(Some(&old), &node("", names, proof)), Verdict::Same);
        }
    }

    #[test]
    fn one_repair_after_another_keeps_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let disk = |id| [("wwn", id)];
        let first = node("a", &disk("1f"), true);
        let image = marker(&first).image;
        assert_eq!(read(folder.path()).unwrap(), None);
        let sources = Sources::from([("fw_cfg".to_owned(), "01".to_owned())]);
        let made = ("00".into(), sources.clone());
        let marker = new(&first, &image, made, Some("uuid".into()));
        write(folder.path(), &marker).unwrap();
        let path = folder.path().join(paths::STATE_PROVISIONED);
        let written = || std::fs::read(&path).unwrap();
        let before = written();
        // The board, then the disk; and a boot on which neither can be read in between.
        for (instance, names) in [
            ("a", &disk("1f")[..]),
            ("b", &disk("1f")),
            ("b", &[]),
            ("b", &disk("2f")),
            ("b", &disk("2f")),
        ] {
            let now = node(instance, names, true);
            let marker = read(folder.path()).unwrap().unwrap();
            let verdict = judge(Some(&marker), &now);
            assert!(
                matches!(verdict, Verdict::Same | Verdict::Changed(_)),
                "{verdict:?}"
            );
            renew(folder.path(), marker, &now).unwrap();
            if instance == "a" {
                assert_eq!(
                    written(),
                    before,
                    "nothing is written where nothing changed"
                );
            }
        }
        let last = read(folder.path()).unwrap();
        assert_eq!(last.as_ref().unwrap().sources, Some(sources));
        assert_eq!(last.as_ref().unwrap().var.as_deref(), Some("uuid"));
        assert_eq!(
            judge(last.as_ref(), &node("b", &disk("2f"), true)),
            Verdict::Same
        );
        assert!(matches!(judge(last.as_ref(), &first), Verdict::Copied(_)));
        forget(folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        forget(folder.path()).unwrap();
    }

    #[test]
    fn a_damaged_marker_is_refused_by_name_and_never_taken_for_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(paths::STATE_PROVISIONED);
        let whole = r#"{"identity": {}, "image": {"name": "a", "version": "1"}, "config": "00"}"#;
        std::fs::write(&path, whole).unwrap();
        // As an earlier release wrote it.
        assert_eq!(read(folder.path()).unwrap().unwrap().var, None);
        for text in ["", "{}", &whole[..whole.len() - 1], "\0\0\0\0"] {
            std::fs::write(&path, text).unwrap();
            let error = read(folder.path()).unwrap_err();
            let fault = error.downcast_ref::<Fault>().unwrap();
            assert!(fault.what.contains("provisioned.json"), "{fault}");
            assert!(fault.expected.is_some() && fault.found.is_some());
        }
    }

    /// By its version alone: another release may have another form.
    #[test]
    fn a_marker_of_a_newer_release_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(paths::STATE_PROVISIONED);
        let ours = marker(&node("a", &[], false));
        write(folder.path(), &ours).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some(ours.clone()));
        let newer = Provisioned { version: 2, ..ours };
        for text in [
            serde_json::to_string(&newer).unwrap(),
            r#"{"version": 2, "node": {}}"#.to_owned(),
        ] {
            std::fs::write(&path, text).unwrap();
            let fault = read(folder.path())
                .unwrap_err()
                .downcast::<Fault>()
                .unwrap();
            assert!(fault.what.contains("provisioned.json"), "{fault}");
            assert_eq!(fault.found.as_deref(), Some("version 2"));
            assert!(fault.fix.is_some());
        }
    }
}
