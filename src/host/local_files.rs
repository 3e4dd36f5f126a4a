//! The local files of a Butane config, from a folder of this host.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ignition::local_files::{EntryKind, Files, TreeEntry};

/// A folder of local files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFiles(pub PathBuf);

impl LocalFiles {
    /// The folder of this file.
    #[must_use]
    pub fn beside(file: &Path) -> Self {
        let folder = file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        Self(folder.unwrap_or(Path::new(".")).to_owned())
    }

    fn at(&self, path: &str) -> PathBuf {
        match path {
            "" => self.0.clone(),
            path => self.0.join(path),
        }
    }
}

fn describe(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

impl Files for LocalFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let path = self.at(path);
        fs::read(&path).map_err(|error| describe(&path, &error))
    }

    fn tree(&self, path: &str) -> Result<Vec<TreeEntry>, String> {
        let top = self.at(path);
        let status = fs::metadata(&top).map_err(|error| describe(&top, &error))?;
        if !status.is_dir() {
            return Err(format!("{}: expected a folder", top.display()));
        }
        let mut out = Vec::new();
        enter(&top, String::new(), &mut out);
        Ok(out)
    }
}

/// A folder with its content, sorted by name.
fn enter(top: &Path, path: String, out: &mut Vec<TreeEntry>) {
    let full = match path.as_str() {
        "" => top.to_owned(),
        path => top.join(path),
    };
    let kind = EntryKind::Directory;
    out.push(TreeEntry {
        path: path.clone(),
        kind,
    });
    let names = fs::read_dir(&full).and_then(|entries| {
        let names = entries.map(|entry| Ok(entry?.file_name()));
        names.collect::<Result<Vec<_>, std::io::Error>>()
    });
    let mut names = match names {
        Ok(names) => names,
        Err(error) => {
            let kind = EntryKind::Other(error.to_string());
            return out.push(TreeEntry { path, kind });
        }
    };
    names.sort();
    for name in names {
        let name = name.to_string_lossy();
        let path = match path.as_str() {
            "" => name.clone().into_owned(),
            path => format!("{path}/{name}"),
        };
        if name.contains(char::REPLACEMENT_CHARACTER) {
            let kind = EntryKind::Other("the name is not UTF-8".to_owned());
            out.push(TreeEntry { path, kind });
            continue;
        }
        match kind_of(&top.join(&path)) {
            Ok(EntryKind::Directory) => enter(top, path, out),
            Ok(kind) => out.push(TreeEntry { path, kind }),
            Err(error) => {
                let kind = EntryKind::Other(error.to_string());
                out.push(TreeEntry { path, kind });
            }
        }
    }
}

fn kind_of(path: &Path) -> std::io::Result<EntryKind> {
    let status = fs::symlink_metadata(path)?;
    let kind = status.file_type();
    if kind.is_dir() {
        return Ok(EntryKind::Directory);
    }
    if kind.is_file() {
        let executable = status.permissions().mode() & 0o111 != 0;
        return Ok(EntryKind::File(fs::read(path)?, executable));
    }
    if kind.is_symlink() {
        let target = fs::read_link(path)?;
        return Ok(match target.to_str() {
            Some(target) => EntryKind::Link(target.to_owned()),
            None => EntryKind::Other("the link's target is not UTF-8".to_owned()),
        });
    }
    let wanted = "expected a file, a folder or a symbolic link";
    Ok(EntryKind::Other(wanted.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_walked_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("tree/b/c")).unwrap();
        fs::write(at("tree/a"), "A").unwrap();
        fs::write(at("tree/b/x"), "X").unwrap();
        fs::set_permissions(at("tree/b/x"), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("../a", at("tree/b/l")).unwrap();
        std::os::unix::net::UnixListener::bind(at("tree/s")).unwrap();
        let files = LocalFiles(folder.path().to_owned());
        let found: Vec<_> = files
            .tree("tree")
            .unwrap()
            .into_iter()
            .map(|found| (found.path, found.kind))
            .collect();
        let wanted = [
            ("", EntryKind::Directory),
            ("a", EntryKind::File(b"A".to_vec(), false)),
            ("b", EntryKind::Directory),
            ("b/c", EntryKind::Directory),
            ("b/l", EntryKind::Link("../a".into())),
            ("b/x", EntryKind::File(b"X".to_vec(), true)),
            (
                "s",
                EntryKind::Other("expected a file, a folder or a symbolic link".into()),
            ),
        ];
        assert_eq!(found, wanted.map(|(path, kind)| (path.to_owned(), kind)));
        assert_eq!(files.read("tree/a").unwrap(), b"A");
        assert!(
            files
                .tree("tree/a")
                .unwrap_err()
                .contains("expected a folder")
        );
        assert!(
            files
                .read("none")
                .unwrap_err()
                .contains("none: No such file")
        );
        assert!(files.read("").unwrap_err().contains("Is a directory"));
    }

    #[test]
    fn the_folder_of_a_file_is_found() {
        assert_eq!(LocalFiles::beside(Path::new("a.bu")).0, Path::new("."));
        assert_eq!(LocalFiles::beside(Path::new("x/a.bu")).0, Path::new("x"));
    }
}
