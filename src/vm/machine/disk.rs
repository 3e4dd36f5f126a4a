//! A disk of a machine: its file, its controller, and QEMU's arguments for both.

use std::path::PathBuf;

use anyhow::{Result, bail};
use image::layout::SectorSize;

use super::line::{Line, escape};

/// Name of QEMU's block node that all parts of a file share.
pub(super) const SHARED: &str = "shared";
/// Maximum length of a serial number on virtio-blk; NVMe and SCSI allow at least as many characters.
pub const SERIAL_LENGTH: usize = 20;

/// The controller of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bus {
    /// virtio-blk.
    #[default]
    Virtio,
    /// NVMe, as on AWS.
    Nvme,
    /// A disk on a virtio-scsi controller, as on GCE.
    Scsi,
    /// SATA (AHCI), as in rack servers.
    Sata,
    /// A CD-ROM drive on SATA, as config drives are attached: read-only, whatever the disk says.
    CdRom,
}

impl std::str::FromStr for Bus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "virtio" => Ok(Self::Virtio),
            "nvme" => Ok(Self::Nvme),
            "scsi" => Ok(Self::Scsi),
            "sata" => Ok(Self::Sata),
            _ => Err(format!(
                "{text:?} is not a disk bus; expected virtio, nvme, scsi or sata"
            )),
        }
    }
}

/// Format of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Bytes as the guest sees them.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
    /// A range of raw bytes of a file. All parts of a machine are in one file; their writes can be recorded
    /// ([`super::Machine::record`]).
    Part {
        /// First byte.
        at: u64,
        /// Bytes.
        size: u64,
    },
}

impl Format {
    fn driver(self) -> &'static str {
        match self {
            Self::Raw | Self::Part { .. } => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The file. A qcow2 overlay and its backing file must be in folders named in [`super::Machine::folders`].
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Its controller.
    pub bus: Bus,
    /// Its serial number in the guest, at most [`SERIAL_LENGTH`] characters.
    pub serial: String,
    /// Its logical and physical sectors.
    pub sector: SectorSize,
    /// Whether the machine cannot write to it.
    pub read_only: bool,
}

impl Disk {
    /// The properties of its device for other sectors than QEMU's own, of 512 bytes.
    fn sectors(&self) -> Result<String> {
        let bytes = self.sector.bytes();
        match (self.sector, self.bus) {
            (SectorSize::B512, _) => Ok(String::new()),
            (SectorSize::B4096, Bus::Sata | Bus::CdRom) => bail!(
                "QEMU's SATA disks have sectors of 512 bytes, and the disk {} is for {bytes}: choose virtio, nvme or scsi",
                self.path.display()
            ),
            (SectorSize::B4096, _) => Ok(format!(
                ",logical_block_size={bytes},physical_block_size={bytes}"
            )),
        }
    }

    /// `names` are further properties of its device, `fault` the rules by which it fails.
    pub(super) fn write(
        &self,
        number: usize,
        names: Option<&String>,
        fault: Option<&PathBuf>,
        line: &mut Line,
    ) -> Result<()> {
        if self.serial.chars().count() > SERIAL_LENGTH {
            bail!(
                "the disk serial {:?} is too long: expected at most {SERIAL_LENGTH} characters",
                self.serial
            );
        }
        let serial = escape(&self.serial);
        let mut sharing = String::new();
        let (mut below, range) = match self.format {
            Format::Part { at, size } => {
                // The parts are disjoint, but QEMU cannot know it.
                sharing += ",share-rw=on";
                (SHARED.to_owned(), format!(",offset={at},size={size}"))
            }
            Format::Raw | Format::Qcow2 => {
                let path = escape(&line.inside(&self.path)?);
                // Flushes reach the page cache only: these disks must survive the death of QEMU, not that of the
                // host.
                line.arg(
                    "-blockdev",
                    format!(
                        "driver=file,node-name=file{number},filename={path},discard=unmap,cache.no-flush=on"
                    ),
                );
                (format!("file{number}"), ",cache.no-flush=on".to_owned())
            }
        };
        // A node without flushes passes none to the rules below it.
        let mut options = range;
        if self.read_only || self.bus == Bus::CdRom {
            options.push_str(",read-only=on");
        }
        if let Some(rules) = fault {
            let rules = escape(&line.inside(rules)?);
            line.arg(
                "-blockdev",
                format!("driver=blkdebug,node-name=fault{number},image={below},config={rules},discard=unmap"),
            );
            below = format!("fault{number}");
            options = options.replace(",cache.no-flush=on", "");
            sharing += ",rerror=report,werror=report";
        }
        line.arg(
            "-blockdev",
            format!(
                "driver={},node-name=disk{number},file={below}{options},discard=unmap",
                self.format.driver()
            ),
        );
        let mut names = names.map_or_else(String::new, |names| format!(",{names}"));
        names.push_str(&self.sectors()?);
        let boot = format!("bootindex={}{sharing}{names}", number + 1);
        let common = format!("drive=disk{number},serial={serial},{boot}");
        match self.bus {
            Bus::Virtio => line.arg("-device", format!("virtio-blk-pci,{common}")),
            Bus::Nvme if names.is_empty() => line.arg("-device", format!("nvme,{common}")),
            Bus::Nvme => {
                line.arg("-device", format!("nvme,id=nvme{number},serial={serial}"));
                let namespace = format!("nvme-ns,bus=nvme{number},drive=disk{number},{boot}");
                line.arg("-device", namespace);
            }
            Bus::Scsi => {
                line.arg("-device", format!("virtio-scsi-pci,id=scsi{number}"));
                line.arg("-device", format!("scsi-hd,bus=scsi{number}.0,{common}"));
            }
            // The chipset's built-in controller, which has six ports.
            Bus::Sata => line.arg("-device", format!("ide-hd,bus=ide.{number},{common}")),
            Bus::CdRom => line.arg("-device", format!("ide-cd,bus=ide.{number},{common}")),
        }
        Ok(())
    }
}
