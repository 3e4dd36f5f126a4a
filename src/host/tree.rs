//! Walks a folder of the host.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// A file, folder or link below the folder.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its path below the folder, as `/a/b`.
    pub inside: String,
    /// Its path on the host.
    pub path: PathBuf,
    /// Its metadata; for a link, that of the link.
    pub meta: Metadata,
}

/// All entries below a folder, each folder before its content, names in the order of their bytes, so that two walks of
/// equal trees are equal. Links are not followed.
///
/// # Errors
/// If a folder cannot be read, or a name is not UTF-8.
pub fn walk(folder: &Path) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    below(folder, "", &mut items)?;
    Ok(items)
}

fn below(folder: &Path, inside: &str, items: &mut Vec<Item>) -> Result<()> {
    let about = || format!("reading the folder {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(about)? {
        let name = entry.with_context(about)?.file_name();
        let Some(name) = name.to_str() else {
            bail!(
                "{}: the name {} is not UTF-8",
                folder.display(),
                name.display()
            );
        };
        names.push(name.to_owned());
    }
    names.sort_unstable();
    for name in names {
        let path = folder.join(&name);
        let inside = format!("{inside}/{name}");
        let meta = fs::symlink_metadata(&path)
            .with_context(|| format!("looking at {}", path.display()))?;
        let is_folder = meta.is_dir();
        items.push(Item {
            inside: inside.clone(),
            path: path.clone(),
            meta,
        });
        if is_folder {
            below(&path, &inside, items)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_their_content_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["b/deep", "a"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        for path in ["b/deep/file", "b.txt", "a/2", "a/10"] {
            fs::write(folder.path().join(path), path).unwrap();
        }
        std::os::unix::fs::symlink("b", folder.path().join("link")).unwrap();
        let items = walk(folder.path()).unwrap();
        let paths: Vec<&str> = items.iter().map(|item| item.inside.as_str()).collect();
        let expected = [
            "/a",
            "/a/10",
            "/a/2",
            "/b",
            "/b/deep",
            "/b/deep/file",
            "/b.txt",
            "/link",
        ];
        assert_eq!(paths, expected);
        assert!(items[7].meta.is_symlink());
        assert!(walk(&folder.path().join("missing")).is_err());
    }
}
