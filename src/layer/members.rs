//! Reads the members of a tar archive that others made: layers of container images and archives of recipes.
//!
//! The library's reader splits PAX records at line feeds, which a value may have: it refuses such a member, and where only
//! its name is asked for takes the cut one of the header. Here a record is as long as it says. Fields of headers are read
//! by the library.
//!
//! Formats: pax(1) in POSIX.1-2024, and GNU's long names (tar.h of GNU tar). What Go's `archive/tar` does, by which
//! runtimes read images, is done here too where a format leaves a choice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use anyhow::{Context, Result, bail, ensure};
use tar::{EntryType, Header};

use super::stream::BLOCK;

/// Size limit of the records or the long name before one member, bytes: more than Linux's limits of names and of
/// attributes together.
const EXTENSION_LIMIT: u64 = 1 << 20;
/// The start of the name of a record with an extended attribute.
const ATTRIBUTE: &str = "SCHILY.xattr.";
/// The start of the names of records that describe holes, whose content has a map before it.
const SPARSE: &str = "GNU.sparse.";

/// A member of an archive, with what the extensions before it say.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) kind: EntryType,
    pub(crate) path: Vec<u8>,
    /// The target of a link.
    pub(crate) link: Vec<u8>,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Bytes of its content.
    pub(crate) size: u64,
    /// Where its content begins in the archive.
    pub(crate) offset: u64,
    /// Extended attributes, sorted by name.
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
}

/// The members of a plain archive, in its order. Their contents are not read but where they are asked for.
#[derive(Debug)]
pub(crate) struct Members {
    from: BufReader<File>,
    /// Bytes of the archive before this position.
    position: u64,
    /// Bytes of the member's content that are not read yet, and of zeros after it.
    left: u64,
    padding: u64,
    /// The archive's length.
    length: u64,
}

impl Members {
    /// Those of a file, from its beginning.
    ///
    /// # Errors
    /// If its length cannot be read.
    pub(crate) fn of_file(file: File) -> Result<Self> {
        let length = file.metadata()?.len();
        let mut from = BufReader::with_capacity(1 << 18, file);
        from.seek(SeekFrom::Start(0))?;
        Ok(Self {
            from,
            position: 0,
            left: 0,
            padding: 0,
            length,
        })
    }

    /// The next member; none at the end of the archive.
    ///
    /// # Errors
    /// If the archive is damaged, ends inside a member, or has holes that are not stored.
    pub(crate) fn next(&mut self) -> Result<Option<Member>> {
        let (mut records, mut name, mut target) = (BTreeMap::new(), None, None);
        loop {
            self.skip_content()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            match header.entry_type() {
                EntryType::XHeader => {
                    records = self::records(&self.extension(&header)?)?;
                }
                EntryType::GNULongName => name = Some(self.long_name(&header)?),
                EntryType::GNULongLink => target = Some(self.long_name(&header)?),
                // Defaults for all members, such as the commit that git notes.
                EntryType::XGlobalHeader => drop(self.extension(&header)?),
                _ => return self.member(&header, records, name, target).map(Some),
            }
        }
    }

    /// The content of the member that was given last.
    pub(crate) fn content(&mut self) -> Content<'_> {
        Content { members: self }
    }

    fn member(
        &mut self,
        header: &Header,
        mut records: BTreeMap<String, Vec<u8>>,
        name: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<Member> {
        if let Some(key) = records.keys().find(|key| key.starts_with(SPARSE)) {
            bail!(
                "a file with holes that the archive leaves out ({key}); pack it without `--sparse`"
            );
        }
        let number = |key: &str, field: io::Result<u64>| -> Result<u64> {
            match records.get(key) {
                Some(value) => std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse().ok())
                    .with_context(|| format!("the PAX record {key} is not a number")),
                None => Ok(field?),
            }
        };
        let (uid, gid) = (number("uid", header.uid())?, number("gid", header.gid())?);
        let size = number("size", header.entry_size())?;
        let path = records.remove("path").or(name);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = records.remove("linkpath").or(target);
        let link = link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let kind = match header.entry_type() {
            // As before ustar.
            EntryType::Regular if path.ends_with(b"/") => EntryType::Directory,
            kind => kind,
        };
        // What has no content may have a size all the same.
        let has_content = !kind.is_dir()
            && !kind.is_hard_link()
            && !kind.is_symlink()
            && !kind.is_character_special()
            && !kind.is_block_special()
            && !kind.is_fifo();
        let size = if has_content { size } else { 0 };
        self.begin(size)?;
        let attribute = |(key, value): (String, Vec<u8>)| {
            let name = key.strip_prefix(ATTRIBUTE)?;
            Some((name.to_owned(), value))
        };
        Ok(Member {
            kind,
            path,
            link: link.unwrap_or_default(),
            mode: header.mode()? & 0o7777,
            uid,
            gid,
            size,
            offset: self.position,
            xattrs: records.into_iter().filter_map(attribute).collect(),
        })
    }

    /// The next header; none at the end.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < block.len() {
            match self.from.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => bail!("the archive ends inside a header"),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.position += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The checksum's own field counts as spaces.
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let expected = sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..]);
        ensure!(
            header.cksum().is_ok_and(|found| found == expected),
            "a header has a wrong checksum"
        );
        Ok(Some(header))
    }

    fn begin(&mut self, size: u64) -> Result<()> {
        let end = self.position.checked_add(size);
        let is_inside = end.is_some_and(|end| end <= self.length);
        ensure!(
            is_inside,
            "the archive ends inside a member of {size} bytes"
        );
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK) - size;
        Ok(())
    }

    fn skip_content(&mut self) -> Result<()> {
        // The zeros after the last member may be cut off.
        let rest = self.left + self.padding;
        let rest = rest.min(self.length.saturating_sub(self.position));
        self.from.seek_relative(i64::try_from(rest)?)?;
        self.position += rest;
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// The content of a member that says more about the next one.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>> {
        let size = header.entry_size()?;
        ensure!(
            size <= EXTENSION_LIMIT,
            "the records of a member have {size} bytes, expected at most {EXTENSION_LIMIT}"
        );
        self.begin(size)?;
        let mut bytes = Vec::new();
        self.content().read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>> {
        let mut name = self.extension(header)?;
        let end = name.iter().position(|byte| *byte == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(name)
    }
}

/// Reads the content of a member.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    members: &'a mut Members,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let members = &mut *self.members;
        if members.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(members.left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let bytes = members.from.read(&mut buffer[..most])?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        members.left -= bytes as u64;
        members.position += bytes as u64;
        Ok(bytes)
    }
}

/// PAX records by name: `LENGTH NAME=VALUE\n`, where the length counts all of it, in decimal. The last of a name
/// counts, and an empty value takes the record away.
fn records(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (record, after) = split_record(rest).with_context(|| {
            format!(
                "a damaged PAX record {} bytes into the records",
                bytes.len() - rest.len()
            )
        })?;
        let equals = record.iter().position(|byte| *byte == b'=');
        let (key, value) = record.split_at(equals.context("a PAX record without a value")?);
        let key = std::str::from_utf8(key).context("a PAX record whose name is not UTF-8")?;
        match &value[1..] {
            // An attribute may be empty.
            [] if !key.starts_with(ATTRIBUTE) => drop(found.remove(key)),
            value => drop(found.insert(key.to_owned(), value.to_vec())),
        }
        rest = after;
    }
    Ok(found)
}

/// The first record, without its length and its line feed, and what comes after it.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = std::str::from_utf8(&bytes[..digits]).ok()?;
    let length: usize = length.parse().ok()?;
    let (record, after) = bytes.split_at_checked(length)?;
    let record = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    Some((record, after))
}

#[cfg(test)]
mod tests;
