//! Archives as other writers make them, and damaged ones.

use super::*;
use crate::layer::stream::{Form, Stream};
use crate::layer::{Entry, tree};
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// A header of ustar's format.
fn header(kind: EntryType, path: &str, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(1);
    header.set_gid(2);
    header.set_cksum();
    header
}

/// Members of this kind, name and content, one after the other.
fn archive(members: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, path, content) in members {
        out.extend_from_slice(header(*kind, path, content.len() as u64).as_bytes());
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// Records as Go writes them, by name.
fn pax(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in pairs {
        crate::layer::stream::record(&mut out, key, value);
    }
    out
}

/// All members with their contents. Another reader passes over the contents and finds the same members.
fn read(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>> {
    let members = || {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Members::of_file(file)
    };
    let (mut reading, mut passing) = (members()?, members()?);
    let mut all = Vec::new();
    loop {
        let (one, other) = (reading.next(), passing.next());
        let Some(member) = one? else {
            assert!(other?.is_none());
            return Ok(all);
        };
        let other = other?.unwrap();
        assert_eq!(
            (&member.path, member.offset, &member.xattrs),
            (&other.path, other.offset, &other.xattrs)
        );
        let mut content = Vec::new();
        reading.content().read_to_end(&mut content)?;
        all.push((member, content));
    }
}

#[test]
fn a_value_may_have_line_feeds_and_zeros_and_hides_no_other_record() {
    let long = "d/".repeat(80) + "f";
    // What a reader that splits lines would take for a record.
    let value = b"\n\0\n11 path=/x\n\n=\0\xff\n";
    let records = pax(&[
        ("SCHILY.xattr.security.capability", &[1, 0, 0, 2, 10, 0, 10]),
        ("SCHILY.xattr.user.empty", b""),
        ("SCHILY.xattr.user.x", value),
        ("mtime", b"1.5"),
        ("path", long.as_bytes()),
        ("uid", b"4000000000"),
    ]);
    let bytes = archive(&[
        (EntryType::XGlobalHeader, "g", &pax(&[("comment", b"a\nb")])),
        (EntryType::XHeader, "x", &records),
        (EntryType::Regular, "short", b"content"),
        (EntryType::Regular, "after", b""),
    ]);
    let found = read(&bytes).unwrap();
    let (member, content) = &found[0];
    assert_eq!(member.path, long.as_bytes());
    assert_eq!(
        (member.uid, member.gid, member.mode),
        (4_000_000_000, 2, 0o644)
    );
    assert_eq!(content, b"content");
    let at = usize::try_from(member.offset).unwrap();
    assert_eq!(&bytes[at..at + 7], b"content");
    let expected = [
        (
            "security.capability".to_owned(),
            vec![1, 0, 0, 2, 10, 0, 10],
        ),
        ("user.empty".to_owned(), Vec::new()),
        ("user.x".to_owned(), value.to_vec()),
    ];
    assert_eq!(member.xattrs, expected);
    // The records are of one member.
    assert_eq!(found[1].0.path, b"after");
    assert!(found[1].0.xattrs.is_empty() && found[1].0.uid == 1);
}

#[test]
fn every_byte_of_an_attribute_comes_back_from_our_own_streams() {
    let every: Vec<u8> = (0..=255).collect();
    let mut file = Entry::file(format!("/{}", "f".repeat(150)), 0o755, "");
    file.xattrs = vec![("user.x".into(), every)];
    let mut stream = Stream::new(Vec::new());
    stream.header(&file, Form::File(3), 0).unwrap();
    stream.content(&mut &b"abc"[..], 3).unwrap();
    stream.end().unwrap();
    let bytes = stream.into_inner().unwrap();
    let (member, content) = read(&bytes).unwrap().remove(0);
    assert_eq!(content, b"abc");
    let entry = tree::from_member(member, Path::new("a.tar"), "")
        .unwrap()
        .unwrap();
    assert_eq!((entry.path, entry.xattrs), (file.path, file.xattrs));
}

#[test]
fn long_names_of_gnu_and_of_pax_are_read_and_what_has_no_content_is_not_skipped() {
    let long = "n".repeat(300);
    let mut out = tar::Builder::new(Vec::new());
    let mut gnu = Header::new_gnu();
    gnu.set_uid(0);
    gnu.set_gid(0);
    gnu.set_size(2);
    gnu.set_mode(0o600);
    out.append_data(&mut gnu, &long, &b"ab"[..]).unwrap();
    let mut link = Header::new_gnu();
    link.set_uid(0);
    link.set_gid(0);
    link.set_entry_type(EntryType::Symlink);
    link.set_size(0);
    link.set_mode(0o777);
    out.append_link(&mut link, "l", &long).unwrap();
    let found = read(&out.into_inner().unwrap()).unwrap();
    assert_eq!(
        (&found[0].0.path, &found[0].1[..]),
        (&long.clone().into_bytes(), &b"ab"[..])
    );
    assert_eq!(found[1].0.link, long.as_bytes());
    // A folder whose header has a size, before a file.
    let mut bytes = header(EntryType::Directory, "d", 4096).as_bytes().to_vec();
    bytes.extend(archive(&[
        (EntryType::Regular, "d/f", b"x"),
        (EntryType::Regular, "old/", b""),
    ]));
    let found = read(&bytes).unwrap();
    assert_eq!(found[1].0.path, b"d/f");
    assert_eq!(found[2].0.kind, EntryType::Directory);
}

#[test]
fn damaged_archives_are_refused() {
    let file = (EntryType::Regular, "f", &b"x"[..]);
    let with = |records: &[u8]| archive(&[(EntryType::XHeader, "x", records), file]);
    let mut sum = archive(&[file]);
    sum[0] = b'g';
    let whole = archive(&[(EntryType::Regular, "f", &[7; 2000])]);
    for (bytes, words) in [
        (with(b"99 path=x\n"), "damaged PAX record 0 bytes into"),
        (
            with(b"10 path=x\n8 path=x\n"),
            "damaged PAX record 10 bytes",
        ),
        (with(b"x path=x\n"), "damaged PAX record"),
        (with(b"0 path=x\n"), "damaged PAX record"),
        (with(b"9 pathxx\n"), "without a value"),
        (with(b"10 size=x\n"), "the PAX record size is not a number"),
        (with(&pax(&[("GNU.sparse.major", b"1")])), "--sparse"),
        (sum, "wrong checksum"),
        (b"<html>no archive</html>".to_vec(), "inside a header"),
        (whole[..1500].to_vec(), ""),
    ] {
        let error = format!("{:#}", read(&bytes).unwrap_err());
        assert!(error.contains(words), "{words}: {error}");
    }
    let empty = pax(&[("path", b"long"), ("path", b"")]);
    assert_eq!(read(&with(&empty)).unwrap()[0].0.path, b"f");
    assert!(read(&[]).unwrap().is_empty());
    // The zeros after the last member may be missing.
    let cut = archive(&[file]);
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(&path, &cut[..513]).unwrap();
    let mut members = Members::of_file(File::open(&path).unwrap()).unwrap();
    assert!(members.next().unwrap().is_some() && members.next().unwrap().is_none());
}
