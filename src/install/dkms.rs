//! Packages that compile kernel modules by DKMS: refused in a root, since their modules would not come into the image.
//!
//! DKMS compiles for the kernels whose headers are in the tree. The image's kernel is a package beside the root; without headers DKMS
//! compiles nothing and reports success. `dkms` in `[kernel]` compiles the modules beside the root too.

use anyhow::{Result, bail};

use super::package::Unpacked;
use crate::debian::pinned::Deb;
use crate::debian::relation;

const DKMS: &str = "dkms";

/// Whether a package depends on DKMS.
fn uses(package: &Unpacked) -> bool {
    ["Pre-Depends", "Depends"].iter().any(|field| {
        relation::groups(package.field(field))
            .flatten()
            .any(|other| other.name == DKMS)
    })
}

/// Those of these packages that depend on DKMS, or that are `named`.
///
/// # Errors
/// If a package cannot be read.
pub fn users<'a>(debs: &'a [Deb], named: &[String]) -> Result<Vec<&'a Deb>> {
    let packages = Unpacked::read(debs)?;
    let both = debs.iter().zip(&packages);
    let those = both.filter(|(deb, package)| uses(package) || named.contains(&deb.package.name));
    Ok(those.map(|(deb, _)| deb).collect())
}

/// Refuses packages that depend on DKMS, all at once.
pub(super) fn refuse(packages: &[Unpacked]) -> Result<()> {
    let compiles = |package: &&Unpacked| uses(package);
    let found: Vec<String> = packages
        .iter()
        .filter(compiles)
        .map(Unpacked::title)
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let names = packages.iter().filter(compiles);
    let names: Vec<String> = names
        .map(|package| format!("{:?}", package.name()))
        .collect();
    bail!(
        "{}: compiles a kernel module by DKMS, for which the root has no kernel; leave it out of [debian] packages, and of what these \
         depend on, and write dkms = [{}] in [kernel], which compiles it for the image's kernel",
        found.join(", "),
        names.join(", ")
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
        assert!(
            error.contains("dkms = [\"zfs-dkms\"] in [kernel]"),
            "{error}"
        );
        refuse(&packages[1..]).unwrap();
    }
}
