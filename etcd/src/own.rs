//! The node's own etcd volume: recorded in `state` once it was accepted; the node formats nothing and accepts nothing else.

use std::path::Path;

use anyhow::{Context as _, Result};
use image::cmdline;
use image::fault::Fault;
use image::node::{EtcdAdopt, EtcdVolume};
use image::paths::{NODE_SETTINGS, STATE, STATE_ETCD};
use linux::atomic_file;
use linux::filesystem::ext::backup::{self, Backup};
use linux::filesystem::ext::{self, Superblock};
use linux::world::World;

use crate::find::{self, Volume};

/// Version of the record's form.
pub const VERSION: u32 = 1;

/// The volume to use, and what may be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The volume.
    pub volume: Volume,
    /// What the node knows of it.
    pub consent: Consent,
}

/// What the node knows of a volume before it is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// The node has no volume yet: the cluster's own is accepted, a blank one formatted if the settings allow it.
    First,
    /// It is the node's own, by its UUID: it is never formatted.
    Own,
    /// The settings name it by its UUID, in place of the node's own: it is accepted if it is the cluster's, and never
    /// formatted.
    Adopted,
    /// A blank one in place of the node's own: it is formatted if the settings allow it, and an existing file system is
    /// refused.
    Blank,
}

/// The record in the folder of `state`; none if the node never had a volume.
///
/// # Errors
/// A [`Fault`] if it is damaged: it is written atomically, and a node that forgot its volume would take any other.
pub fn read(state: &Path) -> Result<Option<EtcdVolume>> {
    let damaged = |found: String| {
        Fault::new("the record of this node's etcd volume is damaged")
            .expected(format!("{STATE}/{STATE_ETCD} as this init writes it, version {VERSION}"))
            .found(found)
            .fix("attach the right disk, then remove the file from a rescue system: the next boot writes it anew")
    };
    let text = atomic_file::read(&state.join(STATE_ETCD))
        .context("reading the record of the etcd volume")?;
    let Some(text) = text else {
        return Ok(None);
    };
    let record: EtcdVolume =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match record.version {
        VERSION => Ok(Some(record)),
        other => Err(damaged(format!("version {other}")).into()),
    }
}

/// Records the volume before it is mounted, unless the record says the same already. `adopt` is the consent that is given
/// now: it is spent with the volume that it was given for.
///
/// # Errors
/// If `state` cannot be written.
pub fn write(
    state: &Path,
    before: Option<&EtcdVolume>,
    adopt: Option<EtcdAdopt>,
    now: EtcdVolume,
) -> Result<()> {
    let record = EtcdVolume {
        version: VERSION,
        adopted: spent(before, adopt, &now.filesystem),
        ..now
    };
    if before == Some(&record) {
        return Ok(());
    }
    tracing::info!("etcd: this node's volume is {}", describe(&record));
    let mut text = serde_json::to_vec_pretty(&record)?;
    text.push(b'\n');
    atomic_file::write(&state.join(STATE_ETCD), &text, 0o600)
        .context("recording the etcd volume in state")
}

/// The consent that stays spent when the volume with this UUID is recorded. One that the settings no longer give may be
/// given again.
fn spent(
    before: Option<&EtcdVolume>,
    adopt: Option<EtcdAdopt>,
    filesystem: &str,
) -> Option<EtcdAdopt> {
    let adopt = adopt?;
    let was_spent = before.is_some_and(|before| before.adopted == Some(adopt));
    let is_for_this = match adopt {
        EtcdAdopt::Filesystem(uuid) => uuid.to_string() == filesystem,
        // Whatever is recorded now: a blank disk was taken, or the node has a volume and needs none.
        EtcdAdopt::Blank => before.is_none_or(|before| before.filesystem != filesystem),
    };
    (was_spent || is_for_this).then_some(adopt)
}

/// Chooses among the volumes that the settings name. Without a record any single one may be the node's; with one, only the
/// file system of that UUID is, or what `adopt` names.
///
/// # Errors
/// A [`Fault`] with expected against found if none of them is the node's, or if several are.
pub fn choose(
    world: &World,
    matches: Vec<Volume>,
    wanted: &str,
    own: Option<&EtcdVolume>,
    adopt: Option<EtcdAdopt>,
) -> Result<Option<Choice>, Fault> {
    let one = |volumes, wanted: &str, consent| {
        let volume = find::only(world, volumes, wanted)?;
        Ok(volume.map(|volume| Choice { volume, consent }))
    };
    let Some(own) = own else {
        return one(matches, wanted, Consent::First);
    };
    let adopt = adopt.filter(|adopt| own.adopted != Some(*adopt));
    let with = |uuid: &str| -> Vec<Volume> {
        let is = |volume: &&Volume| superblock(volume).is_some_and(|found| found.uuid == uuid);
        matches.iter().filter(is).cloned().collect()
    };
    let mut named = vec![(own.filesystem.clone(), Consent::Own)];
    if let Some(EtcdAdopt::Filesystem(uuid)) = adopt {
        // What was asked for on purpose comes before what the node has.
        named.insert(0, (uuid.to_string(), Consent::Adopted));
    }
    for (uuid, consent) in named {
        let wanted = format!("{wanted} and the file system {uuid}");
        if let Some(choice) = one(with(&uuid), &wanted, consent)? {
            return Ok(Some(choice));
        }
    }
    if adopt == Some(EtcdAdopt::Blank) {
        return one(matches, wanted, Consent::Blank);
    }
    match matches.is_empty() {
        true => Ok(None),
        false => Err(refused(&matches, own)),
    }
}

/// A device that cannot be read now counts as one without a file system: the search is repeated.
fn superblock(volume: &Volume) -> Option<Superblock> {
    ext::read(&volume.path).ok().flatten()
}

/// The refusal of volumes that are not the node's own, or are damaged.
pub fn refused(volumes: &[Volume], own: &EtcdVolume) -> Fault {
    let damaged = |volume| backup_of(volume, &own.filesystem).map(|backup| (volume, backup));
    match volumes.iter().find_map(damaged) {
        Some((volume, backup)) => damage(volume, &backup, own),
        None => others(volumes, own),
    }
}

/// A backup of the superblock with this UUID, on a volume that has no other.
fn backup_of(volume: &Volume, uuid: &str) -> Option<Backup> {
    let None = ext::read(&volume.path).ok()? else {
        return None;
    };
    let backups = backup::find(&volume.path, volume.size).ok()?;
    let is_its = |backup: &Backup| backup.superblock.uuid == uuid;
    backups.into_iter().find(is_its)
}

// Not repaired here, as `state` and `var` are: a disk that a person has wiped to begin anew has these backups too.
fn damage(volume: &Volume, backup: &Backup, own: &EtcdVolume) -> Fault {
    Fault::new("the superblock of this node's etcd volume is damaged")
        .expected(describe(own))
        .found(format!("{volume} has only a backup of it, in block {}", backup.at))
        .fix(format!(
            "repair it from a rescue system: e2fsck -f -b {} -B {} on the volume; {}, if the member is to begin anew",
            backup.at,
            backup.superblock.block,
            consent(&EtcdAdopt::Blank.to_string())
        ))
}

fn others(volumes: &[Volume], own: &EtcdVolume) -> Fault {
    let looks: Vec<_> = volumes
        .iter()
        .map(|volume| (volume, ext::read(&volume.path)))
        .collect();
    let found = looks.iter().map(|(volume, look)| match look {
        Ok(Some(found)) => format!("{volume} holds the ext file system {}", found.uuid),
        Ok(None) => format!("{volume} holds no ext file system"),
        Err(error) => format!("{volume} cannot be read: {error:#}"),
    });
    let uuid = |look: &Result<Option<Superblock>>| Some(look.as_ref().ok()?.as_ref()?.uuid.clone());
    let uuid = looks.iter().find_map(|(_, look)| uuid(look));
    // A disk that cannot be read may be the right one.
    let all_read = looks.iter().all(|(_, look)| look.is_ok());
    let adopt = uuid.or_else(|| all_read.then(|| EtcdAdopt::Blank.to_string()));
    let take = adopt.map(|adopt| format!("; to take this one on purpose, {}", consent(&adopt)));
    Fault::new("the disk is not this node's etcd volume")
        .expected(describe(own))
        .found(found.collect::<Vec<_>>().join(", "))
        .fix(format!("attach the right disk{}", take.unwrap_or_default()))
}

/// How a person consents to another volume.
fn consent(adopt: &str) -> String {
    format!(
        "boot once with {}={adopt}, or set adopt = {adopt:?} in [etcd] of {NODE_SETTINGS}",
        cmdline::ETCD_ADOPT
    )
}

/// The volume in the words of messages.
fn describe(own: &EtcdVolume) -> String {
    let member = own.member.as_ref();
    let member = member.map_or_else(String::new, |member| format!(", member {member:?}"));
    format!(
        "the file system {} of cluster {:?}{member}",
        own.filesystem, own.cluster
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const OWN: &str = "01010101-0101-0101-0101-010101010101";
    const OTHER: &str = "02020202-0202-0202-0202-020202020202";

    fn record(filesystem: &str, adopted: Option<EtcdAdopt>) -> EtcdVolume {
        EtcdVolume {
            version: VERSION,
            filesystem: filesystem.to_owned(),
            cluster: "prod".to_owned(),
            member: None,
            adopted,
        }
    }

    /// A volume with an ext superblock whose UUID consists of this byte; a blank one of 0.
    fn volume(folder: &Path, name: &str, uuid: u8) -> Volume {
        let path = folder.join(name);
        let file = File::create(&path).unwrap();
        file.set_len(8192).unwrap();
        if uuid != 0 {
            file.write_all_at(b"\x53\xef", 1080).unwrap();
            file.write_all_at(&[uuid; 16], 1128).unwrap();
        }
        Volume {
            name: name.to_owned(),
            path,
            size: 8192,
            stable: "serial etcd".to_owned(),
            read_only: false,
            disk: name.to_owned(),
            holders: Vec::new(),
        }
    }

    fn adopt(text: &str) -> Option<EtcdAdopt> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_node_without_a_record_takes_the_only_match() {
        let folder = tempfile::tempdir().unwrap();
        let [own, blank] = [("a", 1), ("b", 0)].map(|(n, u)| volume(folder.path(), n, u));
        assert_eq!(
            choose(&World::real(), vec![], "x", None, None).unwrap(),
            None
        );
        let choice = choose(&World::real(), vec![blank.clone()], "x", None, None)
            .unwrap()
            .unwrap();
        assert_eq!(
            (choice.volume.name.as_str(), choice.consent),
            ("b", Consent::First)
        );
        assert!(choose(&World::real(), vec![own, blank], "x", None, None).is_err());
    }

    #[test]
    fn a_node_that_knows_its_volume_takes_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other, blank] =
            [("own", 1), ("other", 2), ("blank", 0)].map(|(n, u)| volume(folder.path(), n, u));
        let known = record(OWN, None);
        let by = |volumes: &[&Volume], adopt| {
            let volumes = volumes.iter().map(|volume| (*volume).clone()).collect();
            choose(&World::real(), volumes, "x", Some(&known), adopt)
                .map(|choice| choice.map(|choice| (choice.volume.name, choice.consent)))
        };
        let named = |name: &str, consent| Ok::<_, String>(Some((name.to_owned(), consent)));
        let text = |result: Result<_, Fault>| result.map_err(|fault| fault.to_string());
        assert_eq!(text(by(&[], None)), Ok(None));
        // The others need not be detached.
        assert_eq!(
            text(by(&[&blank, &other, &own], None)),
            named("own", Consent::Own)
        );
        for (volume, value) in [(&other, OTHER), (&blank, "blank")] {
            let fault = by(&[volume], None).unwrap_err();
            assert!(fault.expected.as_ref().unwrap().contains(OWN), "{fault}");
            assert!(
                fault.found.as_ref().unwrap().contains(&volume.name),
                "{fault}"
            );
            let fix = fault.fix.unwrap();
            assert!(
                fix.contains(&format!("slipway.etcd.adopt={value}")),
                "{fix}"
            );
        }
        // Consent is for one volume.
        assert_eq!(
            text(by(&[&other], adopt(OTHER))),
            named("other", Consent::Adopted)
        );
        assert_eq!(
            text(by(&[&other, &own], adopt(OTHER))),
            named("other", Consent::Adopted)
        );
        assert_eq!(text(by(&[&own], adopt(OTHER))), named("own", Consent::Own));
        assert!(by(&[&blank], adopt(OTHER)).is_err());
        assert_eq!(
            text(by(&[&blank], adopt("blank"))),
            Ok(Some(("blank".to_owned(), Consent::Blank)))
        );
        assert_eq!(
            text(by(&[&blank, &own], adopt("blank"))),
            named("own", Consent::Own)
        );
        // A clone of the node's own volume.
        let clone = volume(folder.path(), "clone", 1);
        assert!(by(&[&own, &clone], None).is_err());
    }

    #[test]
    fn a_damaged_volume_and_one_that_cannot_be_read_are_told_from_another_disk() {
        let folder = tempfile::tempdir().unwrap();
        let known = record(OWN, None);
        let mut own = volume(folder.path(), "own", 0);
        own.size = 9 << 20;
        let file = File::options().write(true).open(&own.path).unwrap();
        file.set_len(own.size).unwrap();
        // The first backup of a file system with blocks of 1 KiB, in group 1.
        let at = 8193 << 10;
        for (field, bytes) in [
            (0x04, &9216_u32.to_le_bytes()[..]),
            (0x20, &8192_u32.to_le_bytes()),
            (0x38, b"\x53\xef"),
            (0x5a, &[1]),
            (0x68, &[1; 16]),
        ] {
            file.write_all_at(bytes, at + field).unwrap();
        }
        let by = |volume: &Volume| {
            choose(
                &World::real(),
                vec![volume.clone()],
                "x",
                Some(&known),
                None,
            )
        };
        let fault = by(&own).unwrap_err();
        assert!(fault.what.contains("superblock"), "{fault}");
        assert!(fault.fix.unwrap().contains("e2fsck -f -b 8193 -B 1024 "));
        // Another file system's backup is none of the node's.
        file.write_all_at(&[2; 16], at + 0x68).unwrap();
        let fault = by(&own).unwrap_err();
        assert!(fault.found.unwrap().contains("no ext file system"));
        let mut gone = own.clone();
        gone.path = folder.path().join("gone");
        let fault = by(&gone).unwrap_err();
        assert!(fault.found.unwrap().contains("cannot be read"));
        assert!(!fault.fix.unwrap().contains("adopt"));
    }

    #[test]
    fn consent_is_spent_once_and_counts_again_after_the_settings_changed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        assert_eq!(read(state).unwrap(), None);
        let keep = |adopt, uuid: &str| {
            let before = read(state).unwrap();
            write(state, before.as_ref(), adopt, record(uuid, None)).unwrap();
            read(state).unwrap().unwrap()
        };
        assert_eq!(keep(None, OWN), record(OWN, None));
        // Not used yet: the node still has its own.
        assert_eq!(keep(adopt(OTHER), OWN), record(OWN, None));
        assert_eq!(keep(adopt("blank"), OWN), record(OWN, None));
        assert_eq!(keep(adopt(OTHER), OTHER), record(OTHER, adopt(OTHER)));
        assert_eq!(keep(adopt("blank"), OWN), record(OWN, adopt("blank")));
        let own = read(state).unwrap();
        let blank = volume(state, "blank", 0);
        let spent = choose(
            &World::real(),
            vec![blank.clone()],
            "x",
            own.as_ref(),
            adopt("blank"),
        );
        assert!(spent.is_err(), "the consent was used twice");
        assert_eq!(keep(adopt("blank"), OWN), record(OWN, adopt("blank")));
        assert_eq!(keep(None, OWN), record(OWN, None));
        let own = read(state).unwrap();
        let again = choose(
            &World::real(),
            vec![blank],
            "x",
            own.as_ref(),
            adopt("blank"),
        );
        assert_eq!(again.unwrap().unwrap().consent, Consent::Blank);
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_none() {
        let folder = tempfile::tempdir().unwrap();
        for text in [
            "",
            "{\"version\": 1",
            "{\"version\": 9, \"filesystem\": \"x\", \"cluster\": \"c\"}",
        ] {
            std::fs::write(folder.path().join(STATE_ETCD), text).unwrap();
            let error = read(folder.path()).unwrap_err();
            assert!(error.downcast_ref::<Fault>().is_some(), "{error}");
        }
    }
}
