//! Device mapper by ioctl: creates a mapped device, replaces its table, removes it.
//!
//! Interface: `include/uapi/linux/dm-ioctl.h`. The header is built as bytes, so that the only unsafe part is the call
//! itself.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use crate::world::World;

/// Bytes in the unit of a table's lines, whatever the disks' own sectors are.
const SECTOR: u64 = 512;
/// Bytes of `struct dm_ioctl`.
const HEADER: usize = 312;
/// Bytes of `struct dm_target_spec`.
const SPEC: usize = 40;
/// Room for a table of one line.
const SIZE: usize = 4096;

const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const SUSPEND: u8 = 6;
const LOAD: u8 = 9;

const READ_ONLY: u32 = 1 << 0;
const SUSPENDED: u32 = 1 << 1;
/// A read-only file system needs no freeze.
const SKIP_LOCKFS: u32 = 1 << 10;

/// A mapped device.
#[derive(Debug)]
pub struct Mapped {
    control: File,
    name: String,
    /// `major:minor`
    pub number: String,
}

/// One line of a table that covers the whole device.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Target type, as `verity`.
    pub target: &'a str,
    /// Parameters as text.
    pub parameters: String,
}

impl Mapped {
    /// Makes the read-only device `/dev/mapper/<name>` (a `dm-N` node in devtmpfs) with one line and starts it.
    ///
    /// # Errors
    /// If the kernel refuses; its own log has the reason.
    pub fn create(world: &World, name: &str, uuid: &str, line: &Line<'_>) -> Result<Self> {
        let path = world.dev.join("mapper/control");
        let control = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let mut mapped = Self {
            control,
            name: name.to_owned(),
            number: String::new(),
        };
        let mut request = mapped.request(0)?;
        text(&mut request[176..305], uuid)?;
        mapped
            .call(CREATE, &mut request)
            .context("making the device")?;
        mapped.number = number(long(&request, 40));
        let started = mapped.load(line).and_then(|()| mapped.resume());
        if let Err(error) = started {
            mapped.remove().unwrap_or_default();
            return Err(error);
        }
        Ok(mapped)
    }

    /// Replaces the running table.
    ///
    /// # Errors
    /// If the kernel refuses; the old table then stays.
    pub fn exchange(&self, line: &Line<'_>) -> Result<()> {
        self.load(line)?;
        self.call(SUSPEND, &mut self.request(SUSPENDED | SKIP_LOCKFS)?)
            .context("suspending the device")?;
        self.resume()
    }

    /// Removes the device.
    ///
    /// # Errors
    /// If it is in use.
    pub fn remove(&self) -> Result<()> {
        self.call(REMOVE, &mut self.request(0)?)
            .context("removing the device")
    }

    fn resume(&self) -> Result<()> {
        self.call(SUSPEND, &mut self.request(0)?)
            .context("starting the device")
    }

    fn load(&self, line: &Line<'_>) -> Result<()> {
        let mut request = self.request(READ_ONLY)?;
        request[20..24].copy_from_slice(&1u32.to_ne_bytes());
        let spec = &mut request[HEADER..];
        spec[8..16].copy_from_slice(&line.sectors.to_ne_bytes());
        text(&mut spec[24..40], line.target)?;
        text(&mut spec[SPEC..], &line.parameters)?;
        self.call(LOAD, &mut request)
            .with_context(|| format!("loading the table {:?}", line.parameters))
    }

    fn request(&self, flags: u32) -> Result<Vec<u8>> {
        let mut request = vec![0; SIZE];
        for (at, word) in [
            (0, 4),
            (12, u32::try_from(SIZE)?),
            (16, u32::try_from(HEADER)?),
            (28, flags),
        ] {
            request[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        text(&mut request[48..176], &self.name)?;
        Ok(request)
    }

    fn call(&self, command: u8, request: &mut [u8]) -> Result<()> {
        let code = nix::request_code_readwrite!(0xfd, command, HEADER);
        // SAFETY: the descriptor is open; the kernel reads and writes at most `data_size` bytes behind the
        // pointer, which `request` sets to SIZE, the length of this buffer.
        let done =
            unsafe { nix::libc::ioctl(self.control.as_raw_fd(), code, request.as_mut_ptr()) };
        nix::errno::Errno::result(done)?;
        Ok(())
    }
}

/// The line of a verity device over `bytes` of data.
pub const fn verity_line(bytes: u64, parameters: String) -> Line<'static> {
    Line {
        sectors: bytes / SECTOR,
        target: "verity",
        parameters,
    }
}

/// Puts `value` and its final NUL into `field`.
fn text(field: &mut [u8], value: &str) -> Result<()> {
    ensure!(
        value.len() < field.len(),
        "{value:?} is longer than device mapper's {} bytes",
        field.len() - 1
    );
    field[..value.len()].copy_from_slice(value.as_bytes());
    Ok(())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(out)
}

/// The kernel's `huge_encode_dev` as `major:minor`.
fn number(device: u64) -> String {
    let major = device >> 8 & 0xfff;
    let minor = device & 0xff | device >> 12 & 0xfff_ff00;
    format!("{major}:{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_decoded_as_the_kernel_encodes_them() {
        // new_encode_dev: (minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)
        assert_eq!(number(254 << 8), "254:0");
        assert_eq!(number(3 | 254 << 8), "254:3");
        assert_eq!(number(0x05 | 253 << 8 | 0x1 << 20), "253:261");
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused() {
        assert!(text(&mut [0; 4], "abcd").is_err());
        let mut field = [0; 4];
        text(&mut field, "abc").unwrap();
        assert_eq!(&field, b"abc\0");
    }
}
