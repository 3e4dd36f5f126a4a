//! Report of an installation: what is not in the tree although a package has it, who may miss it, and what scripts have made.

use serde::{Deserialize, Serialize};

/// What became of the packages, for people and for the SBOM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Packages that are removed with the package manager, sorted by name.
    pub dropped: Vec<Dropped>,
    /// Files of the packages' scripts that the node makes itself, and that a container is without.
    pub first_boot: Vec<FirstBoot>,
    /// Files that scripts have made and that may be different each time.
    pub suspects: Vec<Made>,
    /// Files that have the host name of the build, which every node has too.
    #[serde(default)]
    pub host_name: Vec<String>,
}

/// A package whose files are removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Its name.
    pub package: String,
    /// Programs and libraries of it that stay, since something that stays runs them.
    pub kept: Vec<String>,
    /// What names a removed program of it.
    pub missed_by: Vec<Missed>,
}

/// A file that names a program that is not there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Missed {
    /// The file.
    pub path: String,
    /// Its package, empty if a script made it.
    pub package: String,
    /// The program.
    pub program: String,
}

/// What is made on a node's first boot in place of a file of the build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstBoot {
    /// The file or folder.
    pub path: String,
    /// The unit that makes it; none if its program makes it when it wants it, and of a container.
    pub unit: Option<String>,
}

/// A file that a script has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its path on a node.
    pub path: String,
    /// The package whose script made it, as far as it can be told.
    pub package: Option<String>,
}
