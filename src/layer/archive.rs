//! A tar archive that somebody else made, as the content of one folder: no path leads out of it, and no file gives rights.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::members::Members;
use super::{Entry, Kind, Source, tree};
use crate::format::hashed_file::HashedFile;

/// The unpacked archive in the folder that keeps it.
const PLAIN: &str = "content.tar";
/// Its entries.
const INDEX: &str = "content.json";
/// Size limit of an unpacked archive, bytes.
const LIMIT: u64 = 16 << 30;

/// What is taken of an archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many leading parts of each path are left out; what has no more parts is too.
    pub(crate) strip: usize,
    /// Whether files keep the numbers of their owners; otherwise all are root's.
    pub(crate) keep_owners: bool,
}

/// Unpacks an archive, plain or compressed by gzip, xz or zstd, in `folder`, which keeps it.
///
/// # Errors
/// If it is damaged, too large, or not what was hashed; or a path of it is absolute, leads upwards or through a link, or is neither file, folder nor
/// link.
pub(crate) fn unpack(archive: &HashedFile, folder: &Path, options: Options) -> Result<()> {
    let plain = folder.join(PLAIN);
    let mut from = decoder(archive)?.take(LIMIT);
    let mut to = BufWriter::new(File::create(&plain)?);
    io::copy(&mut from, &mut to).context("unpacking it")?;
    ensure!(from.limit() > 0, "it has more than {LIMIT} bytes unpacked");
    to.flush()?;
    let entries = entries(&plain, options)?;
    ensure!(
        !entries.is_empty(),
        "it has no files{}",
        match options.strip {
            0 => "",
            _ => " with so many parts of their paths left out",
        }
    );
    Ok(fs::write(
        folder.join(INDEX),
        serde_json::to_vec(&entries)?,
    )?)
}

/// The entries that [`unpack`] left in a folder, which may have been moved since: sorted, with paths from its top.
///
/// # Errors
/// If they are not there.
pub(crate) fn open(folder: &Path) -> Result<Vec<Entry>> {
    let index = folder.join(INDEX);
    let about = || format!("reading {}", index.display());
    let text = fs::read(&index).with_context(about)?;
    let mut entries: Vec<Entry> = serde_json::from_slice(&text).with_context(about)?;
    for entry in &mut entries {
        if let Kind::File(Source::Range { file, .. }) = &mut entry.kind {
            *file = folder.join(PLAIN);
        }
    }
    Ok(entries)
}

/// The content of an archive, by its first bytes.
fn decoder(archive: &HashedFile) -> Result<Box<dyn Read>> {
    let mut file = BufReader::with_capacity(1 << 18, archive.open()?);
    Ok(match file.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(file))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::with_buffer(file)?),
        _ => Box::new(file),
    })
}

fn entries(plain: &Path, options: Options) -> Result<Vec<Entry>> {
    let mut members = Members::of_file(File::open(plain)?)?;
    let mut found = BTreeMap::new();
    let about = "it is not a tar archive, plain or compressed by gzip, xz or zstd";
    while let Some(member) = members.next().context(about)? {
        let link = Some(&member.link).filter(|_| member.kind.is_hard_link());
        for path in [Some(&member.path), link].into_iter().flatten() {
            ensure!(
                !path.starts_with(b"/"),
                "the path {} is absolute",
                String::from_utf8_lossy(path)
            );
        }
        if let Some(entry) = tree::from_member(member, plain, "")? {
            take(&mut found, entry, options)?;
        }
    }
    Ok(found.into_values().collect())
}

/// The path without its first parts.
fn stripped(path: &str, parts: usize) -> Option<String> {
    let rest: Vec<&str> = path.split('/').skip(1 + parts).collect();
    (!rest.is_empty()).then(|| format!("/{}", rest.join("/")))
}

fn take(found: &mut BTreeMap<String, Entry>, mut entry: Entry, options: Options) -> Result<()> {
    let Some(path) = stripped(&entry.path, options.strip) else {
        return Ok(());
    };
    for (at, _) in path.match_indices('/').skip(1) {
        let above = &path[..at];
        match found.get(above).map(|entry: &Entry| &entry.kind) {
            None | Some(Kind::Directory) => {}
            Some(Kind::Symlink(target)) => {
                bail!("{path} leads through {above}, a link to {target}")
            }
            Some(_) => bail!("{path} leads through {above}, which is not a folder"),
        }
    }
    if let Kind::HardLink(target) = &entry.kind {
        let target = stripped(target, options.strip).unwrap_or_default();
        let kind = found.get(&target).map(|entry| entry.kind.clone());
        let Some(file @ Kind::File(_)) = kind else {
            bail!("{path} is a link to {target}, which is not a file before it");
        };
        entry.kind = file;
    }
    if entry.kind != Kind::Directory {
        let below = format!("{path}/");
        let inside = found.range(below.clone()..).next();
        ensure!(
            inside.is_none_or(|(inside, _)| !inside.starts_with(&below)),
            "{path} is a folder with files and something else"
        );
    }
    if !options.keep_owners {
        (entry.uid, entry.gid) = (0, 0);
    }
    // Only what an unprivileged program may set: others are a file system's own notes, or give rights.
    entry.xattrs.retain(|(name, _)| name.starts_with("user."));
    entry.path.clone_from(&path);
    // The bits that give rights, and those of a folder that would give its group away.
    entry.mode &= 0o1777;
    found.insert(path, entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header for a tar archive, with its path written as it is.
    fn header(kind: tar::EntryType, path: &str, link: &str, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o4755);
        header.set_uid(7);
        header.set_gid(8);
        header.set_cksum();
        header
    }

    type Item<'a> = (tar::EntryType, &'a str, &'a str);

    /// An archive of these: type, path, target of a link or content of a file.
    fn archive(items: &[Item<'_>]) -> Vec<u8> {
        let mut out = tar::Builder::new(Vec::new());
        for (kind, path, rest) in items {
            let (link, content) = match kind.is_file() {
                true => ("", *rest),
                false => (*rest, ""),
            };
            let header = header(*kind, path, link, content.len() as u64);
            out.append(&header, content.as_bytes()).unwrap();
        }
        out.into_inner().unwrap()
    }

    fn unpacked(bytes: &[u8], options: Options) -> Result<Vec<Entry>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, bytes).unwrap();
        unpack(&HashedFile::hash(&path)?, folder.path(), options)?;
        let mut entries = open(folder.path())?;
        // The folder is gone with this function.
        for entry in &mut entries {
            if let Kind::File(source) = &mut entry.kind {
                *source = Source::Bytes(source.read()?);
            }
        }
        Ok(entries)
    }

    const ALL: Options = Options {
        strip: 0,
        keep_owners: false,
    };

    #[test]
    fn archives_of_every_compression_give_files_of_root_without_rights() {
        use tar::EntryType as T;
        let plain = archive(&[
            (T::Directory, "./app-1/", ""),
            (T::Regular, "./app-1/run", "#!"),
            (T::Link, "app-1/also", "app-1/run"),
            (T::Symlink, "app-1/etc", "/etc"),
        ]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&plain).unwrap();
        let zstd = zstd::encode_all(plain.as_slice(), 1).unwrap();
        let strip = Options { strip: 1, ..ALL };
        for bytes in [
            &plain,
            &gzip.finish().unwrap(),
            &xz.finish().unwrap(),
            &zstd,
        ] {
            let entries = unpacked(bytes, strip).unwrap();
            let expected = [
                Entry::file("/also", 0o755, "#!"),
                Entry {
                    mode: 0o755,
                    ..Entry::symlink("/etc", "/etc")
                },
                Entry::file("/run", 0o755, "#!"),
            ];
            assert_eq!(entries, expected);
        }
        let keep = Options {
            keep_owners: true,
            ..ALL
        };
        let entries = unpacked(&plain, keep).unwrap();
        assert_eq!(entries[0].path, "/app-1");
        assert!(entries.iter().all(|entry| (entry.uid, entry.gid) == (7, 8)));
    }

    #[test]
    fn what_leads_out_or_is_no_file_is_refused() {
        use tar::EntryType as T;
        let file = (T::Regular, "a/f", "x");
        for (items, words) in [
            (vec![(T::Regular, "../x", "")], "leads upwards"),
            (vec![(T::Regular, "a/../../x", "")], "leads upwards"),
            (vec![(T::Regular, "/etc/x", "")], "is absolute"),
            (vec![file, (T::Link, "a/l", "/a/f")], "is absolute"),
            (vec![(T::Link, "a/l", "../../etc/shadow")], "leads upwards"),
            (vec![(T::Link, "a/l", "a/g"), file], "not a file before it"),
            (
                vec![(T::Symlink, "a", "/etc"), (T::Regular, "a/x", "")],
                "/a/x leads through /a, a link to /etc",
            ),
            (
                vec![file, (T::Regular, "a/f/x", "")],
                "which is not a folder",
            ),
            (vec![file, (T::Symlink, "a", "/etc")], "something else"),
            (vec![(T::Char, "dev/null", "")], "Char"),
            (vec![(T::Fifo, "pipe", "")], "Fifo"),
        ] {
            let error = unpacked(&archive(&items), ALL).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(words), "{items:?}: {error}");
        }
        let error = unpacked(b"<html>no such file</html>", ALL).unwrap_err();
        assert!(
            format!("{error:#}").contains("not a tar archive"),
            "{error:#}"
        );
        let strip = Options { strip: 2, ..ALL };
        let error = unpacked(&archive(&[file]), strip).unwrap_err();
        assert!(
            format!("{error:#}").contains("no files with so many"),
            "{error:#}"
        );
        let cut = archive(&[(T::Regular, "f", &"x".repeat(9000))]);
        assert!(unpacked(&cut[..5000], ALL).is_err());
    }
}
