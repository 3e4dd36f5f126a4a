//! RAID arrays, made by `mdadm`: a config has no key to keep an existing one.

mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ignition::model::Raid;

use crate::device;
use crate::device_name::Name;
use linux::md::Member;
use linux::programs;
use linux::programs::Programs;
use linux::tools::{Tool, load_module};
use linux::uevent;
use linux::world::World;
pub use start::start;

/// The longest name, in characters: the metadata has room for 32 bytes, and `any:` precedes the name.
const LONGEST: usize = 28;
/// How long udev, if it runs, may take to name an array, or to start an array whose members it is collecting.
const BY_UDEV: Duration = Duration::from_secs(10);

/// An array of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArraySpec {
    /// Its JSON path in the config.
    pub at: String,
    /// Its name, below `/dev/md`.
    pub name: String,
    level: String,
    /// The number of active devices.
    active: usize,
    /// The number of spare devices.
    spares: usize,
    options: Vec<String>,
}

impl ArraySpec {
    /// Reads the entry of a config.
    ///
    /// # Errors
    /// For settings that mdadm would refuse only after the first write.
    pub fn of(at: &str, model: &Raid) -> Result<Self, String> {
        let devices = model.devices.as_ref().map_or(0, Vec::len);
        let spares = usize::try_from(model.spares.unwrap_or(0)).unwrap_or(usize::MAX);
        let spec = Self {
            at: at.to_owned(),
            name: model.name.clone(),
            level: model.level.clone().unwrap_or_default(),
            active: devices.saturating_sub(spares),
            spares,
            options: model.options.clone().unwrap_or_default(),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if spec.name.len() > LONGEST
            || spec.name.starts_with(['-', '.'])
            || !spec.name.chars().all(fits)
        {
            return Err(format!(
                "name: {:?} is not a name for mdadm; expected at most {LONGEST} letters, digits, dots, hyphens and underscores",
                spec.name
            ));
        }
        let least = match spec.module() {
            "raid456" if ["raid6", "6"].contains(&spec.level.as_str()) => 4,
            "raid456" | "raid10" => 2,
            _ => 1,
        };
        if spec.active < least {
            return Err(format!(
                "{spares} of {devices} devices are spares: an array of level {} needs {least} more",
                spec.level
            ));
        }
        Ok(spec)
    }

    /// The kernel's module for the level.
    pub fn module(&self) -> &'static str {
        match self.level.as_str() {
            "linear" => "linear",
            "raid0" | "0" | "stripe" => "raid0",
            "raid1" | "1" | "mirror" => "raid1",
            "raid10" | "10" => "raid10",
            _ => "raid456",
        }
    }

    /// Whether a device is a member of this array: of one with its name, level and size.
    pub fn has(&self, member: &Member) -> bool {
        let level = match self.level.as_str() {
            "linear" => -1,
            "raid0" | "0" | "stripe" => 0,
            "raid1" | "1" | "mirror" => 1,
            "raid4" | "4" => 4,
            "raid5" | "5" => 5,
            "raid6" | "6" => 6,
            "raid10" | "10" => 10,
            _ => return false,
        };
        member.name == self.name
            && member.level == level
            && usize::try_from(member.disks) == Ok(self.active)
    }

    fn create(&self, devices: &[String]) -> Vec<String> {
        let mut out: Vec<String> = [
            "--create",
            &self.name,
            "--force",
            "--run",
            "--homehost",
            "any",
        ]
        .map(str::to_owned)
        .into();
        out.extend(["--level".to_owned(), self.level.clone()]);
        out.extend(["--raid-devices".to_owned(), self.active.to_string()]);
        if self.spares > 0 {
            out.extend(["--spare-devices".to_owned(), self.spares.to_string()]);
        }
        out.extend(self.options.iter().cloned());
        out.extend(devices.iter().cloned());
        out
    }

    /// The arguments to start an array that an earlier run of this config made.
    fn assemble(&self, devices: &[String]) -> Vec<String> {
        let mut out: Vec<String> = ["--assemble", &format!("/dev/md/{}", self.name), "--run"]
            .map(str::to_owned)
            .into();
        out.extend(devices.iter().cloned());
        out
    }

    /// Makes the array on these devices, or starts it if it is `made` already.
    ///
    /// # Errors
    /// The command as it would be typed, and its output.
    pub fn apply(&self, root: &Programs, devices: &[PathBuf], made: bool) -> Result<()> {
        let paths = devices
            .iter()
            .map(|path| path.to_string_lossy().into_owned());
        let paths: Vec<String> = paths.collect();
        for module in ["md_mod", self.module()] {
            load_module(root, module)?;
        }
        let (verb, arguments) = match made {
            true => ("starting", self.assemble(&paths)),
            false => ("making", self.create(&paths)),
        };
        tracing::info!(
            "disks: {verb} the array {} of {}",
            self.name,
            paths.join(", ")
        );
        // With `--write-zeroes` it writes all of the members.
        let what = format!("mdadm of the array {}", self.name);
        let done = programs::succeed_on_disk(root, &Tool::Mdadm.find(root)?, &arguments, &what)
            .with_context(|| format!("{verb} the array {}", self.name));
        if !root.has_udev() {
            return done.map(drop);
        }
        // udev's rules may have started an existing array meanwhile, or be about to.
        if done.is_ok() || made {
            self.wait(&root.world)?;
        }
        match done {
            Err(error) if made && start::running(&root.world, &self.name).is_some() => {
                tracing::info!("disks: udev has started the array {}: {error:#}", self.name);
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Waits until the array runs and udev has named it. If it does not run, the step that needs it reports that.
    fn wait(&self, world: &World) -> Result<()> {
        let what = format!("the array {}", self.name);
        let look = || Ok(start::running(world, &self.name));
        uevent::wait_for(world, &what, Some(BY_UDEV), look).map(drop)
    }
}

/// The node of an array: by the link that mdadm makes without udev, and udev otherwise; else by the metadata of its
/// members.
///
/// # Errors
/// If the array does not exist.
pub fn node(world: &World, name: &str) -> Result<PathBuf> {
    if let Ok(target) = std::fs::canonicalize(world.dev.join("md").join(name)) {
        return Ok(target);
    }
    let devices = device::all(world);
    let found = device::find(&devices, &Name::Array(name.to_owned()));
    let found = found.first().map(|device| device.path.clone());
    found.with_context(|| format!("no array {name}"))
}

/// The UUID of an array, as mdadm writes it.
///
/// # Errors
/// If mdadm does not know the array.
pub fn uuid(root: &Programs, device: &Path) -> Result<String> {
    let arguments = ["--detail", "--export", &device.to_string_lossy()];
    let output = programs::succeed(root, &Tool::Mdadm.find(root)?, &arguments)?;
    uuid_in(&output.stdout).with_context(|| format!("{} has no UUID", device.display()))
}

/// The UUID in the output of `mdadm --export`.
fn uuid_in(text: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("MD_UUID="))
        .map(|uuid| uuid.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, level: &str, devices: usize, spares: i64) -> Result<ArraySpec, String> {
        let model = Raid {
            level: Some(level.to_owned()),
            devices: Some((0..devices).map(|i| format!("/dev/{i}")).collect()),
            spares: Some(spares),
            options: Some(vec!["--chunk=64".to_owned()]),
            ..Raid::new(name.to_owned())
        };
        ArraySpec::of("r", &model)
    }

    #[test]
    fn commands_are_those_of_ignition() {
        let devices = ["/dev/a", "/dev/b", "/dev/c"].map(str::to_owned);
        let pair = spec("data", "raid1", 3, 1).unwrap();
        assert_eq!(
            pair.create(&devices).join(" "),
            "--create data --force --run --homehost any --level raid1 --raid-devices 2 --spare-devices 1 \
             --chunk=64 /dev/a /dev/b /dev/c"
        );
        let none = spec("data", "raid5", 3, 0)
            .unwrap()
            .create(&devices)
            .join(" ");
        assert!(none.contains("--raid-devices 3 --chunk"), "{none}");
        assert_eq!(
            pair.assemble(&devices).join(" "),
            "--assemble /dev/md/data --run /dev/a /dev/b /dev/c"
        );
    }

    #[test]
    fn what_mdadm_would_refuse_is_refused_before() {
        for (name, level, devices, spares, word) in [
            ("data", "raid1", 2, 2, "2 of 2 devices are spares"),
            ("data", "raid6", 4, 1, "needs 4 more"),
            ("data", "10", 1, 0, "needs 2 more"),
            ("-data", "raid1", 2, 0, "not a name"),
            ("two words", "raid1", 2, 0, "not a name"),
            (&"x".repeat(29), "raid1", 2, 0, "not a name"),
        ] {
            let error = spec(name, level, devices, spares).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(spec("data", "raid1", 1, 0).is_ok());
        assert!(spec("data", "raid6", 5, 1).is_ok());
    }

    #[test]
    fn each_level_has_its_module() {
        for (level, module) in [
            ("mirror", "raid1"),
            ("6", "raid456"),
            ("stripe", "raid0"),
            ("10", "raid10"),
        ] {
            let spec = spec("data", level, 4, 0).unwrap();
            assert_eq!(spec.module(), module, "{level}");
        }
    }

    #[test]
    fn its_members_have_its_name_level_and_number() {
        let member = |name: &str, level, disks| Member {
            array: [7; 16],
            name: name.to_owned(),
            level,
            disks,
        };
        let pair = spec("pair", "mirror", 3, 1).unwrap();
        assert!(pair.has(&member("pair", 1, 2)));
        for other in [
            member("other", 1, 2),
            member("pair", 0, 2),
            member("pair", 1, 3),
        ] {
            assert!(!pair.has(&other), "{other:?}");
        }
        assert!(
            spec("pair", "linear", 2, 0)
                .unwrap()
                .has(&member("pair", -1, 2))
        );
    }

    #[test]
    fn a_uuid_is_read_from_what_mdadm_exports() {
        let text = "MD_LEVEL=raid1\nMD_UUID=8f3d4a25:55f0ba6e:0ec1b5f1:57e1c4dd\nMD_DEVNAME=data\n";
        assert_eq!(
            uuid_in(text).as_deref(),
            Some("8f3d4a25:55f0ba6e:0ec1b5f1:57e1c4dd")
        );
        assert_eq!(uuid_in("MD_LEVEL=raid1\n"), None);
    }
}
