//! A package of the archive, pinned by path, size and digest; and the downloaded file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A package, pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedPackage {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its architecture, or `all`.
    pub architecture: String,
    /// `debian`, `debian-security` or the name of an archive in the recipe.
    pub archive: String,
    /// Path below the archive's base.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// The source package, as in the archive's field `Source`: `openssl`, or `openssl (3.5.1-1)` where the version is another one. Absent where
    /// both are the package's own, and in locks of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A package as a file.
#[derive(Clone, Debug)]
pub struct Deb {
    /// The pinned package.
    pub package: LockedPackage,
    /// The file's path.
    pub path: PathBuf,
}
