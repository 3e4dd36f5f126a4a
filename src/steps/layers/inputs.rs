//! Inputs of a program that runs at build time: files and folders of the host, hashed and copied to its working folder.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

use crate::format::hashed_file::HashedFile;
use crate::host::cache::{Cache, KeyBuilder};
use crate::host::tree;
use crate::recipe::Run;

/// The inputs of a program, as they were when they were hashed: what is copied is that, or an error.
pub(super) struct Inputs(Vec<Input>);

/// A path of the working folder.
struct Input {
    /// Relative to the working folder.
    path: PathBuf,
    content: Content,
}

enum Content {
    Folder,
    /// A symbolic link with its target as written.
    Link(PathBuf),
    File {
        file: HashedFile,
        mode: u32,
    },
}

impl Inputs {
    /// Hashes the inputs, with all that is in their folders.
    ///
    /// # Errors
    /// If one cannot be read, or is neither file, folder nor link.
    pub(super) fn hash(cache: &Cache, run: &Run) -> Result<Self> {
        let mut inputs = Vec::new();
        for (name, path) in &run.inputs {
            let about = || format!("reading the input {}", path.display());
            let meta = fs::metadata(path).with_context(about)?;
            if !meta.is_dir() {
                inputs.push(Input::file(cache, name.into(), path, &meta)?);
                continue;
            }
            inputs.push(Input {
                path: name.into(),
                content: Content::Folder,
            });
            for item in tree::walk(path).with_context(about)? {
                let inside = Path::new(name).join(item.inside.trim_start_matches('/'));
                let content = if item.meta.is_dir() {
                    Content::Folder
                } else if item.meta.is_symlink() {
                    Content::Link(fs::read_link(&item.path).with_context(about)?)
                } else {
                    inputs.push(Input::file(cache, inside, &item.path, &item.meta)?);
                    continue;
                };
                inputs.push(Input {
                    path: inside,
                    content,
                });
            }
        }
        Ok(Self(inputs))
    }

    /// Adds them to the key of a step.
    pub(super) fn add_to(&self, mut key: KeyBuilder) -> KeyBuilder {
        for input in &self.0 {
            key = key.text("input", &input.path.to_string_lossy());
            key = match &input.content {
                Content::Folder => key.text("kind", "folder"),
                Content::Link(target) => key.text("link", &target.to_string_lossy()),
                Content::File { file, mode } => key
                    .bytes("mode", &mode.to_le_bytes())
                    .text("file", &file.text()),
            };
        }
        key
    }

    /// Copies them to the folder `to`, which is made. All have the time `epoch`, as the root's files: a program may copy it or pack it.
    ///
    /// # Errors
    /// If a file differs from what was hashed, or cannot be copied.
    pub(super) fn copy(&self, to: &Path, epoch: u64) -> Result<()> {
        fs::create_dir(to)?;
        for input in &self.0 {
            let path = to.join(&input.path);
            let about = || format!("copying the input {}", input.path.display());
            match &input.content {
                Content::Folder => fs::create_dir(&path).with_context(about)?,
                Content::Link(target) => {
                    std::os::unix::fs::symlink(target, &path).with_context(about)?;
                }
                Content::File { file, mode } => {
                    let mut copy = fs::File::create(&path).with_context(about)?;
                    io::copy(&mut file.open()?, &mut copy).with_context(about)?;
                    copy.set_permissions(Permissions::from_mode(*mode))
                        .with_context(about)?;
                }
            }
        }
        // Last: each new entry changes the time of the folder around it.
        let time = TimeSpec::new(i64::try_from(epoch)?, 0);
        let paths = self.0.iter().map(|input| to.join(&input.path));
        for path in paths.chain([to.to_owned()]) {
            utimensat(
                AT_FDCWD,
                &path,
                &time,
                &time,
                UtimensatFlags::NoFollowSymlink,
            )
            .with_context(|| format!("setting the time of {}", path.display()))?;
        }
        Ok(())
    }
}

impl Input {
    /// Of a mode only whether it is executable: the umask of a checkout must not affect the image.
    fn file(cache: &Cache, path: PathBuf, from: &Path, meta: &fs::Metadata) -> Result<Self> {
        if !meta.is_file() {
            bail!(
                "the input {} is not a file, a folder or a link",
                from.display()
            );
        }
        let is_executable = meta.permissions().mode() & 0o100 != 0;
        let content = Content::File {
            file: cache.hashed(from)?,
            mode: if is_executable { 0o755 } else { 0o644 },
        };
        Ok(Self { path, content })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::cache::Key;

    #[test]
    fn inputs_are_copied_as_they_were_hashed_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let cache = Cache::at(at("cache")).unwrap();
        fs::create_dir_all(at("rules/sub")).unwrap();
        fs::write(at("rules/sub/a"), "A").unwrap();
        fs::set_permissions(at("rules/sub/a"), Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("sub/a", at("rules/link")).unwrap();
        fs::write(at("seed"), "one").unwrap();
        let run = Run {
            inputs: BTreeMap::from([
                ("rules".to_owned(), at("rules")),
                ("seed".to_owned(), at("seed")),
            ]),
            ..Run::default()
        };
        let key = |inputs: &Inputs| inputs.add_to(Key::of_data("test", 1)).finish();
        let inputs = Inputs::hash(&cache, &run).unwrap();
        inputs.copy(&at("copy"), 1).unwrap();
        assert_eq!(fs::read(at("copy/rules/link")).unwrap(), b"A");
        assert_eq!(fs::read(at("copy/seed")).unwrap(), b"one");
        let mode = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("copy/rules/sub/a"), 0o755);
        assert_eq!(mode("copy/seed"), 0o644);
        // What comes later is in neither the key nor the copy.
        fs::write(at("rules/late"), "").unwrap();
        inputs.copy(&at("second"), 1).unwrap();
        assert!(!at("second/rules/late").exists());
        assert_ne!(key(&Inputs::hash(&cache, &run).unwrap()), key(&inputs));
        fs::write(at("seed"), "two").unwrap();
        let error = format!("{:#}", inputs.copy(&at("third"), 1).unwrap_err());
        assert!(error.contains("seed changed during the build"), "{error}");
        // A pipe would be waited for.
        nix::unistd::mkfifo(&at("rules/pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = Inputs::hash(&cache, &run).err().unwrap().to_string();
        assert!(error.contains("pipe is not a file"), "{error}");
    }

    /// A program that packs them with their times makes the same bytes in each build.
    #[test]
    fn files_folders_and_links_have_the_time_of_the_image() {
        use std::os::unix::fs::MetadataExt as _;

        const EPOCH: i64 = 1_700_000_000;
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let cache = Cache::at(at("cache")).unwrap();
        fs::create_dir_all(at("rules/sub")).unwrap();
        fs::write(at("rules/sub/a"), "A").unwrap();
        // To nothing: the time is the link's own.
        std::os::unix::fs::symlink("gone", at("rules/link")).unwrap();
        let run = Run {
            inputs: BTreeMap::from([("rules".to_owned(), at("rules"))]),
            ..Run::default()
        };
        let inputs = Inputs::hash(&cache, &run).unwrap();
        inputs.copy(&at("copy"), EPOCH.unsigned_abs()).unwrap();
        for path in ["", "rules", "rules/link", "rules/sub", "rules/sub/a"] {
            let meta = fs::symlink_metadata(at("copy").join(path)).unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (EPOCH, 0), "{path}");
        }
    }
}
