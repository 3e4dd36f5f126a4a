//! File systems: decides whether an existing one is kept, and makes new ones.

use std::path::Path;

use anyhow::{Context, Result};

use crate::content::Held;
use ignition::model::Filesystem;
use linux::filesystem::{Found, Kind};
use linux::probe::{FAT, MBR};
use linux::programs;
use linux::programs::Programs;

use linux::tools::Tool;

/// A file system of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemSpec {
    /// Its JSON path in the config.
    pub at: String,
    /// Its device, as the config names it.
    pub device: String,
    /// Its kind; none for a device that is to be empty.
    pub kind: Option<Kind>,
    /// Label.
    pub label: Option<String>,
    /// UUID, or the volume id of FAT.
    pub uuid: Option<String>,
    /// Whether the existing content may be wiped.
    pub wipe: bool,
    /// Options for mkfs.
    pub options: Vec<String>,
}

/// The action on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesystemAction {
    /// Nothing: the file system matches, or the device is empty as required.
    Keep,
    /// The file system is made.
    Make,
    /// The existing content is wiped.
    Wipe,
    /// The existing content is wiped and the file system is made.
    Remake,
}

impl FilesystemSpec {
    /// Reads the entry of a config.
    ///
    /// # Errors
    /// For a kind of file system that is not supported.
    pub fn of(at: &str, model: &Filesystem) -> Result<Self, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            at: at.to_owned(),
            device: model.device.clone(),
            kind: kind(model.format.as_deref().unwrap_or_default())?,
            label: given(&model.label),
            uuid: given(&model.uuid),
            wipe: model.wipe_filesystem == Some(true),
            options: model.options.clone().unwrap_or_default(),
        })
    }

    /// By the content of the device, which messages call `stable` too. Gives a warning if there are other signatures beside
    /// the file system.
    ///
    /// # Errors
    /// If the device has other content, known or not, and may not be wiped: expected against found.
    pub fn decide(
        &self,
        held: &Held,
        stable: &str,
    ) -> Result<(FilesystemAction, Option<String>), String> {
        if self.wipe {
            let action = match self.kind {
                Some(_) => FilesystemAction::Remake,
                None => FilesystemAction::Wipe,
            };
            return Ok((action, None));
        }
        // A FAT begins with a boot sector.
        let names: Vec<&str> = held
            .names
            .iter()
            .copied()
            .filter(|name| !(*name == MBR && held.names.contains(&FAT)))
            .collect();
        let Some(kind) = self.kind else {
            // Nothing is written, so that data of no known kind is in no danger.
            return match names.is_empty() {
                true => Ok((FilesystemAction::Keep, None)),
                false => Err(self.refusal("nothing", held, stable)),
            };
        };
        if held.is_blank() {
            return Ok((FilesystemAction::Make, None));
        }
        if !held.found.iter().any(|found| self.is(found)) {
            return Err(self.refusal(&self.describe(kind), held, stable));
        }
        let beside = (names.len() > 1).then(|| {
            let names = names.join(" and ");
            format!(
                "{}: {} holds {names}; it is taken as {kind}",
                self.at, self.device
            )
        });
        Ok((FilesystemAction::Keep, beside))
    }

    fn refusal(&self, expected: &str, held: &Held, stable: &str) -> String {
        format!(
            "{}: {} ({stable}) holds something else and wipeFilesystem is not set; expected {expected}, or a blank device; \
             found {}; `wipeFilesystem: true` gives it up",
            self.at,
            self.device,
            held.describe()
        )
    }

    /// The action on a device that was just made and is empty.
    pub const fn fresh(&self) -> FilesystemAction {
        match self.kind {
            Some(_) => FilesystemAction::Make,
            None => FilesystemAction::Keep,
        }
    }

    fn is(&self, found: &Found) -> bool {
        Some(found.kind) == self.kind
            && self
                .label
                .as_ref()
                .is_none_or(|label| *label == found.label)
            && self
                .uuid
                .as_ref()
                .is_none_or(|uuid| canonical(uuid) == canonical(&found.uuid))
    }

    fn describe(&self, kind: Kind) -> String {
        let mut out = kind.to_string();
        for (name, value) in [("label", &self.label), ("UUID", &self.uuid)] {
            if let Some(value) = value {
                out = format!("{out}, {name} {value:?}");
            }
        }
        out
    }

    /// The mkfs program; none for a device that is to be empty.
    pub fn tool(&self) -> Option<Tool> {
        Some(match self.kind? {
            Kind::Ext3 | Kind::Ext4 => Tool::MkfsExt4,
            Kind::Xfs => Tool::MkfsXfs,
            Kind::Btrfs => Tool::MkfsBtrfs,
            Kind::Vfat => Tool::MkfsFat,
            Kind::Swap => Tool::Mkswap,
            Kind::Luks1 | Kind::Luks2 => return None,
        })
    }

    /// The arguments of mkfs; the config's options come first.
    fn arguments(&self, device: &str) -> Vec<String> {
        let (force, identity) = match self.kind {
            Some(Kind::Btrfs) => (Some("--force"), "-U"),
            Some(Kind::Swap) => (Some("-f"), "-U"),
            Some(Kind::Xfs) => (Some("-f"), "-m"),
            // mkfs.fat has no such flag: it never asks.
            Some(Kind::Vfat) => (None, "-i"),
            _ => (Some("-F"), "-U"),
        };
        let mut out = self.options.clone();
        out.extend(force.map(str::to_owned));
        if let Some(uuid) = self.uuid.as_deref().map(canonical) {
            let uuid = match self.kind {
                Some(Kind::Xfs) => format!("uuid={uuid}"),
                _ => uuid,
            };
            out.extend([identity.to_owned(), uuid]);
        }
        if let Some(label) = &self.label {
            let flag = if self.kind == Some(Kind::Vfat) {
                "-n"
            } else {
                "-L"
            };
            out.extend([flag.to_owned(), label.clone()]);
        }
        out.push(device.to_owned());
        out
    }

    /// Carries out the action.
    ///
    /// # Errors
    /// The command as it would be typed, and its output.
    pub fn apply(&self, root: &Programs, action: &FilesystemAction, device: &Path) -> Result<()> {
        let path = device.to_string_lossy();
        if matches!(action, FilesystemAction::Wipe | FilesystemAction::Remake) {
            let program = Tool::Wipefs.find(root)?;
            programs::succeed(root, &program, &["-a", path.as_ref()])
                .with_context(|| format!("wiping {path}"))?;
        }
        if matches!(action, FilesystemAction::Make | FilesystemAction::Remake)
            && let Some(tool) = self.tool()
        {
            tracing::info!(
                "disks: making {} on {path}",
                self.kind.map_or_else(String::new, |kind| kind.to_string())
            );
            let kind = self.kind.map_or_else(String::new, |kind| kind.to_string());
            let what = format!("{kind} to be made on {path}");
            programs::succeed_on_disk(root, &tool.find(root)?, &self.arguments(&path), &what)
                .with_context(|| format!("making the file system on {path}"))?;
        }
        Ok(())
    }
}

/// UUIDs are compared without regard to case, and FAT's volume ids with or without their hyphen.
fn canonical(uuid: &str) -> String {
    let uuid = uuid.to_lowercase();
    match uuid.len() {
        9 => uuid.replace('-', ""),
        _ => uuid,
    }
}

/// The kind that a config's `format` names.
///
/// # Errors
/// For an unknown word, or one that needs no disk.
pub fn kind(format: &str) -> Result<Option<Kind>, String> {
    Ok(Some(match format {
        "ext4" => Kind::Ext4,
        "xfs" => Kind::Xfs,
        "btrfs" => Kind::Btrfs,
        "vfat" => Kind::Vfat,
        "swap" => Kind::Swap,
        "none" | "" => return Ok(None),
        other => {
            return Err(format!(
                "file systems of the kind {other} are not made by this version of Slipway"
            ));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::probe;

    fn found(kind: Kind) -> Found {
        Found {
            kind,
            label: "data".into(),
            uuid: "a1b2-c3d4".into(),
        }
    }

    fn want(kind: Option<Kind>) -> FilesystemSpec {
        FilesystemSpec {
            at: "f".into(),
            device: "/dev/x".into(),
            kind,
            ..FilesystemSpec::default()
        }
    }

    #[test]
    fn what_is_there_decides() {
        let ext4 = Some(Kind::Ext4);
        let wiped = |kind| FilesystemSpec {
            wipe: true,
            ..want(kind)
        };
        let labelled = |label: &str| FilesystemSpec {
            label: Some(label.into()),
            ..want(ext4)
        };
        let held = |names: &[&'static str], found: &[Found]| Held {
            names: names.to_vec(),
            found: found.to_vec(),
            unknown: None,
        };
        let nothing = &Held::default();
        let there = &held(&[probe::EXT], &[found(Kind::Ext4)]);
        let foreign = &held(&["a ZFS device"], &[]);
        let unknown = &Held {
            unknown: Some(7),
            ..Held::default()
        };
        for (spec, held, expected) in [
            (want(ext4), nothing, Some(FilesystemAction::Make)),
            (want(ext4), unknown, None),
            (want(Some(Kind::Swap)), unknown, None),
            (wiped(ext4), unknown, Some(FilesystemAction::Remake)),
            (want(None), unknown, Some(FilesystemAction::Keep)),
            (want(ext4), there, Some(FilesystemAction::Keep)),
            (labelled("data"), there, Some(FilesystemAction::Keep)),
            (labelled("other"), there, None),
            (want(Some(Kind::Xfs)), there, None),
            (want(ext4), foreign, None),
            (wiped(ext4), there, Some(FilesystemAction::Remake)),
            (wiped(ext4), foreign, Some(FilesystemAction::Remake)),
            (want(None), nothing, Some(FilesystemAction::Keep)),
            (want(None), there, None),
            (wiped(None), there, Some(FilesystemAction::Wipe)),
        ] {
            let decided = spec.decide(held, "virtio-x");
            match expected {
                Some(expected) => assert_eq!(decided.unwrap().0, expected, "{spec:?}"),
                None => {
                    let text = decided.unwrap_err();
                    for word in [
                        "expected",
                        "found",
                        "/dev/x (virtio-x)",
                        "wipeFilesystem: true",
                    ] {
                        assert!(text.contains(word), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_stands_beside_the_right_one_is_warned_of() {
        let held = |names: [&'static str; 2], kind| Held {
            names: names.to_vec(),
            found: vec![found(kind)],
            unknown: None,
        };
        let both = held([probe::EXT, "a ZFS device"], Kind::Ext4);
        let (action, warning) = want(Some(Kind::Ext4)).decide(&both, "x").unwrap();
        assert_eq!(action, FilesystemAction::Keep);
        assert!(warning.unwrap().contains("ZFS"));
        // A FAT's own boot sector does not count as another signature.
        let spec = FilesystemSpec {
            uuid: Some("A1B2C3D4".into()),
            ..want(Some(Kind::Vfat))
        };
        let kept = spec.decide(&held([MBR, FAT], Kind::Vfat), "x").unwrap();
        assert_eq!(kept, (FilesystemAction::Keep, None));
    }

    #[test]
    fn commands_are_those_of_ignition() {
        let all = |kind| FilesystemSpec {
            label: Some("data".into()),
            uuid: Some("A1B2-C3D4".into()),
            options: vec!["-q".into()],
            ..want(Some(kind))
        };
        for (kind, expected) in [
            (Kind::Ext4, "-q -F -U a1b2c3d4 -L data /dev/x"),
            (Kind::Xfs, "-q -f -m uuid=a1b2c3d4 -L data /dev/x"),
            (Kind::Btrfs, "-q --force -U a1b2c3d4 -L data /dev/x"),
            (Kind::Swap, "-q -f -U a1b2c3d4 -L data /dev/x"),
            (Kind::Vfat, "-q -i a1b2c3d4 -n data /dev/x"),
        ] {
            assert_eq!(all(kind).arguments("/dev/x").join(" "), expected);
        }
        assert_eq!(
            want(Some(Kind::Ext4)).arguments("/dev/x").join(" "),
            "-F /dev/x"
        );
    }
}
