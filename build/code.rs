//! The hash of the code that each step is made by, for the keys of its results: another code is another key, without a number that
//! somebody has to raise. It is of the sources alone, so that it is the same on every machine and in every build of them; what no
//! result depends on (tests, documentation comments) is left out.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// A step, or steps that are made by the same code.
pub(crate) struct Step {
    /// Its constant in `src/code.rs`.
    pub(crate) name: &'static str,
    /// Files and folders of its code, relative to the repository.
    pub(crate) paths: &'static [&'static str],
    /// The crates whose version decides about its bytes.
    pub(crate) crates: &'static [&'static str],
}

/// All steps. A file that uses a constant must be among the paths of its step, which a test of `src/code.rs` holds.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "ROOTFS",
        paths: &[
            "src/install",
            "src/install.rs",
            "src/layer",
            "src/layer.rs",
            "src/host/sandbox",
            "src/host/sandbox.rs",
        ],
        crates: &[
            "flate2",
            "zlib-rs",
            "liblzma",
            "liblzma-sys",
            "zstd",
            "zstd-sys",
            "tar",
        ],
    },
    Step {
        name: "LAYER",
        paths: &["src/layer", "src/layer.rs"],
        crates: &["tar"],
    },
    Step {
        name: "CONTENT",
        paths: &[
            "src/steps/layers",
            "src/steps/layers.rs",
            "src/layer",
            "src/layer.rs",
            "src/oci",
            "src/oci.rs",
            "src/host/sandbox",
            "src/host/sandbox.rs",
        ],
        crates: &[
            "flate2",
            "zlib-rs",
            "liblzma",
            "liblzma-sys",
            "zstd",
            "zstd-sys",
            "tar",
        ],
    },
    Step {
        name: "ROOT",
        paths: &[
            "src/steps/root",
            "src/steps/root.rs",
            "src/layer",
            "src/layer.rs",
            "src/format/erofs",
            "src/format/erofs.rs",
            "src/format/lz4.rs",
            "src/format/verity.rs",
        ],
        crates: &["tar", "zstd", "zstd-sys"],
    },
    Step {
        name: "KERNEL",
        paths: &[
            "src/steps/kernel",
            "src/steps/kernel.rs",
            "src/layer",
            "src/layer.rs",
        ],
        crates: &[
            "flate2",
            "zlib-rs",
            "liblzma",
            "liblzma-sys",
            "zstd",
            "zstd-sys",
        ],
    },
    Step {
        name: "INITRAMFS",
        paths: &[
            "src/steps/initramfs",
            "src/steps/initramfs.rs",
            "src/format/cpio.rs",
            "src/layer",
            "src/layer.rs",
        ],
        crates: &["liblzma", "liblzma-sys", "zstd", "zstd-sys"],
    },
    Step {
        name: "BOOTABLE",
        paths: &["src/steps/bootable.rs", "src/format/uki.rs", "image/src"],
        crates: &[],
    },
    Step {
        name: "DISK",
        paths: &[
            "src/steps/disk.rs",
            "src/format/fat",
            "src/format/fat.rs",
            "src/format/gpt.rs",
            "src/format/sparse.rs",
            "image/src",
        ],
        crates: &["gpt"],
    },
    Step {
        name: "OUTPUT",
        paths: &[
            "src/publish",
            "src/artifact",
            "src/artifact.rs",
            "src/format/gzip.rs",
        ],
        crates: &["flate2", "zlib-rs", "tar"],
    },
    Step {
        name: "CONTAINERS",
        paths: &[
            "src/steps/kubelet",
            "src/steps/kubelet.rs",
            "src/oci",
            "src/oci.rs",
            "src/layer",
            "src/layer.rs",
            "image/src",
        ],
        crates: &["flate2", "zlib-rs", "tar"],
    },
    Step {
        name: "PROGRAMS",
        paths: &[
            "src/lock/kubelet/coredns.rs",
            "src/lock/kubelet/module",
            "src/lock/kubelet/module.rs",
            "src/lock/kubelet/packages.rs",
            "src/lock/kubelet/release_module.rs",
            "src/lock/kubelet/toolchain.rs",
        ],
        crates: &[],
    },
    Step {
        name: "OWN_PROGRAMS",
        paths: &[
            "src/lock/kubelet/own_module.rs",
            "src/lock/kubelet/toolchain.rs",
        ],
        crates: &["tar"],
    },
];

/// The hash of a step's code below `repository`, as hexadecimal digits.
///
/// # Errors
/// If a path is not there, or cannot be read.
pub(crate) fn hash(repository: &Path, step: &Step) -> io::Result<String> {
    let mut files = BTreeMap::new();
    for path in step.paths {
        add(repository, path, &mut files)?;
    }
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (name, path) in &files {
        part(name.as_bytes());
        part(&counted(name, fs::read(path)?));
    }
    let lock = fs::read_to_string(repository.join("Cargo.lock"))?;
    for name in step.crates {
        part(name.as_bytes());
        part(versions(&lock, name).as_bytes());
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Adds a file, or all files of a folder but those of tests, by their names in the repository.
fn add(repository: &Path, name: &str, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    let path = repository.join(name);
    if !path.is_dir() {
        files.insert(name.to_owned(), path);
        return Ok(());
    }
    for entry in fs::read_dir(&path)? {
        let entry = entry?.file_name();
        let Some(entry) = entry.to_str() else {
            return Err(io::Error::other(format!("a name in {name} is not UTF-8")));
        };
        if !matches!(entry, "tests" | "tests.rs" | "testdata") {
            add(repository, &format!("{name}/{entry}"), files)?;
        }
    }
    Ok(())
}

/// What counts of a file: of Rust no documentation, and no tests at its end.
fn counted(name: &str, content: Vec<u8>) -> Vec<u8> {
    let (true, Ok(text)) = (name.ends_with(".rs"), std::str::from_utf8(&content)) else {
        return content;
    };
    let mut counted = String::new();
    for line in without_tests(text).lines() {
        if !["///", "//!"]
            .iter()
            .any(|start| line.trim_start().starts_with(start))
        {
            counted += line;
            counted.push('\n');
        }
    }
    counted.into_bytes()
}

/// A source without the module of its tests, which is its end, whatever attributes that has.
pub(crate) fn without_tests(text: &str) -> &str {
    const TESTS: &str = "#[cfg(test)]\n";
    let is_module = |mut rest: &str| {
        while rest.starts_with("#[") {
            rest = rest.split_once("]\n").map_or("", |(_, after)| after);
        }
        rest.starts_with("mod tests")
    };
    let mut places = text.match_indices(TESTS);
    let begin = places.find(|(at, _)| is_module(&text[at + TESTS.len()..]));
    begin.map_or(text, |(at, _)| &text[..at])
}

/// The versions of a crate in Cargo's lock; none if it is not there.
fn versions(lock: &str, name: &str) -> String {
    let name = format!("name = \"{name}\"");
    let mut lines = lock.lines();
    let mut found = String::new();
    while let Some(line) = lines.next() {
        if line == name {
            found += lines.next().unwrap_or_default();
            found.push('\n');
        }
    }
    found
}
