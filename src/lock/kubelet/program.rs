//! A program as a file: stored in the cache, and a kubelet's version.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::Digest as _;

use super::{coredns, version};
use crate::host::cache::Cache;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::install::tools::{self, Tools};
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::LockedProgram;
use crate::recipe::SET_TOOLS_GO;

/// Size limit of a program, bytes; the current kubelet has 84 million.
pub(super) const LIMIT: u64 = 512 << 20;

/// A program of a release as a file.
#[derive(Clone, Debug)]
pub struct Program {
    /// Release, as `v1.36.3`; for CoreDNS its own.
    pub version: String,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// The file's path.
    pub path: PathBuf,
}

impl Program {
    /// The package URL of the program of this name (<https://github.com/package-url/purl-spec>).
    #[must_use]
    pub fn purl(&self, name: &str) -> String {
        let version = &self.version;
        match name {
            coredns::NAME => format!("pkg:golang/{}@{version}", coredns::MODULE),
            _ => format!("pkg:golang/k8s.io/kubernetes@{version}#cmd/{name}"),
        }
    }
}

/// The pinned programs of a release.
#[derive(Debug)]
pub struct Pinned {
    /// The kubelet.
    pub kubelet: LockedProgram,
    /// The other requested programs, by name.
    pub components: BTreeMap<String, LockedProgram>,
    /// Whether all of them came from the cache.
    pub(super) hit: bool,
}

impl Pinned {
    /// A kubelet without other programs.
    pub(super) fn kubelet(kubelet: LockedProgram, hit: bool) -> Self {
        Self {
            kubelet,
            components: BTreeMap::new(),
            hit,
        }
    }

    /// Bytes of all programs; those that are one file count once.
    pub(super) fn size(&self) -> u64 {
        let mut files: Vec<_> = self.components.values().chain([&self.kubelet]).collect();
        files.sort_by_key(|program| &program.sha256);
        files.dedup_by_key(|program| &program.sha256);
        files.iter().map(|program| program.size).sum()
    }
}

/// The Go toolchain of the lock, as a tools tree.
pub(super) fn go(session: &Session, locked: &LockedRecipe) -> Result<Tools> {
    let debs = locked.packages(session, SET_TOOLS_GO)?;
    tools::install(session, SET_TOOLS_GO, &debs)
}

/// Copies a program into the cache's objects, under its digest, which is of the bytes that are copied; gives digest and size.
pub(super) fn keep(cache: &Cache, program: &Path) -> Result<(String, u64)> {
    let about = || format!("reading {}", program.display());
    let mut from = fs::File::open(program).with_context(about)?;
    let scratch = cache.scratch()?;
    let copy = scratch.path().join("program");
    let mut to = fs::File::create(&copy)?;
    let (mut hash, mut size) = (sha2::Sha256::new(), 0);
    let mut piece = vec![0; 1 << 20];
    loop {
        let n = from.read(&mut piece).with_context(about)?;
        if n == 0 {
            break;
        }
        hash.update(&piece[..n]);
        to.write_all(&piece[..n])?;
        size += n as u64;
    }
    to.sync_all()?;
    let sha256 = HEXLOWER.encode(&hash.finalize());
    let object = cache.object(&sha256);
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::rename(&copy, &object).with_context(|| format!("writing {}", object.display()))?;
    Ok((sha256, size))
}

/// The version that a kubelet prints, as `v1.36.3`: it runs in an empty root, so that only a static program succeeds.
pub(super) fn ask_version(cache: &Cache, program: &Path) -> Result<String> {
    let scratch = cache.scratch()?;
    let inside = scratch.path().join("kubelet");
    fs::copy(program, &inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
    let said = Sandbox::new(scratch.path())
        .command("/kubelet")
        .arg("--version")
        .run()
        .with_context(|| {
            format!(
                "asking {} for its version in an empty root (a kubelet must be linked statically)",
                program.display()
            )
        })?;
    let said = String::from_utf8_lossy(&said);
    let version = said.trim().strip_prefix("Kubernetes ").unwrap_or_default();
    ensure!(
        version::parse(version).is_some(),
        "{} answers {:?} to --version, expected \"Kubernetes v1.…\"",
        program.display(),
        said.trim()
    );
    Ok(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_listed_by_its_own_module() {
        let program = Program {
            version: "v1.14.2".to_owned(),
            sha256: String::new(),
            path: PathBuf::new(),
        };
        for (name, purl) in [
            ("coredns", "pkg:golang/github.com/coredns/coredns@v1.14.2"),
            (
                "kubectl",
                "pkg:golang/k8s.io/kubernetes@v1.14.2#cmd/kubectl",
            ),
        ] {
            assert_eq!(program.purl(name), purl);
        }
    }

    #[test]
    fn a_kept_program_has_the_hash_of_its_copy() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let program = folder.path().join("kubelet");
        for content in ["one", "another"] {
            fs::write(&program, content).unwrap();
            let (sha256, size) = keep(&cache, &program).unwrap();
            let object = cache.object(&sha256);
            assert_eq!(fs::read_to_string(&object).unwrap(), content);
            assert_eq!(crate::format::digest::sha256(&object).unwrap(), sha256);
            assert_eq!(size, content.len() as u64);
        }
        assert_eq!(fs::read_dir(cache.root().join("tmp")).unwrap().count(), 0);
    }
}
