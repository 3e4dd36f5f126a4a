//! `/proc/self/mountinfo`, as `proc_pid_mountinfo(5)` describes it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::world::World;

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Unique id of the mount.
    pub id: u64,
    /// Id of the mount that this one is in.
    pub parent: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// Which folder of the file system is mounted; `/` unless it is a bind.
    pub root: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Options of the mount (not of the file system), comma-separated.
    pub options: String,
    /// `shared:N`, `master:N` and the like.
    pub propagation: Vec<String>,
    /// File system type.
    pub kind: String,
    /// The source that the mount call named.
    pub source: String,
    /// Options of the file system, comma-separated.
    pub super_options: String,
}

/// All mounts of this process, in the kernel's order: a later one with the same target hides the earlier.
///
/// # Errors
/// If mountinfo cannot be read or has an unknown form.
pub fn table(world: &World) -> Result<Vec<Mount>> {
    read(&world.proc.join("self/mountinfo"))
}

/// All mounts of another process, by its id.
///
/// # Errors
/// If its mountinfo cannot be read or has an unknown form.
pub fn table_of(world: &World, process: u32) -> Result<Vec<Mount>> {
    read(&world.proc.join(process.to_string()).join("mountinfo"))
}

fn read(path: &Path) -> Result<Vec<Mount>> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&String::from_utf8_lossy(&text))
}

/// Reads mountinfo text. An error quotes the line that does not parse.
fn parse(text: &str) -> Result<Vec<Mount>> {
    text.lines()
        .map(|line| one(line).with_context(|| format!("mountinfo line {line:?}")))
        .collect()
}

fn one(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let mut right = right.split(' ');
    Some(Mount {
        id: left.next()?.parse().ok()?,
        parent: left.next()?.parse().ok()?,
        device: left.next()?.to_owned(),
        root: unescape(left.next()?),
        target: unescape(left.next()?),
        options: left.next()?.to_owned(),
        propagation: left.map(str::to_owned).collect(),
        kind: right.next()?.to_owned(),
        source: unescape(right.next()?).to_string_lossy().into_owned(),
        super_options: right.next().unwrap_or_default().to_owned(),
    })
}

/// Undoes the kernel's `\040` for space, tab, newline and backslash.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| bytes.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.unwrap_or(bytes[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_and_escapes_are_read() {
        let text = "36 35 98:0 /mnt1 /mnt2/a\\040b rw,noatime master:1 shared:7 - ext4 /dev/root rw,errors=continue\n\
                    25 1 0:23 / / ro - erofs /dev/mapper/root ro\n";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].target, PathBuf::from("/mnt2/a b"));
        assert_eq!(mounts[0].propagation, ["master:1", "shared:7"]);
        assert_eq!(mounts[0].device, "98:0");
        assert_eq!(mounts[0].super_options, "rw,errors=continue");
        assert!(mounts[1].propagation.is_empty());
        assert_eq!(mounts[1].kind, "erofs");
    }

    #[test]
    fn a_line_of_another_form_is_quoted() {
        let error = parse("36 35 nonsense").unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    }

    #[test]
    fn damaged_tables_are_survived() {
        let good =
            "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";
        crate::fuzz::run(&[good.repeat(2).into_bytes()], |bytes, _| {
            parse(&String::from_utf8_lossy(bytes)).ok();
        });
    }
}
