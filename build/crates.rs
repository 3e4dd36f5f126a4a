//! The crates that each embedded program consists of, for the SBOM of an image: `crates.txt` in `OUT_DIR`, a line each of package, crate,
//! version and SHA-256 of its archive, as `Cargo.lock` has it. Crates of this workspace, macros and build scripts are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the list.
const FILE: &str = "crates.txt";

/// Writes the list of the crates of these packages.
#[allow(
    clippy::disallowed_methods,
    reason = "a build script starts Cargo itself"
)]
pub(crate) fn write(root: &Path, packages: &[&str]) {
    let target = env::var("TARGET").expect("Cargo sets TARGET");
    let said = Command::new(env::var_os("CARGO").expect("Cargo sets CARGO"))
        .args(["tree", "--locked", "--edges=normal,no-proc-macro"])
        .args(["--prefix=depth", "--format={p}", "--no-dedupe", "--target"])
        .arg(&target)
        .args(
            packages
                .iter()
                .map(|package| format!("--package={package}")),
        )
        .current_dir(root)
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .output()
        .expect("cargo starts");
    assert!(
        said.status.success(),
        "listing the crates of the node's programs failed: {}",
        String::from_utf8_lossy(&said.stderr)
    );
    let lock = fs::read_to_string(root.join("Cargo.lock")).expect("Cargo.lock is there");
    let out = env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR");
    let text = list(&String::from_utf8_lossy(&said.stdout), &checksums(&lock));
    fs::write(Path::new(&out).join(FILE), text).expect("the list is written");
}

/// The version of Rust, whose library is in each program.
#[allow(
    clippy::disallowed_methods,
    reason = "a build script asks the compiler itself"
)]
pub(crate) fn rust() -> String {
    let said = Command::new(env::var_os("RUSTC").expect("Cargo sets RUSTC"))
        .arg("--version")
        .output()
        .expect("rustc starts");
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.split(' ').nth(1);
    version.expect("rustc tells its version").to_owned()
}

/// The C library that is in each program, as the linker's archive of it tells.
pub(crate) struct CLibrary {
    /// The archive, if the linker has one.
    pub(crate) archive: Option<PathBuf>,
    /// `2.41-12+deb13u1`; none if it is not GNU's.
    pub(crate) glibc: Option<String>,
}

/// The C library of this host's linker. A host without the static one can check the sources; linking says what is missing.
#[allow(
    clippy::disallowed_methods,
    reason = "a build script asks the linker itself"
)]
pub(crate) fn c_library() -> CLibrary {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let said = Command::new(linker)
        .arg("-print-file-name=libc.a")
        .output()
        .expect("the linker starts");
    let archive = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    let bytes = fs::read(&archive).ok();
    CLibrary {
        glibc: bytes.as_deref().and_then(glibc).map(str::to_owned),
        archive: bytes.is_some().then_some(archive),
    }
}

/// The version in glibc's banner, `GNU C Library (Debian GLIBC 2.41-12+deb13u1) stable release version 2.41.`: the distribution's, where it
/// begins with the release.
fn glibc(archive: &[u8]) -> Option<&str> {
    const BANNER: &[u8] = b"GNU C Library (";
    let at = archive
        .windows(BANNER.len())
        .position(|bytes| bytes == BANNER)?;
    let line = archive[at + BANNER.len()..].split(|byte| *byte == b'\n');
    let line = std::str::from_utf8(line.into_iter().next()?).ok()?;
    let (distribution, rest) = line.split_once(") ")?;
    let release = rest.split("version ").nth(1)?.trim_end_matches('.');
    let own = distribution.rsplit(' ').next()?;
    Some(match own.starts_with(release) {
        true => own,
        false => release,
    })
}

/// The lines of a list, from the trees that Cargo prints one behind the other.
fn list(trees: &str, checksums: &BTreeMap<(&str, &str), &str>) -> String {
    let mut package = "";
    let mut lines = BTreeSet::new();
    for line in trees.lines() {
        let text = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let depth = &line[..line.len() - text.len()];
        let mut words = text.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        if depth == "0" {
            package = name;
        }
        let version = version.trim_start_matches('v');
        if let Some(checksum) = checksums.get(&(name, version)) {
            lines.insert(format!("{package} {name} {version} {checksum}\n"));
        }
    }
    lines.into_iter().collect()
}

/// SHA-256 of each crate with an archive, by name and version, from the text of `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.split("[[package]]").skip(1);
    packages
        .filter_map(|package| {
            let value = |key: &str| {
                let mut lines = package.lines();
                lines.find_map(|line| {
                    let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
                    value.strip_suffix('"')
                })
            };
            Some(((value("name")?, value("version")?), value("checksum")?))
        })
        .collect()
}
