//! Pinned programs against the release table: what it knows must have its hashes.

use anyhow::{Result, ensure};

use super::program::Pinned;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::release::Release;

/// Compares programs of a release server, and the modules of compiled ones, with the entry of their version.
///
/// # Errors
/// If a hash differs, with the one that was found and the one that the table has.
pub(super) fn verify(entry: &Release, pinned: &Pinned, architecture: &str) -> Result<()> {
    verify_one(entry, "kubelet", &pinned.kubelet, architecture)?;
    for (name, program) in &pinned.components {
        verify_one(entry, name, program, architecture)?;
    }
    Ok(())
}

fn verify_one(
    entry: &Release,
    name: &str,
    program: &LockedProgram,
    architecture: &str,
) -> Result<()> {
    match (&program.source, &entry.module) {
        (LockedFrom::GoModule { go_sum, .. }, Some(module)) if name == "kubelet" => {
            module.verify(go_sum)?;
        }
        // Another program's modules need not have Kubernetes among them.
        (LockedFrom::GoModule { go_sum, .. }, Some(module)) => module.compare(go_sum)?,
        (LockedFrom::Release { url } | LockedFrom::Archive { url, .. }, _) => {
            let of_table = entry
                .binaries
                .iter()
                .find(|binary| binary.name == name && binary.architecture == architecture);
            if let Some(binary) = of_table {
                ensure!(
                    binary.sha256 == program.sha256,
                    "{} has SHA-256 {}, expected {} as the release table says of {name} {}",
                    fetch::shown(url),
                    program.sha256,
                    binary.sha256,
                    entry.version
                );
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::{Binary, Table, Unpack};

    fn pinned(sha256: &str, source: LockedFrom) -> Pinned {
        let program = LockedProgram {
            version: "v1.36.3".to_owned(),
            sha256: sha256.to_owned(),
            size: 1,
            source,
        };
        Pinned::kubelet(program, true)
    }

    #[test]
    fn a_program_or_module_with_another_hash_than_the_tables_is_refused() {
        let carried = Table::carried().unwrap();
        let mut entry = carried.get("1.36.3").unwrap().clone();
        let (right, wrong) = ("a".repeat(64), "b".repeat(64));
        entry.binaries.push(Binary {
            name: "kubelet".to_owned(),
            architecture: "amd64".to_owned(),
            url: String::new(),
            path: String::new(),
            unpack: Unpack::None,
            sha256: right.clone(),
        });
        let url = "http://k8s.example/kubelet".to_owned();
        let from_server = |sha256: &str| pinned(sha256, LockedFrom::Release { url: url.clone() });
        verify(&entry, &from_server(&right), "amd64").unwrap();
        let error = verify(&entry, &from_server(&wrong), "amd64").unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&right) && error.contains(&wrong), "{error}");

        let go_sum = entry.module.as_ref().unwrap().go_sum.clone();
        let compiled = |go_sum: String| {
            let go_mod = String::new();
            pinned(&right, LockedFrom::GoModule { go_mod, go_sum })
        };
        verify(&entry, &compiled(go_sum.clone()), "amd64").unwrap();
        let changed = go_sum.replace(
            "k8s.io/kubernetes v1.36.3 h1:q",
            "k8s.io/kubernetes v1.36.3 h1:r",
        );
        assert_ne!(changed, go_sum);
        let error = verify(&entry, &compiled(changed), "amd64").unwrap_err();
        assert!(error.to_string().contains("h1:q"), "{error}");
    }
}
