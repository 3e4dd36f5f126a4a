//! The partition table: label, type, and default size of each partition, and where its GUID comes from.
//!
//! Types follow the Discoverable Partitions Specification (UAPI.2,
//! <https://uapi-group.org/specifications/specs/discoverable_partitions_specification/>).

use crate::guid::Guid;
use crate::verity::RootHash;

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;

/// How often the boot loader tries an image before it prefers another: the first value of the counter in the UKI's name.
pub const BOOT_TRIES: u32 = 3;
/// Partitions begin on multiples of this, in bytes: the alignment of every common partitioning tool.
pub const ALIGNMENT: u64 = MIB;

/// The EFI system partition's type.
pub const TYPE_ESP: Guid = Guid::constant("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
/// Root file system for x86-64.
pub const TYPE_ROOT_X86_64: Guid = Guid::constant("4f68bce3-e8cd-4db1-96e7-fbcaf984b709");
/// Verity hash tree of the root file system for x86-64.
pub const TYPE_ROOT_VERITY_X86_64: Guid = Guid::constant("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5");
/// Root file system for arm64.
pub const TYPE_ROOT_ARM64: Guid = Guid::constant("b921b045-1df0-41c3-af44-4c6f280d3fae");
/// Verity hash tree of the root file system for arm64.
pub const TYPE_ROOT_VERITY_ARM64: Guid = Guid::constant("df3300ce-d69f-4c92-978c-9bfb0f38d820");
/// Variable data. Slipway mounts it itself, so the no-auto attribute is set.
pub const TYPE_VAR: Guid = Guid::constant("4d21b016-b534-45c2-a9fb-5c16e091fd2d");
/// Generic Linux data: `state` and `etcd`, which must not be mounted automatically.
pub const TYPE_LINUX: Guid = Guid::constant("0fc63daf-8483-4772-8e79-3d69d8477de4");

/// GPT attribute bit: do not mount automatically.
pub const ATTRIBUTE_NO_AUTO: u64 = 1 << 63;
/// GPT attribute bit of `state` and `var`: the file system is not complete yet. It is set when the partition is made and
/// cleared when mkfs has ended, so that after a power cut a file system that is half made is known from a damaged one. Bits
/// 48 to 63 mean what the partition's type says; the Discoverable Partitions Specification uses 59, 60 and 63 of them.
pub const ATTRIBUTE_UNFORMATTED: u64 = 1 << 56;
/// GPT attribute bit: read-only.
pub const ATTRIBUTE_READ_ONLY: u64 = 1 << 60;

/// The name in `/dev/disk/by-id` of the disk that the root is on, as Fedora CoreOS calls it; its partitions have `-part` and
/// their number behind.
pub const BOOT_DISK: &str = "coreos-boot-disk";

/// Label of the EFI system partition.
pub const LABEL_ESP: &str = "ESP";
/// Label of the first slot's root.
pub const LABEL_ROOT_A: &str = "root-a";
/// Label of the first slot's hash tree.
pub const LABEL_VERITY_A: &str = "verity-a";
/// Label of the second slot's root: made on first boot, empty until the first update.
pub const LABEL_ROOT_B: &str = "root-b";
/// Label of the second slot's hash tree.
pub const LABEL_VERITY_B: &str = "verity-b";
/// Label of the partition and file system that hold the node's own state.
pub const LABEL_STATE: &str = "state";
/// Label of the partition and file system that hold everything a node accumulates.
pub const LABEL_VAR: &str = "var";
/// Label of the etcd disk's file system or partition unless the settings name another.
pub const LABEL_ETCD: &str = "etcd";

/// Machine architectures an image can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// 64-bit x86, Debian's `amd64`.
    #[serde(rename = "x86-64")]
    X86_64,
    /// 64-bit ARM, Debian's `arm64`.
    Arm64,
}

impl Architecture {
    /// Type GUID of this architecture's root partition.
    #[must_use]
    pub const fn root_type(self) -> Guid {
        match self {
            Self::X86_64 => TYPE_ROOT_X86_64,
            Self::Arm64 => TYPE_ROOT_ARM64,
        }
    }

    /// Type GUID of this architecture's verity partition.
    #[must_use]
    pub const fn verity_type(self) -> Guid {
        match self {
            Self::X86_64 => TYPE_ROOT_VERITY_X86_64,
            Self::Arm64 => TYPE_ROOT_VERITY_ARM64,
        }
    }

    /// Debian's name of the architecture.
    #[must_use]
    pub const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// The logical sectors of the disks that an image is for. A partition table counts in them, and the FAT of the ESP cannot have
/// smaller ones than its disk, so an image starts on disks of one kind only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum SectorSize {
    /// 512 bytes: nearly every disk, those that emulate it over 4096 included.
    #[default]
    #[serde(rename = "512")]
    B512,
    /// 4096 bytes: "4K native" disks.
    #[serde(rename = "4096")]
    B4096,
}

impl SectorSize {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::B512, Self::B4096];

    /// Bytes of a sector.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// The kind with sectors of this many bytes, if there is one.
    #[must_use]
    pub fn of(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.bytes() == bytes)
    }
}

/// Sizes of the partitions in bytes. `var` takes the remaining space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sizes {
    /// EFI system partition: two UKIs, and room for a third while the oldest is still there.
    pub esp: u64,
    /// Each root slot.
    pub root: u64,
    /// Each hash tree slot: a tree takes 0.8 % of its root.
    pub verity: u64,
    /// Node state.
    pub state: u64,
    /// The minimum that must remain for `var`.
    pub var_minimum: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            esp: 512 * MIB,
            root: 2 * GIB,
            verity: 32 * MIB,
            state: 256 * MIB,
            var_minimum: 4 * GIB,
        }
    }
}

impl Sizes {
    /// Bytes of the smallest disk on which a first boot finds room for every partition, both copies of the table included.
    #[must_use]
    pub fn least_disk(&self) -> u64 {
        let partitions = [
            self.esp,
            self.root,
            self.verity,
            self.root,
            self.verity,
            self.state,
            self.var_minimum,
        ];
        let aligned = partitions.map(|size| size.next_multiple_of(ALIGNMENT));
        aligned.iter().sum::<u64>() + 2 * ALIGNMENT
    }
}

/// GUID of the root partition that belongs to a root hash: its first 16 bytes, in the order of the text.
#[must_use]
pub fn root_guid(hash: &RootHash) -> Guid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.0[..16]);
    Guid(bytes)
}

/// GUID of the verity partition that belongs to a root hash: its last 16 bytes.
#[must_use]
pub fn verity_guid(hash: &RootHash) -> Guid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.0[16..]);
    Guid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_disk_holds_both_slots_and_both_tables() {
        let mib = Sizes::default().least_disk() / MIB;
        assert_eq!(mib, 1 + 512 + 2 * (2048 + 32) + 256 + 4096 + 1);
    }

    #[test]
    fn a_sector_size_is_known_by_its_bytes() {
        for kind in SectorSize::ALL {
            assert_eq!(SectorSize::of(kind.bytes()), Some(kind));
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(name, kind.bytes().to_string());
        }
        assert_eq!(SectorSize::of(520), None);
    }

    #[test]
    fn guids_of_a_root_hash_match_systemd_repart() {
        let hash: RootHash = "13747c8a6cf00fcb4e5b5d6422c02611e35b750995bc777800c6d6624b0cbdea"
            .parse()
            .unwrap();
        assert_eq!(
            root_guid(&hash).to_string(),
            "13747c8a-6cf0-0fcb-4e5b-5d6422c02611"
        );
        assert_eq!(
            verity_guid(&hash).to_string(),
            "e35b7509-95bc-7778-00c6-d6624b0cbdea"
        );
    }
}
