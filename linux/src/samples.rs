//! Superblocks, tables, variables of the boot loader and devices that hang, which tests use in place of real ones, here and in the
//! crates above.

#![allow(clippy::unwrap_used, reason = "test code may panic")]

use std::fs::{self, File};
use std::path::Path;

use image::guid::Guid;
use image::layout;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::filesystem::Kind;
use crate::gpt::{Entry, Table};
use crate::md;
use crate::world::World;

/// Makes a device node that hangs: whoever opens it waits until [`wake`].
///
/// # Panics
/// If there is a file of this name.
pub fn hanging(node: &Path) {
    mkfifo(node, Mode::S_IRWXU).unwrap();
}

/// Lets a hanging device answer as long as the result lives: it opens, and each read is an error.
///
/// # Panics
/// If there is no such device.
#[must_use]
pub fn wake(node: &Path) -> File {
    // Open for both ends it waits for nobody. A pipe has no places to read at.
    File::options().read(true).write(true).open(node).unwrap()
}

/// Sets a text variable of the boot loader interface, as efivarfs shows it: four bytes of attributes (`BOOTSERVICE_ACCESS` and
/// `RUNTIME_ACCESS`, UEFI specification, 8.2), then UTF-16 with a zero at its end (<https://systemd.io/BOOT_LOADER_INTERFACE/>).
///
/// # Panics
/// If the file cannot be written.
pub fn set_loader_variable(world: &World, name: &str, text: &str) {
    let efivars = world.sys.join("firmware/efi/efivars");
    fs::create_dir_all(&efivars).unwrap();
    let mut bytes = vec![6, 0, 0, 0];
    bytes.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
    let name = format!("{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f");
    fs::write(efivars.join(name), bytes).unwrap();
}

/// A table with an ESP and a root on a disk of `size` bytes.
#[must_use]
pub fn table(sector: u64, size: u64) -> Table {
    let mut table = Table::empty(sector, size, Guid([3; 16])).unwrap();
    table.sound = true;
    let align = layout::ALIGNMENT / sector;
    for (number, label) in [(1, layout::LABEL_ESP), (3, layout::LABEL_ROOT_A)] {
        let entry = Entry {
            type_guid: layout::TYPE_ESP,
            guid: Guid([number; 16]),
            first: u64::from(number) * align,
            last: u64::from(number + 1) * align - 1,
            attributes: layout::ATTRIBUTE_NO_AUTO,
            label: label.to_owned(),
        };
        table.entries.insert(u32::from(number), entry);
    }
    table
}

/// A superblock of each kind, as (offset, bytes), labelled `data`.
#[must_use]
pub fn filesystem(kind: Kind) -> Vec<(u64, Vec<u8>)> {
    let put = |pieces: &[(u64, &[u8])]| pieces.iter().map(|(at, b)| (*at, b.to_vec())).collect();
    let uuid = &[0xab; 16];
    match kind {
        Kind::Ext3 => put(&[(1080, b"\x53\xef"), (1128, uuid), (1144, b"data")]),
        Kind::Ext4 => put(&[
            (1080, b"\x53\xef"),
            (1120, &[0x40]),
            (1128, uuid),
            (1144, b"data"),
        ]),
        Kind::Xfs => put(&[(0, b"XFSB"), (32, uuid), (108, b"data")]),
        Kind::Btrfs => put(&[
            (0x1_0040, b"_BHRfS_M"),
            (0x1_0020, uuid),
            (0x1_012b, b"data"),
        ]),
        Kind::Vfat => put(&[
            (82, b"FAT32   "),
            (510, b"\x55\xaa"),
            (67, &[0xd4, 0xc3, 0xb2, 0xa1]),
            (71, b"data       "),
        ]),
        Kind::Swap => put(&[(4086, b"SWAPSPACE2"), (1036, uuid), (1052, b"data")]),
        Kind::Luks1 => put(&[(0, b"LUKS\xba\xbe\0\x01"), (168, b"ABAB")]),
        Kind::Luks2 => put(&[(0, b"LUKS\xba\xbe\0\x02"), (24, b"data"), (168, b"abab")]),
    }
}

/// The start of an ISO 9660 file system with this label of at most 32 bytes: its primary volume descriptor (ECMA-119, 8.4).
#[must_use]
pub fn iso(label: &str) -> Vec<u8> {
    const DESCRIPTOR: usize = 16 * 2048;
    let mut out = vec![0; DESCRIPTOR + 4 * 2048];
    let mut put =
        |at: usize, bytes: &[u8]| out[DESCRIPTOR + at..][..bytes.len()].copy_from_slice(bytes);
    put(0, b"\x01CD001");
    put(40, &[b' '; 32]);
    put(40, label.as_bytes());
    out
}

/// A superblock for byte `at` of a member, of the array with this UUID, name, level and number of members.
#[must_use]
pub fn member(at: u64, array: u8, name: &str, level: i32, disks: u32) -> Vec<u8> {
    let mut out = vec![0; md::FIXED + 3 * 2];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &md::MAGIC.to_le_bytes());
    put(4, &[1]);
    put(16, &[array; 16]);
    put(32, name.as_bytes());
    put(72, &level.to_le_bytes());
    put(92, &disks.to_le_bytes());
    put(144, &(at / md::SECTOR).to_le_bytes());
    put(220, &[3]);
    put(260, b"\x01\xff");
    let sum = md::checksum(&out);
    out[216..220].copy_from_slice(&sum.to_le_bytes());
    out
}
