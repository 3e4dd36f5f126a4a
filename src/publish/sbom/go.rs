//! The Go modules that a program was linked from, by the information that Go's linker writes into it.
//!
//! Format: `debug/buildinfo` and `runtime/debug` of Go's library, since Go 1.18: a section of its own, with a header of 32 bytes that begins
//! with [`MAGIC`]; behind it, each with its length as a varint, the version of Go and the modules, a line each, between two marks of 16 bytes.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::read::{Object as _, ObjectSection as _, ReadCache};

/// The section.
const SECTION: &str = ".go.buildinfo";
/// The first bytes of the header.
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Length of the header, bytes.
const HEADER: usize = 32;
/// The offset of its flags, and the one that says that texts follow.
const FLAGS: (usize, u8) = (15, 2);
/// Length of the mark at each end of the modules' text, bytes.
const MARK: usize = 16;

/// A module, and the version of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Its path; `stdlib` for Go's own library.
    pub(super) path: String,
    /// Its version, as `v1.2.3`; of Go's own library as `1.26.1`.
    pub(super) version: String,
}

/// The modules of a program, Go's own library first; none if it is not Go's or does not say them.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn modules(program: &Path) -> Result<Vec<Module>> {
    let about = || format!("reading {}", program.display());
    let file = File::open(program).with_context(about)?;
    // Reads the headers and the section, of a hundred megabytes.
    let cache = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&cache) else {
        return Ok(Vec::new());
    };
    let section = elf.section_by_name(SECTION);
    let data = section.and_then(|section| section.data().ok());
    Ok(data.and_then(read).unwrap_or_default())
}

/// The modules of the section's bytes.
fn read(section: &[u8]) -> Option<Vec<Module>> {
    if !section.starts_with(MAGIC) || section.get(FLAGS.0)? & FLAGS.1 == 0 {
        return None;
    }
    let (go, rest) = text(section.get(HEADER..)?)?;
    let (lines, _) = text(rest)?;
    let lines = lines.get(MARK..lines.len().checked_sub(MARK)?)?;
    let go = std::str::from_utf8(go).ok()?;
    let version = go.split(' ').next()?.strip_prefix("go")?;
    let mut modules = vec![Module {
        path: "stdlib".to_owned(),
        version: version.to_owned(),
    }];
    for line in std::str::from_utf8(lines).ok()?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, path, version, ..] = fields.as_slice() else {
            continue;
        };
        match *kind {
            "dep" => {}
            // The line behind a module says what is linked in its place.
            "=>" => {
                modules.pop();
            }
            // The program's own module, `mod`, is what it was compiled in.
            _ => continue,
        }
        modules.push(Module {
            path: (*path).to_owned(),
            version: (*version).to_owned(),
        });
    }
    Some(modules)
}

/// A text with its length before it, and what is behind.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (i, byte) in bytes.iter().enumerate().take(9) {
        length |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return bytes.get(i + 1..)?.split_at_checked(length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section of a program with this version of Go and these modules.
    fn section(go: &str, modules: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(HEADER, 0);
        bytes[FLAGS.0] = FLAGS.1;
        let modules = format!("{0}{modules}{0}", "m".repeat(MARK));
        for text in [go, &modules] {
            let mut length = text.len();
            while length > 0x7f {
                bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
                length >>= 7;
            }
            bytes.push(u8::try_from(length).unwrap());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    const LINES: &str = "path\tslipway/program\nmod\tslipway/program\t(devel)\t\n\
        dep\tgithub.com/a/b\tv1.2.3\th1:x=\ndep\tk8s.io/api\tv0.0.0\n=>\tk8s.io/api\tv0.36.3\th1:y=\nbuild\tCGO_ENABLED=0\n";

    #[test]
    fn modules_are_those_that_are_linked() {
        let found = read(&section("go1.26.1 X:nocoverageredesign", LINES)).unwrap();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|module| (module.path.as_str(), module.version.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("stdlib", "1.26.1"),
                ("github.com/a/b", "v1.2.3"),
                ("k8s.io/api", "v0.36.3")
            ]
        );
    }

    #[test]
    fn what_is_not_gos_has_none() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(modules(&own).unwrap(), []);
        let text = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(modules(text.path()).unwrap(), []);
        assert!(modules(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn damaged_information_is_none() {
        let whole = section("go1.26.1", LINES);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "{end}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            read(&damaged);
        }
    }
}
