//! What a device holds: known signatures, file systems with label and UUID, data of no known kind, or provably nothing.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use linux::filesystem::{self, Found};
use linux::probe::{self, Content, Stretch};

/// What a device, or a stretch of it, holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The names of all known signatures.
    pub names: Vec<&'static str>,
    /// The file systems, swap spaces and volumes among them.
    pub found: Vec<Found>,
    /// Where the first byte of data of no known kind was seen, if there is no signature.
    pub unknown: Option<u64>,
}

impl Held {
    /// Reads a stretch.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(stretch: Stretch<'_>) -> Result<Self> {
        let (names, unknown) = match probe::probe(stretch)? {
            Content::Blank => (Vec::new(), None),
            Content::Ext => (vec![probe::EXT], None),
            Content::Known(names) => (names, None),
            Content::Unknown(at) => (Vec::new(), Some(at)),
        };
        Ok(Self {
            names,
            found: filesystem::read(stretch)?,
            unknown,
        })
    }

    /// Reads all of a device.
    ///
    /// # Errors
    /// As [`Held::read`].
    pub fn of_device(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        // The end of a device needs no ioctl.
        let size = (&file).seek(SeekFrom::End(0))?;
        Self::read(Stretch::whole(&file, size))
    }

    /// Whether it provably holds nothing.
    pub fn is_blank(&self) -> bool {
        self.names.is_empty() && self.unknown.is_none()
    }

    /// What it holds, for a message: the file systems, else the signatures, else where data is.
    pub fn describe(&self) -> String {
        if !self.found.is_empty() {
            let found: Vec<String> = self.found.iter().map(ToString::to_string).collect();
            return found.join(" and ");
        }
        match self.unknown {
            Some(at) => Content::Unknown(at).describe(),
            None if self.names.is_empty() => Content::Blank.describe(),
            None => self.names.join(" and "),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use linux::filesystem::Kind;

    #[test]
    fn what_is_held_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let file = File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        let held = Held::of_device(&path).unwrap();
        assert!(held.is_blank() && held.describe().contains("blank"));
        file.write_all_at(b"x", 5 << 20).unwrap();
        // Samples lie between the edges; the whole of them is not read.
        file.write_all_at(&vec![1; 1 << 20], 4 << 20).unwrap();
        let held = Held::of_device(&path).unwrap();
        assert!(!held.is_blank() && held.names.is_empty());
        assert!(held.describe().starts_with("data of no known kind"));
        for (at, bytes) in linux::samples::filesystem(Kind::Xfs) {
            file.write_all_at(&bytes, at).unwrap();
        }
        let held = Held::of_device(&path).unwrap();
        assert_eq!(
            (held.names.as_slice(), held.unknown),
            (&[probe::XFS][..], None)
        );
        assert!(held.describe().starts_with("xfs"));
    }
}
