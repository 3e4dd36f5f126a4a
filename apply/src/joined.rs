//! The content of a file: parts one after the other, each in memory or on the disk.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};

use crate::digest::sha256_of;
use crate::fetched::{Content, Spooled};

/// The content of a file.
#[derive(Debug)]
pub(crate) struct Joined<'a>(Vec<&'a Content>);

impl<'a> Joined<'a> {
    /// Contents and what is appended to them.
    pub(crate) fn of(contents: Option<&'a Content>, append: &'a [Content]) -> Self {
        Self(contents.into_iter().chain(append).collect())
    }

    /// Bytes of all parts.
    pub(crate) fn length(&self) -> u64 {
        self.0.iter().map(|part| part.length()).sum()
    }

    /// The file that is the whole content, if it is one on the disk.
    pub(crate) fn file(&self) -> Option<&'a Path> {
        match self.0[..] {
            [Content::Spooled(Spooled { file, .. })] => file.as_deref(),
            _ => None,
        }
    }

    /// Whether `reader` gives exactly this content. A part that was verified and is not on the disk yet is compared by its
    /// hash.
    pub(crate) fn is(&self, mut reader: impl Read) -> io::Result<bool> {
        for &part in &self.0 {
            let mut found = reader.by_ref().take(part.length());
            let same = match part {
                Content::Memory(wanted) => {
                    let mut bytes = Vec::with_capacity(wanted.len());
                    found.read_to_end(&mut bytes)?;
                    bytes == *wanted
                }
                Content::Spooled(wanted) => {
                    sha256_of(found)? == (wanted.bytes, wanted.sha256.clone())
                }
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(reader.take(1).read_to_end(&mut Vec::new())? == 0)
    }

    /// Reads all parts.
    ///
    /// # Errors
    /// If a part that is not in memory cannot be opened.
    pub(crate) fn reader(&self) -> Result<Box<dyn Read + 'a>> {
        let mut all: Box<dyn Read + 'a> = Box::new(io::empty());
        for &part in &self.0 {
            all = match part {
                Content::Memory(bytes) => Box::new(all.chain(&bytes[..])),
                Content::Spooled(spooled) => Box::new(all.chain(open(spooled)?)),
            };
        }
        Ok(all)
    }

    /// SHA-256 of all parts in hexadecimal digits.
    ///
    /// # Errors
    /// If a part cannot be read.
    pub(crate) fn sha256(&self) -> Result<String> {
        if let [Content::Spooled(only)] = self.0[..] {
            return Ok(only.sha256.clone());
        }
        let (_, sha256) = sha256_of(self.reader()?).context("reading a content")?;
        Ok(sha256)
    }
}

fn open(spooled: &Spooled) -> Result<File> {
    let file = spooled.file.as_ref();
    let file = file.context("a content that does not fit into memory is not on the disk")?;
    File::open(file).with_context(|| format!("opening {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::sha256;

    #[test]
    fn parts_in_memory_and_on_the_disk_are_one_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("0");
        std::fs::write(&file, "large").unwrap();
        let large = |file: Option<&Path>| {
            Content::Spooled(Spooled {
                bytes: 5,
                sha256: sha256(b"large"),
                file: file.map(Path::to_owned),
            })
        };
        let (small, spooled, verified) = (
            Content::Memory(b"small,".to_vec()),
            large(Some(&file)),
            large(None),
        );
        let append = [spooled.clone(), small.clone()];
        let whole = Joined::of(Some(&small), &append);
        let text = b"small,largesmall,";
        assert_eq!(whole.length(), 17);
        assert_eq!(whole.sha256().unwrap(), sha256(text));
        let mut read = Vec::new();
        whole.reader().unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, text);
        assert_eq!(whole.file(), None);
        assert_eq!(Joined::of(Some(&spooled), &[]).file(), Some(&*file));
        // Before it is on the disk, the content can be compared and not read.
        let append = [verified, small.clone()];
        let later = Joined::of(Some(&small), &append);
        assert!(later.reader().is_err() && later.file().is_none());
        for (found, same) in [
            (&text[..], true),
            (b"small,largesmall", false),
            (b"small,largesmall,,", false),
            (b"small,Largesmall,", false),
            (b"small,lar", false),
            (b"", false),
        ] {
            assert_eq!(whole.is(found).unwrap(), same);
            assert_eq!(later.is(found).unwrap(), same);
        }
    }
}
