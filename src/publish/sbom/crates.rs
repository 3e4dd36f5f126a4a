//! The programs of this project that are in an image, each with the crates that it is made of, as the build of this program listed them.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::Component;

/// A line each: package of this project, crate, version, SHA-256 of the crate's archive.
const LIST: &str = include_str!(concat!(env!("OUT_DIR"), "/crates.txt"));
/// The programs of an image, and the packages of this project that they are of.
static PROGRAMS: [(&str, &str, &[u8]); 2] = [
    ("slipway-init", "initrd", crate::INIT_PROGRAM),
    ("slipway-node", "node", crate::NODE_PROGRAM),
];

/// The programs, with their crates.
pub(super) fn programs() -> impl Iterator<Item = Component> {
    let mut crates: BTreeMap<&str, Vec<Component>> = BTreeMap::new();
    for line in LIST.lines() {
        let mut words = line.split(' ');
        if let (Some(package), Some(name), Some(version), Some(sha256)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            let of = crates.entry(package).or_default();
            of.push(component(name, version, sha256));
        }
    }
    PROGRAMS.iter().map(move |&(name, package, program)| {
        let version = env!("CARGO_PKG_VERSION");
        let purl = format!("pkg:generic/{name}@{version}");
        let sha256 = HEXLOWER.encode(&Sha256::digest(program));
        let component = Component::program(name, version, &purl, &sha256);
        let crates = crates.remove(package).unwrap_or_default();
        let libraries = c_library().into_iter().chain([standard_library()]);
        component.made_of(super::RUST, crates.into_iter().chain(libraries))
    })
}

/// Rust's own library, which has no archive and no hash.
fn standard_library() -> Component {
    let version = env!("SLIPWAY_RUST");
    let purl = format!("pkg:github/rust-lang/rust@{}", super::encode(version));
    Component {
        hashes: Vec::new(),
        kind: "library".to_owned(),
        ..Component::program("rust", version, &purl, "")
    }
}

/// The C library, which the linker takes from the host that compiles; the revision of the host's distribution is part of the version.
fn c_library() -> Option<Component> {
    let version = env!("SLIPWAY_GLIBC");
    let purl = format!("pkg:generic/glibc@{}", super::encode(version));
    (!version.is_empty()).then(|| Component {
        hashes: Vec::new(),
        kind: "library".to_owned(),
        ..Component::program("glibc", version, &purl, "")
    })
}

fn component(name: &str, version: &str, sha256: &str) -> Component {
    let purl = format!(
        "pkg:cargo/{}@{}",
        super::encode(name),
        super::encode(version)
    );
    Component {
        kind: "library".to_owned(),
        ..Component::program(name, version, &purl, sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_have_the_crates_of_the_lock() {
        let lock = include_str!("../../../Cargo.lock");
        let programs: Vec<Component> = programs().collect();
        for (program, has, lacks) in [
            // PID 1 speaks TLS by rustls; only the node speaks to an API server. Macros are in neither.
            ("slipway-init", "rustls", "serde_derive"),
            ("slipway-node", "rustls", "serde_derive"),
        ] {
            let program = programs.iter().find(|found| found.name == program).unwrap();
            let names: Vec<&str> = program
                .parts
                .iter()
                .map(|part| part.name.as_str())
                .collect();
            assert!(names.contains(&has), "{names:?}");
            assert!(!names.contains(&lacks), "{names:?}");
            let (crates, [c_library, library]) = program.parts.split_last_chunk().unwrap();
            assert_eq!(library.name, "rust");
            assert_eq!(c_library.name, "glibc");
            assert!(c_library.version.starts_with("2."), "{c_library:?}");
            for part in crates {
                let entry = format!("name = \"{}\"\nversion = \"{}\"\n", part.name, part.version);
                assert!(lock.contains(&entry), "{entry}");
                assert!(lock.contains(&part.hashes[0].content), "{entry}");
            }
        }
    }
}
