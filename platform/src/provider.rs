//! Provider: one row of the table, with everything about one platform.

use std::fmt;
use std::path::Path;

use fetch::Identity;

use crate::dmi::Dmi;
use crate::env_keys::EnvKeys;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::userdata::UserConfig;

/// Everything about one platform. Reading a row does no I/O: the tool reads names and drivers, the node the rest.
#[derive(Clone, Copy)]
pub struct Provider {
    /// Ignition's name of it, in `ignition.platform.id=` and in the manifest.
    pub id: &'static str,
    /// Its name in recipes; `None` if recipes cannot name it.
    pub recipe_name: Option<&'static str>,
    /// One line for the recipe's reference.
    pub summary: &'static str,
    /// How a machine is recognised.
    pub detection: Detection,
    /// Whether its config comes from a metadata service, so that the network must be up before the first request.
    pub needs_network: bool,
    /// The media that may hold its config.
    pub media: &'static [Medium<'static>],
    /// Kernel modules to load before the config is read, if the kernel has them as modules.
    pub source_modules: &'static [&'static str],
    /// Kernel modules that the initramfs holds for its machines: storage, network, and what the media need. The kernel's
    /// names.
    pub drivers: &'static [&'static str],
    /// The controller of its disks, if `slipway run` can give QEMU's disk the same kind; else virtio.
    pub disks: Option<DiskController>,
    /// The machine's credentials for the provider's object storage.
    pub storage_identity: Identity,
    /// The keys of its metadata in the environment file.
    pub env_keys: EnvKeys,
    /// Reads a machine's config and metadata.
    pub obtain: fn(&Machine<'_>) -> Result<Found, Problem>,
    /// What the platform wants done when the first boot has ended, if it wants anything: a report to the vendor, a config
    /// deleted. [`Machine::patience`] limits its time.
    pub report: Option<Report>,
    /// The config that every boot can read again without waiting.
    pub local: Option<LocalConfig>,
}

/// Tells the platform how a machine's first boot ended. Gives what was done, for the console; none if nothing was to be done.
pub type Report = fn(&Machine<'_>, Outcome<'_>) -> Result<Option<String>, Problem>;

/// How a machine of a provider is recognised.
#[derive(Clone, Copy)]
pub enum Detection {
    /// By the command line only.
    CommandLine,
    /// By the firmware's fields.
    Firmware(fn(&Dmi) -> bool),
    /// By the firmware's fields; also a server of any vendor, which no provider recognises, if the image is not for metal, or
    /// if the server has one of the provider's media.
    FirmwareOrServer(fn(&Dmi) -> bool),
    /// By the firmware's fields, which machines of other providers may have too: those providers come first.
    Fallback(fn(&Dmi) -> bool),
}

/// A local config that the machine has at every boot, without network, medium or waiting.
#[derive(Clone, Copy)]
pub struct LocalConfig {
    /// Kernel modules that it needs, if the kernel has them as modules.
    pub modules: &'static [&'static str],
    /// Reads it, from sysfs or from the file of the platform `file`; none if it does not exist now.
    pub read: fn(&Path, &Path) -> Result<Option<UserConfig>, Problem>,
    /// Its name in messages, by the file of the platform `file`.
    pub name: fn(&Path) -> String,
}

/// A disk controller other than virtio-blk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskController {
    /// NVMe.
    Nvme,
    /// virtio-scsi.
    VirtioScsi,
}

impl Provider {
    /// Whether the firmware's fields are those of a machine of this provider.
    #[must_use]
    pub fn fits(&self, dmi: &Dmi) -> bool {
        match self.detection {
            Detection::CommandLine => false,
            Detection::Firmware(fits)
            | Detection::FirmwareOrServer(fits)
            | Detection::Fallback(fits) => fits(dmi),
        }
    }
}

/// Two providers are equal if their ids are: ids are unique.
impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Provider {}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.id)
    }
}

impl fmt::Debug for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommandLine => "CommandLine",
            Self::Firmware(_) => "Firmware",
            Self::FirmwareOrServer(_) => "FirmwareOrServer",
            Self::Fallback(_) => "Fallback",
        })
    }
}

impl fmt::Debug for LocalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalConfig").finish_non_exhaustive()
    }
}
