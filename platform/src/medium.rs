//! Media: discs and small file systems that a hypervisor attaches to a machine. The caller finds and mounts them.

use std::fmt;

/// A medium that a provider looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A file system with one of these labels: ISO 9660 or VFAT. The case is significant, so each spelling is listed.
    Labels(&'a [&'a str]),
    /// A disc in one of the machine's drives, UDF or ISO 9660, with this file at its root: another disc does not count.
    Disc(&'a str),
}

impl fmt::Display for Medium<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels(labels) => {
                write!(f, "a file system with the label {}", labels.join(" or "))
            }
            Self::Disc(file) => write!(f, "a disc with {file} in a drive"),
        }
    }
}
