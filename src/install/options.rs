//! Options of an installation: what the tree is for, and what is kept of its packages.

/// What a tree is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The root of a node: links into `/var`, factory seed, machine id and so on.
    #[default]
    Node,
    /// The root of a container: as the packages leave it.
    Container,
}

/// What is kept and what is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What the tree is for.
    pub purpose: Purpose,
    /// Seconds since 1970 that no time in the tree exceeds.
    pub epoch: u64,
    /// Keep documentation and manual pages.
    pub docs: bool,
    /// Keep messages of these locales, as `de_DE.UTF-8`.
    pub locales: Vec<String>,
    /// Keep apt and dpkg with its database.
    pub package_manager: bool,
}
