//! The journal of the disks: which file systems, volumes, arrays and tables of the config were started and completed,
//! so that after a power cut the next boot recognises its own half-made ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use image::paths::STATE_DISKS as JOURNAL;
use serde::{Deserialize, Serialize};

use super::StateFile;

/// Sections of a config whose entries overwrite a complete device.
const OVERWRITING: [&str; 3] = [
    "$.storage.filesystems.",
    "$.storage.luks.",
    "$.storage.raid.",
];
/// Separates the members of an array; no device name contains it.
pub const SEPARATOR: &str = ", ";

/// The progress of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The entry may be half made.
    #[serde(rename = "begun")]
    Started,
    /// The entry is complete.
    Done,
}

/// One entry: a path in the config, on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// Its device, by what a later boot knows it again.
    device: String,
    stage: Stage,
    /// Numbers of the partitions, by their paths in the config.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<String, u32>,
    /// Whether a table has no partition of an earlier one.
    #[serde(default)]
    fresh: bool,
}

/// Names of devices.
type Devices = BTreeSet<String>;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    /// SHA-256 of the journal's config.
    config: String,
    entries: BTreeMap<String, Entry>,
    /// Devices on which earlier attempts, with other configs, made file systems, volumes or arrays, and disks whose
    /// complete table they made: all of their content is this node's.
    #[serde(default, skip_serializing_if = "Devices::is_empty")]
    earlier: Devices,
}

impl Content {
    /// The journal for the next config: it keeps the devices that this one made.
    fn succeeded_by(self, config: &str) -> Self {
        let mut earlier = self.earlier;
        for (at, entry) in self.entries {
            if entry.fresh || OVERWRITING.iter().any(|place| at.starts_with(place)) {
                earlier.extend(entry.device.split(SEPARATOR).map(str::to_owned));
            }
        }
        Self {
            config: config.to_owned(),
            earlier,
            ..Self::default()
        }
    }
}

/// The journal of one config's disks.
#[derive(Debug, Default)]
pub struct DiskJournal(StateFile<Content>);

impl DiskJournal {
    /// The journal below `state` of the config with this hash; an empty one if there is none. From the journal of
    /// another config only the devices are kept whose complete content that one made. Without `state` it is kept in
    /// memory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(state: Option<&Path>, config: &str) -> Result<Self> {
        let mut file = StateFile::<Content>::read(state.map(|state| state.join(JOURNAL)))?;
        if file.content.config != config {
            file.content = std::mem::take(&mut file.content).succeeded_by(config);
        }
        Ok(Self(file))
    }

    /// Removes a journal that belongs to another node.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(state: &Path) -> Result<()> {
        super::remove(&state.join(JOURNAL))
    }

    /// Stores the journal below `state` from now on, since `state` is made only after the journal is opened.
    pub fn keep_in(&mut self, state: &Path) {
        self.0.path = Some(state.join(JOURNAL));
    }

    /// How far the thing at this place of the config has come on this device. Nothing is known of a device that nothing
    /// names: it may be another one than at the boot before.
    pub fn stage(&self, at: &str, device: Option<&str>) -> Option<Stage> {
        let entry = self.0.content.entries.get(at)?;
        (entry.device == device?).then_some(entry.stage)
    }

    /// Whether all content of this device comes from an attempt with another config.
    pub fn made_earlier(&self, device: Option<&str>) -> bool {
        let Some(device) = device else {
            return false;
        };
        let disk = device.split(" partition ").next().unwrap_or(device);
        self.0.content.earlier.contains(device) || self.0.content.earlier.contains(disk)
    }

    /// Whether the table at this place was begun on this device, of whose former content nothing stays.
    pub fn is_fresh(&self, at: &str, device: Option<&str>) -> bool {
        let entry = self.0.content.entries.get(at);
        entry.is_some_and(|entry| entry.fresh && Some(entry.device.as_str()) == device)
    }

    /// The number that a partition got on this device.
    pub fn number(&self, disk: &str, device: Option<&str>, at: &str) -> Option<u32> {
        let entry = self.0.content.entries.get(disk)?;
        (entry.device == device?).then(|| entry.numbers.get(at).copied())?
    }

    /// Notes, on the disk when this returns. Of a device that nothing names there is nothing to note.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn note(&mut self, at: &str, device: Option<&str>, stage: Stage) -> Result<()> {
        let Some(device) = device else {
            return Ok(());
        };
        let entry = self.0.content.entries.entry(at.to_owned());
        let entry = entry.or_insert_with(|| Entry {
            device: String::new(),
            stage,
            numbers: BTreeMap::new(),
            fresh: false,
        });
        device.clone_into(&mut entry.device);
        entry.stage = stage;
        self.write()
    }

    /// Records, as [`DiskJournal::note`], that a table is started, with its partitions' numbers, and whether no former
    /// partition of the disk remains (`fresh`).
    ///
    /// # Errors
    /// As there.
    pub fn note_table(
        &mut self,
        at: &str,
        device: Option<&str>,
        numbers: BTreeMap<String, u32>,
        fresh: bool,
    ) -> Result<()> {
        let Some(device) = device else {
            return Ok(());
        };
        let entry = Entry {
            device: device.to_owned(),
            stage: Stage::Started,
            numbers,
            fresh,
        };
        self.0.content.entries.insert(at.to_owned(), entry);
        self.write()
    }

    fn write(&self) -> Result<()> {
        self.0.write(0o644)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_noted_is_known_to_the_next_boot_for_the_same_config_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let state = Some(folder.path());
        let mut journal = DiskJournal::open(state, "one").unwrap();
        assert_eq!(journal.stage("f", Some("serial a")), None);
        journal.note("f", Some("serial a"), Stage::Started).unwrap();
        let numbers = BTreeMap::from([("p".to_owned(), 3)]);
        journal
            .note_table("d", Some("serial a"), numbers, true)
            .unwrap();
        journal.note("d", Some("serial a"), Stage::Done).unwrap();

        let again = DiskJournal::open(state, "one").unwrap();
        assert_eq!(again.stage("f", Some("serial a")), Some(Stage::Started));
        assert_eq!(again.stage("f", Some("serial b")), None);
        assert_eq!(again.stage("d", Some("serial a")), Some(Stage::Done));
        assert_eq!(again.number("d", Some("serial a"), "p"), Some(3));
        assert_eq!(again.number("d", Some("serial b"), "p"), None);
        let other = DiskJournal::open(state, "two").unwrap();
        assert_eq!(other.stage("f", Some("serial a")), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_config_knows_what_the_one_before_had_made() {
        let folder = tempfile::tempdir().unwrap();
        let state = Some(folder.path());
        let mut journal = DiskJournal::open(state, "one").unwrap();
        let numbers = BTreeMap::new;
        journal
            .note_table("$.storage.disks.0", Some("whole"), numbers(), true)
            .unwrap();
        journal
            .note_table("$.storage.disks.1", Some("used"), numbers(), false)
            .unwrap();
        let at = "$.storage.filesystems.0";
        journal
            .note(at, Some("used partition 2"), Stage::Started)
            .unwrap();
        for (at, device) in [
            ("$.storage.raid.0", "left, right partition 1"),
            ("$.storage.luks.0", "volume"),
        ] {
            journal.note(at, Some(device), Stage::Started).unwrap();
        }
        assert!(
            !journal.made_earlier(Some("whole")),
            "it is this config's own"
        );
        let mut journal = DiskJournal::open(state, "two").unwrap();
        journal.note(at, Some("third"), Stage::Done).unwrap();
        // And the one after that.
        let journal = DiskJournal::open(state, "three").unwrap();
        for (device, made) in [
            ("whole", true),
            ("whole partition 7", true),
            ("used", false),
            ("used partition 1", false),
            ("used partition 2", true),
            ("third", true),
            ("left", true),
            ("right", false),
            ("right partition 1", true),
            ("volume", true),
        ] {
            assert_eq!(journal.made_earlier(Some(device)), made, "{device}");
        }
    }

    #[test]
    fn of_a_device_that_nothing_names_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = DiskJournal::open(Some(folder.path()), "one").unwrap();
        journal.note("f", None, Stage::Started).unwrap();
        journal
            .note_table("d", None, BTreeMap::new(), true)
            .unwrap();
        journal.note("f", Some("x"), Stage::Started).unwrap();
        assert_eq!(journal.stage("f", None), None);
        assert_eq!(journal.stage("d", None), None);
        let journal = DiskJournal::open(Some(folder.path()), "two").unwrap();
        assert!(!journal.made_earlier(None));
    }

    #[test]
    fn without_state_it_is_kept_in_memory_until_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = DiskJournal::open(None, "one").unwrap();
        journal.note("f", Some("x"), Stage::Started).unwrap();
        journal.keep_in(folder.path());
        journal.note("g", Some("x"), Stage::Done).unwrap();
        let again = DiskJournal::open(Some(folder.path()), "one").unwrap();
        assert_eq!(again.stage("f", Some("x")), Some(Stage::Started));
    }
}
