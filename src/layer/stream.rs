//! Writes entries as a tar stream: POSIX ustar headers, with a PAX header before entries that do not fit or have
//! extended attributes. The zero blocks at the end are optional, so that streams can be joined.
//!
//! Format: pax(1) in POSIX.1-2024. Written without a library, because a stream must have the same bytes with every
//! version of every library.

use std::io::{self, Read, Write};

use super::Entry;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 512;
/// The largest number of an owner that a header's field holds.
const LARGEST_OWNER: u32 = 0o7_777_777;

/// The fields of an entry's header beside path, mode, owner and attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    /// A folder.
    Directory,
    /// A file of this many bytes, which follow.
    File(u64),
    /// Another name of an earlier file, by its path in the stream.
    HardLink(&'a str),
    /// A symbolic link.
    Symlink(&'a str),
}

/// A tar stream that is being written.
#[derive(Debug)]
pub(crate) struct Stream<W> {
    out: W,
    count: u64,
}

impl<W: Write> Stream<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, count: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Writes an entry's header; content of [`Form::File`] must follow by [`Stream::content`]. `mtime` is in seconds
    /// since 1970.
    pub(crate) fn header(&mut self, entry: &Entry, form: Form<'_>, mtime: u64) -> io::Result<()> {
        let name = name(&entry.path, matches!(form, Form::Directory));
        let link = match form {
            Form::HardLink(target) => super::stream::name(target, false),
            Form::Symlink(target) => target.to_owned(),
            _ => String::new(),
        };
        let size = if let Form::File(size) = form { size } else { 0 };
        let mut records = Vec::new();
        if name.len() > 100 {
            record(&mut records, "path", name.as_bytes());
        }
        if link.len() > 100 {
            record(&mut records, "linkpath", link.as_bytes());
        }
        if size > 0o77_777_777_777 {
            record(&mut records, "size", size.to_string().as_bytes());
        }
        for (key, owner) in [("uid", entry.uid), ("gid", entry.gid)] {
            if owner > LARGEST_OWNER {
                record(&mut records, key, owner.to_string().as_bytes());
            }
        }
        for (key, value) in &entry.xattrs {
            record(&mut records, &format!("SCHILY.xattr.{key}"), value);
        }
        if !records.is_empty() {
            let length = records.len() as u64;
            let header = ustar(b'x', "././@PaxHeader", "", 0o644, (0, 0), length, 0);
            self.write(&header)?;
            self.content(&mut records.as_slice(), length)?;
        }
        let kind = match form {
            Form::Directory => b'5',
            Form::File(_) => b'0',
            Form::HardLink(_) => b'1',
            Form::Symlink(_) => b'2',
        };
        let header = ustar(
            kind,
            &name,
            &link,
            entry.mode,
            (entry.uid, entry.gid),
            size,
            mtime,
        );
        self.write(&header)
    }

    /// Writes `size` bytes of content and the padding after it.
    pub(crate) fn content(&mut self, from: &mut dyn Read, size: u64) -> io::Result<()> {
        let copied = io::copy(&mut from.take(size), &mut self.out)?;
        self.count += copied;
        if copied != size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "expected {size} bytes, found {copied}: the file changed while it was read"
                ),
            ));
        }
        let padding = usize::try_from(size.next_multiple_of(BLOCK) - size).unwrap_or_default();
        self.write(&[0; 512][..padding])
    }

    /// Writes the two zero blocks that end an archive.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.write(&[0; 1024])
    }

    /// Gives back the writer, flushed.
    pub(crate) fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.count += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// `/usr/bin` as `./usr/bin`, folders with a slash at the end, the root as `./`.
fn name(path: &str, folder: bool) -> String {
    let slash = if folder && path != "/" { "/" } else { "" };
    format!(".{path}{slash}")
}

/// A PAX record: its length in decimal counts itself.
pub(super) fn record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn ustar(
    kind: u8,
    name: &str,
    link: &str,
    mode: u32,
    (uid, gid): (u32, u32),
    size: u64,
    mtime: u64,
) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, room: usize, bytes: &[u8]| {
        let length = bytes.len().min(room);
        header[at..at + length].copy_from_slice(&bytes[..length]);
    };
    put(0, 100, name.as_bytes());
    put(100, 8, format!("{:07o}\0", mode & 0o7777).as_bytes());
    // Numbers and a size that do not fit are in the PAX header.
    for (at, owner) in [(108, uid), (116, gid)] {
        let shown = if owner > LARGEST_OWNER { 0 } else { owner };
        put(at, 8, format!("{shown:07o}\0").as_bytes());
    }
    let shown = if size > 0o77_777_777_777 { 0 } else { size };
    put(124, 12, format!("{shown:011o}\0").as_bytes());
    put(136, 12, format!("{mtime:011o}\0").as_bytes());
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link.as_bytes());
    put(257, 8, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::members::Members;

    /// Path, target of a link, mode, owner, content, extended attributes.
    type Seen = (
        String,
        Option<String>,
        u32,
        u64,
        String,
        Vec<(String, Vec<u8>)>,
    );

    /// The entries that the tar crate reads from a stream.
    fn read(bytes: &[u8]) -> Vec<Seen> {
        let mut archive = tar::Archive::new(bytes);
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let attributes: Vec<(String, Vec<u8>)> = entry
                .pax_extensions()
                .unwrap()
                .into_iter()
                .flatten()
                .map(|found| found.unwrap())
                .map(|found| {
                    (
                        found.key().unwrap().to_owned(),
                        found.value_bytes().to_vec(),
                    )
                })
                .filter(|(key, _)| key.starts_with("SCHILY"))
                .collect();
            seen.push((
                entry.path().unwrap().to_str().unwrap().to_owned(),
                entry
                    .link_name()
                    .unwrap()
                    .map(|link| link.to_str().unwrap().to_owned()),
                entry.header().mode().unwrap(),
                entry.header().uid().unwrap(),
                content,
                attributes,
            ));
        }
        seen
    }

    #[test]
    fn what_is_written_is_read_by_the_tar_crate() {
        // No byte 10 in the attribute: the crate's reader wrongly splits records at line feeds.
        let long = format!("/{}/{}", "d".repeat(90), "f".repeat(90));
        let mut file = Entry::file(long.clone(), 0o4755, "");
        (file.uid, file.gid) = (1000, 65_534);
        file.xattrs = vec![("security.capability".into(), vec![1, 0, 11, 255])];
        let mut stream = Stream::new(Vec::new());
        stream
            .header(&Entry::directory("/", 0o755), Form::Directory, 7)
            .unwrap();
        stream.header(&file, Form::File(5), 7).unwrap();
        stream.content(&mut &b"hello"[..], 5).unwrap();
        stream
            .header(&Entry::file("/h", 0o644, ""), Form::HardLink(&long), 7)
            .unwrap();
        stream
            .header(
                &Entry::symlink("/s", "x"),
                Form::Symlink(&"t".repeat(150)),
                7,
            )
            .unwrap();
        stream.end().unwrap();
        assert_eq!(stream.count() % BLOCK, 0);
        let seen = read(&stream.into_inner().unwrap());
        let capability = vec![(
            "SCHILY.xattr.security.capability".to_owned(),
            vec![1, 0, 11, 255],
        )];
        assert_eq!(
            seen,
            [
                ("./".to_owned(), None, 0o755, 0, String::new(), vec![]),
                (
                    format!(".{long}"),
                    None,
                    0o4755,
                    1000,
                    "hello".to_owned(),
                    capability
                ),
                (
                    "./h".to_owned(),
                    Some(format!(".{long}")),
                    0o644,
                    0,
                    String::new(),
                    vec![]
                ),
                (
                    "./s".to_owned(),
                    Some("t".repeat(150)),
                    0o777,
                    0,
                    String::new(),
                    vec![]
                ),
            ]
        );
    }

    /// A directory's service gives people such numbers.
    #[test]
    fn owners_with_large_numbers_are_read_back() {
        let mut file = tempfile::tempfile().unwrap();
        let owners = [
            (LARGEST_OWNER, 7),
            (LARGEST_OWNER + 1, 7),
            (7, u32::MAX - 1),
        ];
        let mut stream = Stream::new(Vec::new());
        for (uid, gid) in owners {
            let mut entry = Entry::directory("/d", 0o755);
            (entry.uid, entry.gid) = (uid, gid);
            stream.header(&entry, Form::Directory, 7).unwrap();
        }
        stream.end().unwrap();
        file.write_all(&stream.into_inner().unwrap()).unwrap();
        let mut members = Members::of_file(file).unwrap();
        for (uid, gid) in owners {
            let found = members.next().unwrap().unwrap();
            assert_eq!((found.uid, found.gid), (uid.into(), gid.into()));
        }
        assert!(members.next().unwrap().is_none());
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let mut stream = Stream::new(Vec::new());
        assert!(stream.content(&mut &b"abc"[..], 4).is_err());
    }
}
