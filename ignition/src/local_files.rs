//! Local files that a Butane config names. The caller provides them: the tool has a folder, a node has none.

/// The local files of a config. Paths are relative, with `/`, in their shortest form, and never leave the folder; the
/// empty path is the folder itself. Errors are texts for people.
pub trait Files {
    /// The bytes of one file.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// Every entry of a folder, the folder itself first, each folder before its content and names in order.
    fn tree(&self, path: &str) -> Result<Vec<TreeEntry>, String>;
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Its path below the folder; empty for the folder itself.
    pub path: String,
    /// Its type.
    pub kind: EntryKind,
}

/// The type of a folder's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Directory,
    /// A file: its bytes, and whether any execute bit is set.
    File(Vec<u8>, bool),
    /// A symbolic link and its target.
    Link(String),
    /// Anything else, or an entry that cannot be read, with the reason.
    Other(String),
}

/// No local files: reading any of them is an error.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

const NO_FILES: &str =
    "there are no local files here; `slipway ignition from-butane --files-dir DIR` puts them in";

impl Files for NoFiles {
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Err(NO_FILES.to_owned())
    }

    fn tree(&self, _: &str) -> Result<Vec<TreeEntry>, String> {
        Err(NO_FILES.to_owned())
    }
}

/// The shortest form of a path in the folder of local files; a leading slash has no effect.
pub(crate) fn inside(path: &str) -> Result<String, &'static str> {
    let mut out: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                let outside = "the path leads out of the folder of local files";
                out.pop().ok_or(outside)?;
            }
            part => out.push(part),
        }
    }
    Ok(out.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, wanted) in [
            ("a/b", Ok("a/b")),
            ("/a//b/./c/../d/", Ok("a/b/d")),
            ("", Ok("")),
            (".", Ok("")),
            ("a/..", Ok("")),
            ("..", Err(())),
            ("a/../../b", Err(())),
        ] {
            let wanted = wanted.map(str::to_owned);
            assert_eq!(inside(path).map_err(|_| ()), wanted, "{path}");
        }
    }
}
