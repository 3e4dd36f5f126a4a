//! The ioctls of block devices, file systems and terminals.
//!
//! Interfaces: `include/uapi/linux/blkpg.h`, `linux/fs.h`, `linux/loop.h`, `linux/ext4.h`; ioctl_tty(2).

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::libc::{c_int, c_longlong, c_void};

const BLKPG: u64 = 0x1269;
const BLKPG_ADD_PARTITION: c_int = 1;
const BLKPG_DEL_PARTITION: c_int = 2;
const BLKPG_RESIZE_PARTITION: c_int = 3;

#[repr(C)]
struct BlkpgArgument {
    operation: c_int,
    flags: c_int,
    length: c_int,
    data: *mut c_void,
}

#[repr(C)]
struct BlkpgPartition {
    start: c_longlong,
    length: c_longlong,
    number: c_int,
    device: [u8; 64],
    volume: [u8; 64],
}

/// Adds a partition to the kernel's view of a disk in use; `start` and `size` in bytes.
///
/// # Errors
/// If the kernel refuses, as for an overlap.
pub fn add_partition(disk: &File, number: u32, start: u64, size: u64) -> Result<()> {
    blkpg(disk, BLKPG_ADD_PARTITION, number, start, size)
        .with_context(|| format!("adding partition {number} to the kernel's view of the disk"))
}

/// Attempts at a partition that another process has open, 20 ms apart: a prober such as udev holds it for milliseconds.
const PROBED: u32 = 100;

/// Removes a partition from the kernel's view of a disk. While another process has it open, this is retried for two
/// seconds.
///
/// # Errors
/// If the kernel refuses, as for a partition in use.
pub fn delete_partition(disk: &File, number: u32) -> Result<()> {
    let busy = |error: &anyhow::Error| error.downcast_ref() == Some(&nix::errno::Errno::EBUSY);
    let mut done = blkpg(disk, BLKPG_DEL_PARTITION, number, 0, 0);
    for _ in 1..PROBED {
        if !done.as_ref().is_err_and(busy) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        done = blkpg(disk, BLKPG_DEL_PARTITION, number, 0, 0);
    }
    done.with_context(|| format!("removing partition {number} from the kernel's view of the disk"))
}

/// Grows a partition in the kernel's view of a disk in use; `start` and `size` in bytes.
///
/// # Errors
/// If the kernel refuses.
pub fn resize_partition(disk: &File, number: u32, start: u64, size: u64) -> Result<()> {
    blkpg(disk, BLKPG_RESIZE_PARTITION, number, start, size)
        .with_context(|| format!("growing partition {number} in the kernel's view of the disk"))
}

fn blkpg(disk: &File, operation: c_int, number: u32, start: u64, size: u64) -> Result<()> {
    let mut partition = BlkpgPartition {
        start: i64::try_from(start)?,
        length: i64::try_from(size)?,
        number: c_int::try_from(number)?,
        device: [0; 64],
        volume: [0; 64],
    };
    let mut argument = BlkpgArgument {
        operation,
        flags: 0,
        length: c_int::try_from(size_of::<BlkpgPartition>())?,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: both structures have the kernel's layout and live until the call returns.
    let done = unsafe { nix::libc::ioctl(disk.as_raw_fd(), BLKPG, &raw mut argument) };
    nix::errno::Errno::result(done)?;
    Ok(())
}

nix::ioctl_none_bad!(
    /// `BLKFLSBUF` (`include/uapi/linux/fs.h`).
    flush_buffers,
    0x1261
);

/// Drops what the kernel keeps of a device's content, after it is written. A disk and each of its partitions have a cache of
/// their own, and that of a partition stays as long as somebody has it open.
///
/// # Errors
/// If the kernel refuses, as without the privilege for it.
pub fn drop_cache(device: &File) -> Result<()> {
    // SAFETY: the descriptor is open, and the call takes no argument.
    unsafe { flush_buffers(device.as_raw_fd()) }
        .context("dropping the kernel's cache of the device")?;
    Ok(())
}

nix::ioctl_write_ptr!(
    /// `EXT4_IOC_RESIZE_FS` (`include/uapi/linux/ext4.h`): the new number of blocks.
    ext4_resize, b'f', 16, u64);

/// Grows a mounted ext4 file system to `blocks` of its blocks. `folder` is any open folder of it.
///
/// # Errors
/// If the kernel refuses.
pub fn grow_ext4(folder: &File, blocks: u64) -> Result<()> {
    // SAFETY: the descriptor is open and the pointer is to a live u64, as EXT4_IOC_RESIZE_FS wants.
    unsafe { ext4_resize(folder.as_raw_fd(), &raw const blocks) }
        .with_context(|| format!("growing the file system to {blocks} blocks"))?;
    Ok(())
}

nix::ioctl_read_bad!(
    /// `TIOCGWINSZ` (ioctl_tty(2)).
    window_size,
    nix::libc::TIOCGWINSZ,
    nix::libc::winsize
);

/// Rows and columns of a terminal; none if it does not know them, as a serial line, or is no terminal.
pub fn window(terminal: &File) -> Option<(u16, u16)> {
    let mut size = nix::libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the descriptor is open and the pointer is to a live structure of the kernel's form.
    unsafe { window_size(terminal.as_raw_fd(), &raw mut size) }.ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

nix::ioctl_read!(
    /// `FS_IOC_GETFLAGS` (ioctl_iflags(2)), which is declared with a long and takes an int.
    get_inode_flags, b'f', 1, nix::libc::c_long);
nix::ioctl_write_ptr!(
    /// `FS_IOC_SETFLAGS`, likewise.
    set_inode_flags, b'f', 2, nix::libc::c_long);

const FS_IMMUTABLE_FL: nix::libc::c_long = 0x10;
const FS_APPEND_FL: nix::libc::c_long = 0x20;

/// Whether a file or folder is immutable or may only be appended to (`chattr +i`, `+a`), so that not even root replaces or removes it.
/// No file is on a file system without such flags.
#[must_use]
pub fn is_fixed(file: &File) -> bool {
    let mut flags = 0;
    // SAFETY: the descriptor is open and the pointer is to a live long, of which the kernel writes an int.
    let got = unsafe { get_inode_flags(file.as_raw_fd(), &raw mut flags) };
    got.is_ok() && flags & (FS_IMMUTABLE_FL | FS_APPEND_FL) != 0
}

/// Makes a file or folder immutable, or lets it be changed again, without any other flag.
///
/// # Errors
/// If the kernel refuses, as without the privilege for it, or on a file system without such flags.
pub fn set_immutable(file: &File, immutable: bool) -> Result<()> {
    let flags = if immutable { FS_IMMUTABLE_FL } else { 0 };
    // SAFETY: the descriptor is open and the pointer is to a live long, of which the kernel reads an int.
    unsafe { set_inode_flags(file.as_raw_fd(), &raw const flags) }
        .context("setting the flags of a file")?;
    Ok(())
}

const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LO_FLAGS_READ_ONLY: u32 = 1;

/// `struct loop_config` with `struct loop_info64` inside it.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// The number of an unused loop device.
///
/// # Errors
/// If the kernel has none.
pub fn free_loop(control: &File) -> Result<u32> {
    // SAFETY: the call takes no argument.
    let number = unsafe { nix::libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    let number = nix::errno::Errno::result(number).context("finding a free loop device")?;
    Ok(u32::try_from(number)?)
}

/// Makes `size` bytes of `file` from `offset` on the read-only content of a loop device.
///
/// # Errors
/// If the kernel refuses.
pub fn attach_loop(device: &File, file: &File, offset: u64, size: u64) -> Result<()> {
    configure(device, file, (offset, size), 4096, LO_FLAGS_READ_ONLY)
}

/// Makes a file the content of a loop device with partitions. The kernel detaches it when the device is closed.
#[cfg(any(test, feature = "testing"))]
pub fn attach_loop_disk(device: &File, file: &File, sector: u32) -> Result<()> {
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    const LO_FLAGS_PARTSCAN: u32 = 8;
    configure(
        device,
        file,
        (0, 0),
        sector,
        LO_FLAGS_AUTOCLEAR | LO_FLAGS_PARTSCAN,
    )
}

fn configure(
    device: &File,
    file: &File,
    (offset, size): (u64, u64),
    block_size: u32,
    flags: u32,
) -> Result<()> {
    let mut config = LoopConfig {
        file: u32::try_from(file.as_raw_fd())?,
        block_size,
        device: 0,
        inode: 0,
        rdevice: 0,
        offset,
        size_limit: size,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the structure has the kernel's layout and lives until the call returns.
    let done = unsafe { nix::libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw mut config) };
    nix::errno::Errno::result(done).context("attaching the loop device")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernel_s_sizes() {
        assert_eq!(size_of::<BlkpgPartition>(), 152);
        assert_eq!(size_of::<BlkpgArgument>(), 24);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
