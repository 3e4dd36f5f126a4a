//! A package for a test, written as deb(5) says.

use std::fs;
use std::path::Path;

/// Writes a package without dependencies: a script that runs when it is configured, and one file.
pub(super) fn write(path: &Path, name: &str, postinst: &str) {
    let control = format!(
        "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n\
         Description: Test\n"
    );
    let control = archive(&[
        ("./control", 0o644, control.as_bytes()),
        ("./postinst", 0o755, postinst.as_bytes()),
    ]);
    let data = archive(&[(&format!("./usr/share/{name}/read.me"), 0o644, b"text\n")]);
    let mut deb = b"!<arch>\n".to_vec();
    for (name, content) in [
        ("debian-binary", b"2.0\n".as_slice()),
        ("control.tar", &control),
        ("data.tar", &data),
    ] {
        let header = format!(
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            0,
            0,
            0,
            100_644,
            content.len()
        );
        deb.extend(header.as_bytes());
        deb.extend(content);
        if content.len() % 2 == 1 {
            deb.push(b'\n');
        }
    }
    fs::write(path, deb).unwrap();
}

fn archive(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, mode, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, path, *content).unwrap();
    }
    archive.into_inner().unwrap()
}
