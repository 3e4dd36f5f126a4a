//! Writes and reads the GUID partition table.
//!
//! Format: UEFI specification 2.10, chapter 5. No GUID is random: those of root and verity come from the root
//! hash, the others are an HMAC of a seed, as systemd-repart makes them, so equal input gives equal bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result, ensure};
use image::guid::Guid;
use image::layout::{ALIGNMENT, SectorSize};
use sha2::{Digest, Sha256};

use super::bios;

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1.
    pub number: u32,
    /// Its label.
    pub label: String,
    /// Its type GUID.
    pub kind: Guid,
    /// Its unique GUID.
    pub guid: Guid,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// GPT attribute bits.
    pub attributes: u64,
}

/// The table of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The disk's GUID.
    pub disk: Guid,
    /// The disk's logical sectors.
    pub sector: SectorSize,
    /// Partitions by number.
    pub partitions: Vec<Partition>,
}

/// What a table begins with, in the second sector of its disk.
const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of the entries of a table: 128 entries of 128 bytes.
const ENTRIES: u64 = 128 * 128;

impl Table {
    /// Bytes of the smallest disk that holds the partitions, a multiple of `whole`.
    #[must_use]
    pub fn disk_size(&self, whole: u64) -> u64 {
        let end = self
            .partitions
            .iter()
            .map(|partition| partition.offset + partition.size)
            .max()
            .unwrap_or(ALIGNMENT);
        // The second copy of the table: its entries, and a sector of header.
        let sector = self.sector.bytes();
        (end + ENTRIES.next_multiple_of(sector) + sector).next_multiple_of(whole)
    }

    /// Writes the table, its backup at the end, and the protective MBR. The file must have its final size.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &mut File) -> Result<()> {
        let sector = self.sector.bytes();
        let sectors = file.metadata()?.len() / sector;
        let protected = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
        let mut mbr = gpt::mbr::ProtectiveMBR::with_lb_size(protected);
        mbr.set_bootcode(bootcode());
        mbr.overwrite_lba0(file)
            .context("writing the protective MBR")?;
        let mut partitions = BTreeMap::new();
        for partition in &self.partitions {
            partitions.insert(
                partition.number,
                gpt::partition::Partition {
                    part_type_guid: gpt::partition_types::Type {
                        guid: partition.kind.to_string().parse()?,
                        os: gpt::partition_types::OperatingSystem::None,
                    },
                    part_guid: partition.guid.to_string().parse()?,
                    first_lba: partition.offset / sector,
                    last_lba: (partition.offset + partition.size) / sector - 1,
                    flags: partition.attributes,
                    name: partition.label.clone(),
                },
            );
        }
        let disk = Some(self.disk.to_string().parse()?);
        let mut table = gpt::GptConfig::new()
            .writable(true)
            .logical_block_size(block_size(self.sector))
            .create_from_device(&mut *file, disk)
            .context("making the partition table")?;
        table
            .update_partitions(partitions)
            .context("laying the partitions")?;
        table.write().context("writing the partition table")?;
        Ok(())
    }

    /// Reads the table at the start of a disk, with sectors of either size, and verifies its checksums.
    ///
    /// # Errors
    /// When there is no valid table.
    pub fn read<D: Read + Write + Seek + std::fmt::Debug>(device: &mut D) -> Result<Self> {
        let sector = sector_size(device)?.unwrap_or_default();
        device.seek(SeekFrom::Start(0))?;
        let table = gpt::GptConfig::new()
            .writable(false)
            .logical_block_size(block_size(sector))
            .open_from_device(device)
            .context("reading the partition table")?;
        let header = table
            .primary_header()
            .context("reading the partition table")?;
        let disk = header.disk_guid.to_string().parse();
        let mut partitions = Vec::new();
        for (number, partition) in table.partitions() {
            if !partition.is_used() {
                continue;
            }
            let guid = |text: String| text.parse::<Guid>().map_err(anyhow::Error::msg);
            let (first, last) = (partition.first_lba, partition.last_lba);
            ensure!(last >= first, "partition {number} ends before it begins");
            // So that the end of none is beyond what a number of bytes can say.
            ensure!(
                last < u64::MAX / sector.bytes(),
                "partition {number} ends at sector {last}, behind every disk"
            );
            partitions.push(Partition {
                number: *number,
                label: partition.name.clone(),
                kind: guid(partition.part_type_guid.guid.to_string())?,
                guid: guid(partition.part_guid.to_string())?,
                offset: first * sector.bytes(),
                size: (last - first + 1) * sector.bytes(),
                attributes: partition.flags,
            });
        }
        Ok(Self {
            disk: disk.map_err(anyhow::Error::msg)?,
            sector,
            partitions,
        })
    }
}

/// The logical sectors of the disk that the table at the start of `device` was written for; none without a table.
///
/// # Errors
/// When the device cannot be read.
pub fn sector_size<D: Read + Seek>(device: &mut D) -> io::Result<Option<SectorSize>> {
    for sector in SectorSize::ALL {
        let mut head = Vec::new();
        device.seek(SeekFrom::Start(sector.bytes()))?;
        (&mut *device)
            .take(SIGNATURE.len() as u64)
            .read_to_end(&mut head)?;
        if head == SIGNATURE {
            return Ok(Some(sector));
        }
    }
    Ok(None)
}

/// What a BIOS runs of the disk (UEFI specification 2.10, 5.2.3: firmware does not).
fn bootcode() -> [u8; 440] {
    let code = bios::code();
    std::array::from_fn(|at| code.get(at).copied().unwrap_or(0))
}

const fn block_size(sector: SectorSize) -> gpt::disk::LogicalBlockSize {
    match sector {
        SectorSize::B512 => gpt::disk::LogicalBlockSize::Lb512,
        SectorSize::B4096 => gpt::disk::LogicalBlockSize::Lb4096,
    }
}

/// The GUID for a seed and a subject: HMAC-SHA256, as systemd-repart's `--seed` makes it. The subject
/// is the bytes of a partition type in the order of its text, or `disk-uuid`.
#[must_use]
pub fn seeded(seed: &[u8], subject: &[u8]) -> Guid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hmac(seed, subject)[..16]);
    Guid::from_random(bytes)
}

/// HMAC-SHA256 (RFC 2104) for keys of at most 64 bytes.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let padded = |with: u8| -> [u8; 64] {
        std::array::from_fn(|at| key.get(at).copied().unwrap_or(0) ^ with)
    };
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(padded(0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use image::layout::{MIB, TYPE_ESP};

    #[test]
    fn seeded_guids_match_systemd_repart() {
        let seed: Guid = "11111111-2222-3333-4444-555555555555".parse().unwrap();
        assert_eq!(
            seeded(&seed.0, &TYPE_ESP.0).to_string(),
            "137c78ee-1d11-4547-ad3f-fa6b1a4ad97a"
        );
        assert_eq!(
            seeded(&seed.0, b"disk-uuid").to_string(),
            "029f4951-90d3-4059-b93b-d358015a0a3b"
        );
    }

    #[test]
    fn tables_round_trip_in_sectors_of_either_size() {
        for sector in SectorSize::ALL {
            round_trip(sector);
        }
        let mut none = tempfile::tempfile().unwrap();
        assert_eq!(sector_size(&mut none).unwrap(), None);
    }

    #[test]
    fn a_partition_behind_every_disk_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        let table = sample(SectorSize::B512);
        file.set_len(table.disk_size(MIB)).unwrap();
        table.write(&mut file).unwrap();
        let mut bytes = vec![0; 34 * 512];
        file.read_exact_at(&mut bytes, 0).unwrap();
        // The last sector of the first entry, the checksum of the entries, and that of the header without itself.
        bytes[1024 + 40..1024 + 48].fill(0xff);
        let entries = crc32(&bytes[1024..]).to_le_bytes();
        bytes[512 + 88..512 + 92].copy_from_slice(&entries);
        bytes[512 + 16..512 + 20].fill(0);
        let header = crc32(&bytes[512..512 + 92]).to_le_bytes();
        bytes[512 + 16..512 + 20].copy_from_slice(&header);
        file.write_all_at(&bytes, 0).unwrap();
        let error = Table::read(&mut file).unwrap_err().to_string();
        assert!(error.contains("behind every disk"), "{error}");
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum: u32, _| {
                sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
            })
        })
    }

    fn sample(sector: SectorSize) -> Table {
        Table {
            disk: seeded(b"seed", b"disk-uuid"),
            sector,
            partitions: vec![Partition {
                number: 1,
                label: "ESP".into(),
                kind: TYPE_ESP,
                guid: seeded(b"seed", &TYPE_ESP.0),
                offset: MIB,
                size: 64 * MIB,
                attributes: 1 << 60,
            }],
        }
    }

    fn round_trip(sector: SectorSize) {
        let table = sample(sector);
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(table.disk_size(MIB), 66 * MIB);
        file.set_len(table.disk_size(MIB)).unwrap();
        table.write(&mut file).unwrap();
        assert_eq!(sector_size(&mut file).unwrap(), Some(sector));
        assert_eq!(Table::read(&mut file).unwrap(), table);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let (size, long) = (usize::try_from(sector.bytes()).unwrap(), |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        });
        let last = 66 * MIB / sector.bytes() - 1;
        // The header's own sector and that of its copy, and the first partition's sectors; the copy is in the last sector.
        assert_eq!([long(size + 24), long(size + 32)], [1, last]);
        assert_eq!(&bytes[bytes.len() - size..][..8], SIGNATURE);
        let align = MIB / sector.bytes();
        let entries = size * usize::try_from(long(size + 72)).unwrap();
        let first = [long(entries + 32), long(entries + 40)];
        assert_eq!(first, [align, 65 * align - 1]);
        // The protective MBR covers the disk in its own sectors, is no partition to boot, and has code for a BIOS.
        assert_eq!(long(454) >> 32, last);
        assert_eq!((bytes[446], bytes[450]), (0, 0xee));
        assert!(bytes[..440].starts_with(&bios::code()));
        assert_eq!(bytes[510..512], [0x55, 0xaa]);
    }
}
