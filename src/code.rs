//! The code that makes each step, as a hash: part of the key of the step's results, so that a result never outlives the code that made
//! it. The build script computes them; `build/code.rs` has the files of each.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The hash of a step's code, hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(&'static str);

impl Code {
    /// The digits.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

/// Trees of unpacked packages: the root, the tools, the kubelet's container.
pub const ROOTFS: Code = Code(env!("SLIPWAY_CODE_ROOTFS"));
/// Layers whose key is not of their content.
pub const LAYER: Code = Code(env!("SLIPWAY_CODE_LAYER"));
/// Trees of archives and container images, and what the recipe's programs change.
pub const CONTENT: Code = Code(env!("SLIPWAY_CODE_CONTENT"));
/// The file system of the root, with its hash tree.
pub const ROOT: Code = Code(env!("SLIPWAY_CODE_ROOT"));
/// The kernel with its modules.
pub const KERNEL: Code = Code(env!("SLIPWAY_CODE_KERNEL"));
/// The initramfs, and the part of it that follows from the kernel.
pub const INITRAMFS: Code = Code(env!("SLIPWAY_CODE_INITRAMFS"));
/// The unified kernel image.
pub const BOOTABLE: Code = Code(env!("SLIPWAY_CODE_BOOTABLE"));
/// The disk.
pub const DISK: Code = Code(env!("SLIPWAY_CODE_DISK"));
/// Artifacts, and the files beside them.
pub const OUTPUT: Code = Code(env!("SLIPWAY_CODE_OUTPUT"));
/// The kubelet's container and the images of pods.
pub const CONTAINERS: Code = Code(env!("SLIPWAY_CODE_CONTAINERS"));
/// Programs that are compiled from Go modules.
pub const PROGRAMS: Code = Code(env!("SLIPWAY_CODE_PROGRAMS"));
/// The same of programs with releases of their own.
pub const OWN_PROGRAMS: Code = Code(env!("SLIPWAY_CODE_OWN_PROGRAMS"));

/// A program that builds images and writes locks, as `build-report.json` and locks name it. It is information: no key has it, and no
/// image depends on it. The same sources give the same one on every machine. Unknown fields, as of a later version, are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Builder {
    /// Its version.
    pub version: String,
    /// The hash of the code of all its steps: programs of one version may differ by it.
    pub code: String,
}

impl Builder {
    /// This program.
    #[must_use]
    pub fn this() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            code: of_all(),
        }
    }
}

/// The hash of the code of all steps together.
fn of_all() -> String {
    let all = [
        ROOTFS,
        LAYER,
        CONTENT,
        ROOT,
        KERNEL,
        INITRAMFS,
        BOOTABLE,
        DISK,
        OUTPUT,
        CONTAINERS,
        PROGRAMS,
        OWN_PROGRAMS,
    ];
    let all: String = all.map(Code::as_str).join(" ");
    HEXLOWER.encode(&Sha256::digest(all))
}

#[cfg(test)]
#[path = "../build/code.rs"]
mod table;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

    const ALL: &[(&str, Code)] = &[
        ("ROOTFS", ROOTFS),
        ("LAYER", LAYER),
        ("CONTENT", CONTENT),
        ("ROOT", ROOT),
        ("KERNEL", KERNEL),
        ("INITRAMFS", INITRAMFS),
        ("BOOTABLE", BOOTABLE),
        ("DISK", DISK),
        ("OUTPUT", OUTPUT),
        ("CONTAINERS", CONTAINERS),
        ("PROGRAMS", PROGRAMS),
        ("OWN_PROGRAMS", OWN_PROGRAMS),
    ];

    /// The compiled hash is that of the sources, wherever the repository is.
    #[test]
    fn each_step_has_the_hash_of_its_code() {
        assert_eq!(ALL.len(), table::STEPS.len());
        let all: Vec<&str> = ALL.iter().map(|(_, code)| code.as_str()).collect();
        let all = HEXLOWER.encode(&Sha256::digest(all.join(" ")));
        assert_eq!(of_all(), all, "a step is not part of it");
        for (step, (name, code)) in table::STEPS.iter().zip(ALL) {
            assert_eq!(step.name, *name);
            let folder = copy(step);
            let found = table::hash(folder.path(), step).unwrap();
            assert_eq!(found, code.as_str(), "{name}");
            assert_eq!(found.len(), 64);
        }
    }

    #[test]
    fn every_file_of_a_step_counts_and_its_documentation_and_tests_do_not() {
        for step in table::STEPS {
            for path in step.paths {
                let folder = copy(step);
                let changed = first_file(&folder.path().join(path));
                let text = fs::read_to_string(&changed).unwrap();
                let hash = || table::hash(folder.path(), step).unwrap();
                let before = hash();
                let allowed = "#[allow(\n    dead_code,\n    reason = \"a test\"\n)]\n";
                let documented =
                    format!("/// Another word.\n{text}#[cfg(test)]\n{allowed}mod tests {{}}\n");
                let code = format!("const OTHER: u8 = 1;\n{text}");
                fs::write(&changed, code).unwrap();
                assert_ne!(hash(), before, "{}: {}", step.name, changed.display());
                let is_rust = changed.extension().is_some_and(|kind| kind == "rs");
                if is_rust && !text.contains("#[cfg(test)]") && text.ends_with('\n') {
                    fs::write(&changed, documented).unwrap();
                    assert_eq!(hash(), before, "{}: {}", step.name, changed.display());
                }
            }
            let mut folder = copy(step);
            for name in step.crates {
                let before = table::hash(folder.path(), step).unwrap();
                let lock = folder.path().join("Cargo.lock");
                let text = fs::read_to_string(&lock).unwrap();
                let line = format!("name = \"{name}\"\nversion = \"");
                assert!(text.contains(&line), "{name}");
                fs::write(&lock, text.replace(&line, &format!("{line}9"))).unwrap();
                assert_ne!(table::hash(folder.path(), step).unwrap(), before, "{name}");
                folder = copy(step);
            }
        }
    }

    /// A step whose own file is not hashed would keep what its old code made.
    #[test]
    fn whoever_uses_a_code_is_part_of_it_and_none_has_a_number() {
        let mut users = 0;
        each_source(&Path::new(REPOSITORY).join("src"), &mut |path, text| {
            let text = table::without_tests(text);
            let name = path.strip_prefix(REPOSITORY).unwrap().to_str().unwrap();
            for call in text.split("Key::of(").skip(1) {
                let arguments = call.split_once(')').map_or("", |(before, _)| before);
                let version = arguments
                    .rsplit(',')
                    .map(str::trim)
                    .find(|word| !word.is_empty());
                let Some(used) = version.and_then(|word| word.strip_prefix("code::")) else {
                    panic!("{name}: Key::of({arguments}) has no hash of its code");
                };
                let step = table::STEPS.iter().find(|step| step.name == used).unwrap();
                let covered = step
                    .paths
                    .iter()
                    .any(|path| name == *path || name.starts_with(&format!("{path}/")));
                assert!(
                    covered,
                    "{name} is not among the paths of {used} in build/code.rs"
                );
                users += 1;
            }
        });
        assert!(users > 15, "{users}");
    }

    /// A copy of a step's files, as they are in the repository.
    fn copy(step: &table::Step) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut names = vec!["Cargo.lock".to_owned()];
        names.extend(step.paths.iter().map(|path| (*path).to_owned()));
        while let Some(name) = names.pop() {
            let (from, to) = (Path::new(REPOSITORY).join(&name), folder.path().join(&name));
            if from.is_dir() {
                for entry in fs::read_dir(from).unwrap() {
                    let entry = entry.unwrap().file_name().into_string().unwrap();
                    names.push(format!("{name}/{entry}"));
                }
            } else {
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(from, to).unwrap();
            }
        }
        folder
    }

    /// The file itself, or the first source file below a folder.
    fn first_file(path: &Path) -> std::path::PathBuf {
        let mut found = Vec::new();
        if path.is_file() {
            return path.to_owned();
        }
        each_source(path, &mut |path, _| found.push(path.to_owned()));
        found.retain(|path| {
            !path
                .components()
                .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
        });
        // Sources of another language.
        if found.is_empty() {
            found.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        found.sort();
        found.swap_remove(0)
    }

    fn each_source(folder: &Path, seen: &mut dyn FnMut(&Path, &str)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                each_source(&path, seen);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                seen(&path, &text);
            }
        }
    }
}
