//! The name of a node that nobody named.

use std::fs;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::paths::HOSTNAME;
use sha2::{Digest, Sha256};

use crate::root::Root;

/// Bytes of the digest in the name: among a million nodes, one chance in 500 of two equal names.
const BYTES: usize = 6;

/// Names the node after its machine id, unless a name is set already or `/etc/hostname` has one; the next init keeps it.
/// systemd would call every such node `localhost`, also towards the cluster.
///
/// # Errors
/// If the kernel refuses the name.
pub(crate) fn set(root: &Root, machine_id: &str) -> Result<()> {
    let kernels = nix::unistd::gethostname().context("asking for the host name")?;
    let file = fs::read_to_string(root.programs.world.in_sysroot(HOSTNAME));
    if !is_unnamed(&kernels.to_string_lossy(), &file.unwrap_or_default()) {
        return Ok(());
    }
    let name = derived(machine_id);
    nix::unistd::sethostname(&name).with_context(|| format!("naming the node {name}"))?;
    tracing::info!("host name: {name}, from the machine id");
    Ok(())
}

/// Whether neither the kernel nor the text of `/etc/hostname` has a name; it may have comments (hostname(5)).
fn is_unnamed(kernels: &str, file: &str) -> bool {
    let is_name = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    matches!(kernels, "" | "(none)" | "localhost") && !file.lines().any(is_name)
}

/// A name from the machine id, which stays confidential (machine-id(5)).
fn derived(machine_id: &str) -> String {
    let digest = Sha256::digest(format!("slipway host name {machine_id}"));
    format!("node-{}", HEXLOWER.encode(&digest[..BYTES]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_derived_only_where_there_is_none() {
        assert!(is_unnamed("(none)", ""));
        assert!(is_unnamed("localhost", "# nothing\n\n"));
        assert!(!is_unnamed("(none)", "# mine\nnode7\n"));
        assert!(!is_unnamed("node7", ""));
    }

    #[test]
    fn each_machine_id_has_its_own_lasting_name() {
        let one = derived("0123456789abcdef0123456789abcdef");
        assert_eq!(one, derived("0123456789abcdef0123456789abcdef"));
        assert_ne!(one, derived("1123456789abcdef0123456789abcdef"));
        assert!(image::network::is_host_name(&one), "{one}");
        assert!(!one.contains("0123"));
    }
}
