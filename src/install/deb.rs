//! Reads a `.deb`: an `ar` archive of `control.tar.*` and `data.tar.*` (deb(5)).

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::debian::deb822::Reader;
use crate::format::kind::kind;

/// The first bytes of every `ar` archive.
const MAGIC: &[u8; 8] = b"!<arch>\n";
/// Bytes of a member's header.
const HEADER: usize = 60;
/// Size limit of a control member, bytes.
const CONTROL_LIMIT: u64 = 64 << 20;
/// The fields that dpkg reads itself, and `Source`, which the lock has. The others it takes whatever their bytes are.
const READ: [&str; 15] = [
    "Package",
    "Source",
    "Version",
    "Architecture",
    "Multi-Arch",
    "Essential",
    "Provides",
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Conflicts",
    "Breaks",
    "Replaces",
];

/// A file of the control archive: its name, permission bits, and content.
#[derive(Clone, Debug)]
pub(crate) struct ControlFile {
    pub(crate) name: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// The control archive's files. The one with the fields, `control`, is a text.
///
/// # Errors
/// If the file is not a package, or a field that is read has bytes that are not UTF-8.
pub(crate) fn control(path: &Path) -> Result<Vec<ControlFile>> {
    let mut archive = tar::Archive::new(member(path, "control.tar")?.take(CONTROL_LIMIT));
    let mut files = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry
            .path()?
            .file_name()
            .and_then(|name| name.to_str())
            .context("a control file without a name")?
            .to_owned();
        let mode = entry.header().mode()?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if name == "control" {
            content = control_text(content)?.into_bytes();
        }
        files.push(ControlFile {
            name,
            mode,
            content,
        });
    }
    Ok(files)
}

/// The text of a control file. As dpkg does, it takes any bytes where nothing depends on them, as a maintainer's name in Latin-1; those that
/// are not UTF-8 are replaced.
fn control_text(content: Vec<u8>) -> Result<String> {
    let content = match String::from_utf8(content) {
        Ok(text) => return Ok(text),
        Err(error) => error.into_bytes(),
    };
    let text = String::from_utf8_lossy(&content).into_owned();
    let mut wrong = None;
    let read = Reader::new(&text).paragraph(|name, value| {
        let is_read = READ.iter().any(|known| known.eq_ignore_ascii_case(name));
        if is_read && value.contains(char::REPLACEMENT_CHARACTER) && wrong.is_none() {
            wrong = Some(format!("{name}: {value}"));
        }
    });
    read.context("reading its control file")?;
    if let Some(wrong) = wrong {
        bail!("its control file has bytes that are not UTF-8 in a field that dpkg reads: {wrong}");
    }
    Ok(text)
}

/// The data archive as a tar stream.
pub(crate) fn data(path: &Path) -> Result<Box<dyn Read + Send>> {
    member(path, "data.tar")
}

/// The paths of the data archive, as it names them.
///
/// # Errors
/// If the file is not a package.
pub fn paths(path: &Path) -> Result<Vec<String>> {
    let mut archive = tar::Archive::new(data(path)?);
    let mut found = Vec::new();
    for entry in archive.entries()? {
        found.push(entry?.path()?.to_string_lossy().into_owned());
    }
    Ok(found)
}

/// The member with this name and any known compression.
fn member(path: &Path, name: &str) -> Result<Box<dyn Read + Send>> {
    let mut file = File::open(path)?;
    let (found, size) = seek(&mut file, name)?;
    let raw = BufReader::with_capacity(256 << 10, file.take(size));
    decompress(&found, raw)
}

/// Moves to the content of the member whose name begins with `name`; gives its full name and size.
fn seek(file: &mut File, name: &str) -> Result<(String, u64)> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    ensure!(
        &magic == MAGIC,
        "expected an ar archive, found {}",
        kind(&magic)
    );
    let mut header = [0; HEADER];
    loop {
        file.read_exact(&mut header)
            .with_context(|| format!("looking for the member {name}.*"))?;
        ensure!(&header[58..] == b"`\n", "a damaged ar header");
        let text = |range: std::ops::Range<usize>| {
            std::str::from_utf8(&header[range]).map(|text| text.trim_end())
        };
        let found = text(0..16)?.trim_end_matches('/').to_owned();
        let size: u64 = text(48..58)?.parse().context("the size of an ar member")?;
        if found.starts_with(name) {
            return Ok((found, size));
        }
        // Members begin at even offsets.
        let skip = i64::try_from(size + size % 2)?;
        file.seek(SeekFrom::Current(skip))?;
    }
}

fn decompress(name: &str, raw: BufReader<Take<File>>) -> Result<Box<dyn Read + Send>> {
    Ok(match name.rsplit('.').next() {
        Some("xz") => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(raw)),
        Some("zst") => Box::new(zstd::Decoder::with_buffer(raw)?),
        Some("gz") => Box::new(flate2::bufread::MultiGzDecoder::new(raw)),
        Some("tar") => Box::new(raw),
        _ => bail!("{name}: a compression that is not known"),
    })
}

/// The value of a field of a control file, continuation lines included.
pub(crate) fn field<'a>(control: &'a str, name: &str) -> Option<&'a str> {
    let mut found = None;
    let paragraph = Reader::new(control).paragraph(|key, value| {
        if key.eq_ignore_ascii_case(name) {
            found = Some(value);
        }
    });
    paragraph.ok().and(found)
}

/// Copies the reader's content, with a buffer of the caller.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut dyn io::Write,
    buffer: &mut [u8],
) -> io::Result<u64> {
    let mut all = 0;
    loop {
        let read = from.read(buffer)?;
        if read == 0 {
            return Ok(all);
        }
        to.write_all(&buffer[..read])?;
        all += read as u64;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes a `.deb` of these control files and this data archive; compressed as the suffix says.
    pub(crate) fn write<C: AsRef<[u8]>>(
        path: &Path,
        control: &[(&str, u32, C)],
        data: &[u8],
        suffix: &str,
    ) {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, mode, content) in control {
            let content = content.as_ref();
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(*mode);
            archive
                .append_data(&mut header, format!("./{name}"), content)
                .unwrap();
        }
        let control = pack(&archive.into_inner().unwrap(), suffix);
        let data = pack(data, suffix);
        let mut out = MAGIC.to_vec();
        for (name, content) in [
            ("debian-binary".to_owned(), b"2.0\n".to_vec()),
            (format!("control.tar{suffix}"), control),
            (format!("data.tar{suffix}"), data),
        ] {
            let header = format!(
                "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
                0,
                0,
                0,
                100_644,
                content.len()
            );
            out.extend(header.bytes());
            out.extend(&content);
            if content.len() % 2 == 1 {
                out.push(b'\n');
            }
        }
        std::fs::write(path, out).unwrap();
    }

    fn pack(bytes: &[u8], suffix: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match suffix {
            ".xz" => liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut out),
            ".zst" => return zstd::encode_all(bytes, 1).unwrap(),
            ".gz" => flate2::read::GzEncoder::new(bytes, flate2::Compression::fast())
                .read_to_end(&mut out),
            _ => return bytes.to_vec(),
        }
        .unwrap();
        out
    }

    #[test]
    fn every_compression_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for suffix in [".xz", ".zst", ".gz", ""] {
            let path = folder.path().join(format!("a{suffix}.deb"));
            write(
                &path,
                &[
                    ("control", 0o644, "Package: a\n"),
                    ("postinst", 0o755, "#!"),
                ],
                b"data",
                suffix,
            );
            let files = control(&path).unwrap();
            assert_eq!(files[0].content, b"Package: a\n", "{suffix}");
            assert_eq!((files[1].name.as_str(), files[1].mode), ("postinst", 0o755));
            let mut bytes = Vec::new();
            data(&path).unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"data", "{suffix}");
        }
    }

    /// As packages of vendors are, that were written before UTF-8.
    #[test]
    fn a_control_file_in_latin_1_is_read_but_for_what_dpkg_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.deb");
        let read = |content: &[u8]| {
            write(&path, &[("control", 0o644, content)], b"", ".xz");
            control(&path).map(|files| String::from_utf8(files[0].content.clone()).unwrap())
        };
        let text = read(b"Package: a\nMaintainer: J\xf6rg\nDepends: b\nDescription: c\n \xe4\n");
        let expected =
            "Package: a\nMaintainer: J\u{fffd}rg\nDepends: b\nDescription: c\n \u{fffd}\n";
        assert_eq!(text.unwrap(), expected);
        // A replacement character that is there is a character.
        let there = "Package: a\nVersion: \u{fffd}\n";
        assert_eq!(read(there.as_bytes()).unwrap(), there);
        for (content, expected) in [
            (
                &b"Package: a\nMaintainer: J\xf6rg\nversion: 1\xb2\n"[..],
                "in a field that dpkg reads: version: 1\u{fffd}",
            ),
            (
                b"Package: a\nJ\xf6rg\n",
                "reading its control file: line 2 is not a `Name: value` field: \"J\u{fffd}rg\"",
            ),
        ] {
            let error = format!("{:#}", read(content).unwrap_err());
            assert!(error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn what_is_no_deb_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.deb");
        for (bytes, word) in [
            (
                &b"hello, world"[..],
                "expected an ar archive, found text: \"hello, w\"",
            ),
            (MAGIC, "looking for the member"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let Err(error) = data(&path) else {
                panic!("accepted")
            };
            assert!(format!("{error:#}").contains(word), "{error:#}");
        }
    }

    #[test]
    fn fields_are_found_and_folded_lines_kept() {
        let text = "Package: a\nDepends: b,\n c\nX: y\n";
        for (name, value) in [
            ("package", Some("a")),
            ("Depends", Some("b,\n c")),
            ("X", Some("y")),
            ("Pack", None),
        ] {
            assert_eq!(field(text, name), value);
        }
    }
}
