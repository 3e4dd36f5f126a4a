//! Layer: files that are laid over a root file system, and their sorted tar stream.

pub(crate) mod archive;
pub(crate) mod changes;
pub(crate) mod members;
pub(crate) mod merge;
pub(crate) mod reserved;
pub(crate) mod stream;
pub(crate) mod tree;
pub mod usage;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::Result;

use crate::code;
use crate::format::hashed_file::HashedFile;
use crate::host::cache::{Cache, Key};

/// Files to be laid over a root: later layers win over earlier ones and over the tree.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The entries, sorted by path, each path once.
    pub entries: Vec<Entry>,
    /// Hash of its content.
    pub key: Key,
    /// Where its files come from.
    pub writer: Writer,
    /// Where the recipe asks for it, if it is not one of its files.
    pub origin: Option<String>,
    /// What the output folder tells of it, as JSON: how it was made.
    pub record: Option<serde_json::Value>,
}

/// Where the files of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A package, whose files a recipe may replace.
    Package,
    /// Slipway, whose files a recipe may not replace.
    Slipway,
    /// The files of the recipe.
    Recipe,
}

/// One path of a layer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// Absolute path inside the root, without `.` and `..`.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Its kind and content.
    pub kind: Kind,
    /// Extended attributes, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(String, Vec<u8>)>,
}

/// Kind and content of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// A folder. Over an existing folder it changes mode and owner and keeps the content.
    Directory,
    /// A regular file.
    File(Source),
    /// Another name of a file of the same layer, by its absolute path.
    HardLink(String),
    /// A symbolic link and its target as written.
    Symlink(String),
    /// Removes the path from lower layers, with its content.
    Remove,
}

/// The source of a file's content.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Source {
    /// In memory.
    Bytes(Vec<u8>),
    /// A file of the host, which must not change while it is used.
    Path(PathBuf),
    /// A file of the host that has been hashed, and that is not read with another content.
    Hashed(HashedFile),
    /// A range of a file of the host.
    Range {
        /// The file.
        file: PathBuf,
        /// First byte.
        offset: u64,
        /// Size in bytes.
        size: u64,
    },
}

impl Source {
    /// The whole content.
    ///
    /// # Errors
    /// If the host's file cannot be read, or is not what was hashed.
    pub fn read(&self) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Path(path) => fs::read(path)?,
            Self::Hashed(file) => file.read()?,
            Self::Range { file, offset, size } => {
                let mut bytes = vec![0; usize::try_from(*size)?];
                File::open(file)?.read_exact_at(&mut bytes, *offset)?;
                bytes
            }
        })
    }
}

/// The bits by which a program gets the rights of its file's owner or group.
pub(crate) const SET_ID: u32 = 0o6000;

impl Entry {
    /// Whether it gives who runs it the rights of its owner or group. The bits mean something else at a folder.
    #[must_use]
    pub fn gives_rights(&self) -> bool {
        !matches!(self.kind, Kind::Directory) && self.mode & SET_ID != 0
    }

    /// The same without the bits that give rights.
    #[must_use]
    pub fn without_set_id(mut self) -> Self {
        if self.gives_rights() {
            self.mode &= !SET_ID;
        }
        self
    }

    /// A folder owned by root.
    #[must_use]
    pub fn directory(path: impl Into<String>, mode: u32) -> Self {
        Self::of(path, mode, Kind::Directory)
    }

    /// A file owned by root.
    #[must_use]
    pub fn file(path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        Self::of(path, mode, Kind::File(Source::Bytes(content.into())))
    }

    /// A file owned by root, with the content of a file of the host.
    #[must_use]
    pub fn copy(path: impl Into<String>, mode: u32, from: impl Into<PathBuf>) -> Self {
        Self::of(path, mode, Kind::File(Source::Path(from.into())))
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::of(path, 0o777, Kind::Symlink(target.into()))
    }

    /// Removes a path.
    #[must_use]
    pub fn remove(path: impl Into<String>) -> Self {
        Self::of(path, 0, Kind::Remove)
    }

    fn of(path: impl Into<String>, mode: u32, kind: Kind) -> Self {
        Self {
            path: path.into(),
            mode,
            uid: 0,
            gid: 0,
            kind,
            xattrs: Vec::new(),
        }
    }
}

impl Layer {
    /// A layer of Slipway's with these entries; of two entries with the same path the later one is kept. Contents of the
    /// host's files are hashed into the key: a file that is not read with the same content later is an error then.
    ///
    /// # Errors
    /// If a path is not absolute or not plain, or a file cannot be read.
    pub fn new(cache: &Cache, entries: Vec<Entry>) -> Result<Self> {
        let mut entries = sorted(entries)?;
        let mut key = Key::of("layer", code::LAYER);
        for entry in &mut entries {
            key = add(cache, key, entry)?;
        }
        Ok(Self {
            entries,
            key: key.finish(),
            writer: Writer::Slipway,
            origin: None,
            record: None,
        })
    }

    /// A layer of Slipway's with a given key, for content that follows from the inputs of a cached step.
    ///
    /// # Errors
    /// If a path is not absolute or not plain.
    pub fn with_key(entries: Vec<Entry>, key: Key) -> Result<Self> {
        Ok(Self {
            entries: sorted(entries)?,
            key,
            writer: Writer::Slipway,
            origin: None,
            record: None,
        })
    }

    /// The same layer, of the recipe, which asks for it at this place.
    #[must_use]
    pub fn of_recipe(mut self, origin: &str) -> Self {
        self.writer = Writer::Recipe;
        self.origin = Some(origin.to_owned());
        self
    }

    /// The same layer with files of another origin.
    #[must_use]
    pub fn of(mut self, writer: Writer) -> Self {
        self.writer = writer;
        self
    }
}

fn sorted(entries: Vec<Entry>) -> Result<Vec<Entry>> {
    let mut by_path = std::collections::BTreeMap::new();
    for entry in entries {
        let plain = entry.path == "/"
            || entry.path.strip_prefix('/').is_some_and(|rest| {
                rest.split('/')
                    .all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
            });
        anyhow::ensure!(
            plain,
            "a layer's path must be absolute and plain, found {:?}",
            entry.path
        );
        by_path.insert(entry.path.clone(), entry);
    }
    Ok(by_path.into_values().collect())
}

/// Adds an entry to the key; a file of the host becomes one that was hashed.
fn add(
    cache: &Cache,
    key: crate::host::cache::KeyBuilder,
    entry: &mut Entry,
) -> Result<crate::host::cache::KeyBuilder> {
    let mut key = key
        .text("path", &entry.path)
        .bytes("mode", &entry.mode.to_le_bytes())
        .bytes("uid", &entry.uid.to_le_bytes())
        .bytes("gid", &entry.gid.to_le_bytes());
    for (name, value) in &entry.xattrs {
        key = key.bytes(name, value);
    }
    Ok(match &mut entry.kind {
        Kind::Directory => key.text("kind", "directory"),
        Kind::Remove => key.text("kind", "remove"),
        Kind::Symlink(target) => key.text("symlink", target),
        Kind::HardLink(target) => key.text("hard link", target),
        Kind::File(source) => match source {
            Source::Bytes(bytes) => key.bytes("bytes", bytes),
            Source::Path(path) => {
                let file = cache.hashed(path)?;
                let key = key.text("file", &file.text());
                *source = Source::Hashed(file);
                key
            }
            Source::Hashed(file) => key.text("file", &file.text()),
            Source::Range { file, offset, size } => key
                .big_file(cache, "file", file)?
                .bytes("offset", &offset.to_le_bytes())
                .bytes("size", &size.to_le_bytes()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_plain() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let layer = Layer::new(
            &cache,
            vec![
                Entry::file("/b", 0o644, "1"),
                Entry::file("/a", 0o644, "1"),
                Entry::file("/b", 0o644, "2"),
            ],
        )
        .unwrap();
        let paths: Vec<&str> = layer.entries.iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["/a", "/b"]);
        assert_eq!(
            layer.entries[1].kind,
            Kind::File(Source::Bytes(b"2".to_vec()))
        );
        for wrong in ["a", "/a/../b", "//a", "/a/", "/./a"] {
            let refused = Layer::new(&cache, vec![Entry::file(wrong, 0o644, "")]);
            assert!(refused.is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_key_follows_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let key = |entry: Entry| Layer::new(&cache, vec![entry]).unwrap().key;
        let file = folder.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let first = key(Entry::copy("/f", 0o644, &file));
        assert_eq!(first, key(Entry::copy("/f", 0o644, &file)));
        assert_ne!(first, key(Entry::copy("/f", 0o755, &file)));
        std::fs::write(&file, "two").unwrap();
        assert_ne!(first, key(Entry::copy("/f", 0o644, &file)));
    }

    #[test]
    fn a_file_that_changes_after_it_was_hashed_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let layer = Layer::new(&cache, vec![Entry::copy("/f", 0o644, &file)]).unwrap();
        let Kind::File(source) = &layer.entries[0].kind else {
            panic!("{layer:?}")
        };
        assert_eq!(source.read().unwrap(), b"one");
        std::fs::write(&file, "two").unwrap();
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains("file changed during the build"), "{error}");
    }
}
