//! Archives come back as they were packed, and none leads out of its folder.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::share::pack::{Limits, pack};

/// A folder with one file of each kind that results have.
fn sample(folder: &Path) {
    fs::create_dir_all(folder.join("usr/bin")).unwrap();
    fs::write(folder.join("usr/bin/su"), "program").unwrap();
    fs::hard_link(folder.join("usr/bin/su"), folder.join("usr/bin/again")).unwrap();
    symlink("usr/bin", folder.join("bin")).unwrap();
    let long = "long".repeat(40);
    fs::write(folder.join(&long), vec![b'x'; 70_000]).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    let mut end = &sparse;
    end.seek(SeekFrom::End(-3)).unwrap();
    end.write_all(b"end").unwrap();
    lchown(folder.join("usr/bin/su"), Some(7), Some(8)).unwrap();
    let mode = |path: &str, mode: u32| {
        fs::set_permissions(folder.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("usr/bin/su", 0o4755);
    xattr::set(folder.join(&long), "user.note", b"\0value\n").unwrap();
    mode("usr/bin", 0o555);
    fs::write(folder.join(".slipway-made"), "this boot").unwrap();
}

fn packed(folder: &Path, to: &Path) -> crate::store::Object {
    let limits = Limits {
        packed: LIMIT,
        unpacked: LIMIT,
    };
    pack(folder, &mut File::create(to).unwrap(), limits).unwrap()
}

#[test]
fn a_result_comes_back_with_owners_rights_links_holes_and_attributes() {
    let place = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| place.path().join(name));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    sample(&from);
    let archive = place.path().join("archive");
    let first = packed(&from, &archive);
    assert_eq!(first.size, fs::metadata(&archive).unwrap().len());
    assert_eq!(
        crate::format::digest::sha256(&archive).unwrap(),
        first.sha256
    );
    unpack(&archive, &to).unwrap();
    let meta = |path: &str| fs::symlink_metadata(to.join(path)).unwrap();
    let program = meta("usr/bin/su");
    assert_eq!(
        (program.mode() & 0o7777, program.uid(), program.gid()),
        (0o4755, 7, 8)
    );
    assert_eq!(program.ino(), meta("usr/bin/again").ino());
    assert_eq!(meta("usr/bin").mode() & 0o777, 0o555);
    assert_eq!(fs::read_link(to.join("bin")).unwrap(), Path::new("usr/bin"));
    let sparse = meta("sparse");
    assert_eq!(sparse.len(), 8 << 20);
    assert!(sparse.blocks() * 512 < 1 << 20, "{}", sparse.blocks());
    assert!(fs::read(to.join("sparse")).unwrap().ends_with(b"\0end"));
    // What the cache itself notes is not part of a result.
    assert!(!to.join(".slipway-made").exists());
    // Other times, and the same bytes: the archive is that of the files.
    assert_eq!(packed(&to, &archive), first);
}

fn archive_of(place: &Path, items: &[(EntryType, &str, &str)]) -> PathBuf {
    let mut out = tar::Builder::new(Vec::new());
    for (kind, path, rest) in items {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let is_file = *kind == EntryType::Regular;
        if !is_file {
            header.as_old_mut().linkname[..rest.len()].copy_from_slice(rest.as_bytes());
        }
        header.set_entry_type(*kind);
        header.set_size(if is_file { rest.len() as u64 } else { 0 });
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        let content = if is_file { rest.as_bytes() } else { &[] };
        out.append(&header, content).unwrap();
    }
    let path = place.join("archive");
    let bytes = zstd::encode_all(out.into_inner().unwrap().as_slice(), 1).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn errors_of_the_host_are_not_those_of_the_archive() {
    let place = tempfile::tempdir().unwrap();
    for (number, expected) in [
        (Errno::ENOSPC, true),
        (Errno::EDQUOT, true),
        (Errno::EACCES, true),
        (Errno::EPERM, true),
        (Errno::EINVAL, true),
        (Errno::EOPNOTSUPP, true),
        (Errno::EIO, true),
        (Errno::EEXIST, false),
        (Errno::ENOENT, false),
        (Errno::ENAMETOOLONG, false),
    ] {
        let error = io::Error::from_raw_os_error(number as i32);
        let error = anyhow::Error::from(error).context("setting user.note");
        assert_eq!(is_of_host(&error), expected, "{number}");
    }
    let to = place.path().join("to");
    for (bytes, name) in [(&b"no archive"[..], "text"), (b"", "empty")] {
        let archive = place.path().join(name);
        fs::write(&archive, bytes).unwrap();
        let error = unpack(&archive, &to).unwrap_err();
        assert!(!is_of_host(&error), "{name}: {error:#}");
    }
    let archive = archive_of(place.path(), &[(EntryType::Regular, "../x", "")]);
    assert!(!is_of_host(&unpack(&archive, &to).unwrap_err()));
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() - 5]).unwrap();
    assert!(!is_of_host(&unpack(&archive, &to).unwrap_err()));
}

#[test]
fn no_path_leads_out_of_the_folder() {
    use EntryType as T;
    for (items, words) in [
        (&[(T::Regular, "../x", "")][..], "leads out"),
        (&[(T::Regular, "/x", "")], "leads out"),
        (&[(T::Regular, "a/x", "")], "is not a folder before it"),
        (
            &[(T::Symlink, "a", "/etc"), (T::Regular, "a/x", "")],
            "is not a folder before it",
        ),
        (&[(T::Link, "x", "../../etc/passwd")], "leads out"),
        (
            &[(T::Symlink, "a", "/etc"), (T::Link, "x", "a/passwd")],
            "a hard link below a, which is not a folder before it",
        ),
        (
            &[(T::Symlink, "a", "/etc/passwd"), (T::Link, "x", "a")],
            "not a file",
        ),
        (
            &[(T::Symlink, "a", "/tmp/x"), (T::Regular, "a", "x")],
            "File exists",
        ),
        (&[(T::Char, "null", "")], "kind Char"),
        (&[], "is empty"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("to");
        fs::create_dir(&to).unwrap();
        let archive = archive_of(place.path(), items);
        let error = format!("{:#}", unpack(&archive, &to).unwrap_err());
        assert!(error.contains(words), "{items:?}: {error}");
    }
    let place = tempfile::tempdir().unwrap();
    let path = archive_of(place.path(), &[(T::Directory, ".", "")]);
    unpack(&path, place.path()).unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    assert!(unpack(&path, place.path()).is_err());
}
