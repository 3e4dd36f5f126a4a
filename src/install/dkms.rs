//! Packages that compile kernel modules by DKMS: refused, since their modules do not come into an image.
//!
//! DKMS compiles for the kernels whose headers are in the tree. The image's kernel is a package beside the root, and its
//! `modules.dep` is made of that package alone; without headers DKMS compiles nothing and reports success.

use anyhow::{Result, bail};

use super::package::Unpacked;
use crate::debian::relation;

const DKMS: &str = "dkms";

/// Refuses packages that depend on DKMS, all at once.
pub(super) fn refuse(packages: &[Unpacked]) -> Result<()> {
    let compiles = |package: &&Unpacked| {
        ["Pre-Depends", "Depends"].iter().any(|field| {
            relation::groups(package.field(field))
                .flatten()
                .any(|other| other.name == DKMS)
        })
    };
    let found: Vec<String> = packages
        .iter()
        .filter(compiles)
        .map(Unpacked::title)
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: compiles a kernel module by DKMS, and an image has only the modules of its kernel's package; leave it out, \
         or bring the compiled module as a package or as files below /usr/lib/modules, with its dependencies in depmod's files",
        found.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_compiles_a_module_is_named() {
        let packages = [
            "Package: zfs-dkms\nVersion: 2.3\nDepends: dkms (>> 3), gcc\n",
            "Package: dkms\nVersion: 3\nDepends: make\n",
        ]
        .map(Unpacked::of);
        let error = refuse(&packages).unwrap_err().to_string();
        assert!(error.starts_with("zfs-dkms 2.3: compiles"), "{error}");
        refuse(&packages[1..]).unwrap();
    }
}
