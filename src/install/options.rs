//! Options of an installation: the purpose of the tree, and the kept parts of its packages.

/// Folder of documentation: in it each package has a folder, or a link to another package's folder.
pub(super) const DOCS: &str = "usr/share/doc";
/// Name of a package's licences in its folder of documentation. Licences demand that it goes with every copy (Debian policy
/// 12.5), so that it stays without documentation too.
pub(super) const COPYRIGHT: &str = "copyright";

/// The purpose of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The root of a node: links into `/var`, factory seed, machine id and so on.
    #[default]
    Node,
    /// The root of a container: unchanged after the packages' installation.
    Container,
}

/// The purpose of the tree, and the kept parts of its packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The purpose of the tree.
    pub purpose: Purpose,
    /// The latest time of any file in the tree, seconds since 1970.
    pub epoch: u64,
    /// Keep documentation and manual pages, of which each package's copyright file is kept in any case.
    pub docs: bool,
    /// Keep messages of these locales, as `de_DE.UTF-8`.
    pub locales: Vec<String>,
    /// Keep dpkg with its database, and apt.
    pub package_manager: bool,
    /// The packages that the recipe names: all of their files are kept.
    pub named: Vec<String>,
}
