//! Writes a cpio archive in the "newc" format that the kernel unpacks an initramfs from.
//!
//! Format: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`. Equal entries give equal
//! bytes: inode numbers count up, times are zero, every owner is root.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;
/// Bytes of an entry's header.
const HEADER: usize = 110;
const MAGIC: &[u8] = b"070701";
/// What cpio itself reads at once, bytes.
const BLOCK: usize = 512;

/// An archive that grows in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder with mode 0755 and its missing parents.
    ///
    /// # Errors
    /// When the path is not absolute or too long.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        let path = relative(path)?;
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let folder = &path[..end];
            if !folder.is_empty() && self.directories.insert(folder.to_owned()) {
                self.entry(folder, DIRECTORY | 0o755, (0, 0), &[])?;
            }
        }
        Ok(())
    }

    /// Adds a regular file.
    ///
    /// # Errors
    /// When the path is not absolute or the content has 4 GiB or more.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.parents(path)?;
        self.entry(relative(path)?, FILE | mode, (0, 0), content)
    }

    /// Adds a regular file whose content begins on a multiple of `alignment` bytes of the archive, a power of two: zeros fill
    /// the space behind its name.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub fn aligned_file(
        &mut self,
        path: &str,
        mode: u32,
        content: &[u8],
        alignment: usize,
    ) -> Result<()> {
        self.parents(path)?;
        let mut name = relative(path)?.to_owned();
        // The name ends in a zero of its own.
        let end = self.bytes.len() + HEADER + name.len() + 1;
        let zeros = end.next_multiple_of(alignment) - end;
        name.extend(std::iter::repeat_n('\0', zeros));
        self.entry(&name, FILE | mode, (0, 0), content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// When the path is not absolute.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.parents(path)?;
        self.entry(relative(path)?, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device: the kernel opens `/dev/console` before any file system is mounted.
    ///
    /// # Errors
    /// When the path is not absolute.
    pub fn character(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> Result<()> {
        self.parents(path)?;
        self.entry(relative(path)?, CHARACTER | mode, (major, minor), &[])
    }

    /// Closes the archive; gives its bytes.
    ///
    /// # Errors
    /// Never in practice: the trailer's name is constant.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.inode = 0;
        self.header("TRAILER!!!", 0, 0, (0, 0), 0)?;
        Ok(self.bytes)
    }

    /// As [`Archive::finish`], with zeros up to a multiple of 512 bytes, cpio's block: programs that unpack an initramfs expect the next archive
    /// there.
    ///
    /// # Errors
    /// As [`Archive::finish`].
    pub fn finish_for_another(self) -> Result<Vec<u8>> {
        let mut bytes = self.finish()?;
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        Ok(bytes)
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((folder, _)) if !folder.is_empty() => self.directory(folder),
            _ => Ok(()),
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        self.inode += 1;
        self.header(name, self.inode, mode, device, content.len())?;
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn header(
        &mut self,
        name: &str,
        inode: u32,
        mode: u32,
        device: (u32, u32),
        size: usize,
    ) -> Result<()> {
        let size = u32::try_from(size)?;
        let length = u32::try_from(name.len() + 1)?;
        self.bytes.extend_from_slice(MAGIC);
        for field in [
            inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, length, 0,
        ] {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn relative(path: &str) -> Result<&str> {
    let inside = path.strip_prefix('/').unwrap_or_default();
    ensure!(
        !inside.is_empty()
            && inside
                .split('/')
                .all(|part| !matches!(part, "" | "." | "..")),
        "expected an absolute path without . and .. for the initramfs, found {path:?}"
    );
    Ok(inside)
}

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Path inside the archive, without a leading slash.
    pub name: &'a str,
    /// Type and permission bits.
    pub mode: u32,
    /// The file's bytes.
    pub content: &'a [u8],
}

/// Reads an uncompressed archive, and those that follow it, as the kernel does: zeros may stand between them.
///
/// # Errors
/// When the bytes are not newc archives, or end early.
pub fn read(mut bytes: &[u8]) -> Result<Vec<Entry<'_>>> {
    let mut all = Vec::new();
    loop {
        let (entries, end) = read_to_end(bytes)?;
        all.extend(entries);
        let rest = bytes.get(end..).unwrap_or_default();
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        bytes = &rest[zeros..];
        if bytes.is_empty() {
            return Ok(all);
        }
    }
}

/// What follows an uncompressed archive at the begin of an initramfs, and the zeros behind it; everything if there is none.
///
/// # Errors
/// When the archive ends early.
pub fn behind(bytes: &[u8]) -> Result<&[u8]> {
    if !bytes.starts_with(MAGIC) {
        return Ok(bytes);
    }
    let rest = &bytes[read_to_end(bytes)?.1..];
    let zeros = rest.iter().take_while(|byte| **byte == 0).count();
    Ok(&rest[zeros..])
}

/// The entries of an archive, and where it ends.
fn read_to_end(bytes: &[u8]) -> Result<(Vec<Entry<'_>>, usize)> {
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let header = bytes.get(at..at + HEADER).unwrap_or_default();
        ensure!(
            header.starts_with(MAGIC),
            "no cpio entry in the newc format at byte {at}"
        );
        let field = |index: usize| -> Result<usize> {
            let text = std::str::from_utf8(&header[6 + 8 * index..14 + 8 * index])?;
            Ok(usize::from_str_radix(text, 16)?)
        };
        let name_end = at + HEADER + field(11)?;
        let start = name_end.next_multiple_of(4);
        let end = start + field(6)?;
        ensure!(end <= bytes.len(), "the cpio archive ends inside an entry");
        let name = std::str::from_utf8(&bytes[at + HEADER..name_end])?.trim_end_matches('\0');
        if name == "TRAILER!!!" {
            return Ok((out, end));
        }
        out.push(Entry {
            name,
            mode: u32::try_from(field(1)?)?,
            content: &bytes[start..end],
        });
        at = end.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_once_and_before_what_they_hold() {
        let mut archive = Archive::new();
        archive
            .file("/etc/slipway/manifest.json", 0o644, b"{}")
            .unwrap();
        archive
            .file("/etc/slipway/base.ign", 0o600, b"abc")
            .unwrap();
        archive.link("/bin", "usr/bin").unwrap();
        archive.character("/dev/console", 0o600, 5, 1).unwrap();
        let bytes = archive.finish().unwrap();
        assert!(bytes.len().is_multiple_of(4));
        let entries = read(&bytes).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        assert_eq!(
            names,
            [
                "etc",
                "etc/slipway",
                "etc/slipway/manifest.json",
                "etc/slipway/base.ign",
                "bin",
                "dev",
                "dev/console"
            ]
        );
        assert_eq!(entries[3].content, b"abc");
        assert_eq!(entries[3].mode, 0o100_600);
        assert_eq!(entries[4].content, b"usr/bin");
    }

    #[test]
    fn paths_outside_the_archive_are_refused() {
        for path in ["", "/", "a", "/a/../b", "/a//b", "/./a"] {
            assert!(Archive::new().file(path, 0o644, b"").is_err(), "{path:?}");
        }
    }

    #[test]
    fn archives_that_follow_each_other_are_read_as_one() {
        let archive = |name: &str| {
            let mut archive = Archive::new();
            archive.file(name, 0o644, b"x").unwrap();
            archive
        };
        let mut both = archive("/a").finish_for_another().unwrap();
        assert_eq!(both.len(), BLOCK);
        both.extend(archive("/b").finish().unwrap());
        let entries = read(&both).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(read(&both[..both.len() - 20]).is_err());
    }

    #[test]
    fn truncated_archives_are_refused() {
        let mut archive = Archive::new();
        archive.file("/a", 0o644, b"0123456789").unwrap();
        let bytes = archive.finish().unwrap();
        for end in [0, 50, 115, bytes.len() - 20] {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
    }
}
