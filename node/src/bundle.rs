//! The OCI bundle of the kubelet's container: the folders that it binds, and `config.json` from the table of mounts.
//!
//! It is written before each start of the kubelet, so that it has the identity that the node got meanwhile, and whatever
//! another program wrote into its place below `/run` does not count.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::container;
use image::container_lint;
use image::kubelet::{
    BOOTSTRAP_KUBECONFIG, CONFIG, FOLDERS, JOINED_CONFIG, JOINED_FLAGS, KUBECONFIG, STATE,
};
use image::paths::{BUNDLE_FILE, RUN_KUBELET_BUNDLE};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;

use crate::credential_providers;

/// Writes the bundle of the container whose root file system is at `root`, linted.
///
/// # Errors
/// All broken rules at once.
pub(crate) fn write(world: &World, root: &str) -> Result<()> {
    let present = |path: &str| world.in_initrd(path).exists();
    let spec = container::kubelet(root, &arguments(world), &present);
    let wrong = container_lint::spec(&spec);
    ensure!(
        wrong.is_empty(),
        "the kubelet's container is refused:\n  {}",
        wrong
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n  ")
    );
    let bundle = world.in_run(RUN_KUBELET_BUNDLE);
    folder(&bundle, 0o700)?;
    let mut text =
        serde_json::to_vec_pretty(&spec).context("writing the kubelet's spec as JSON")?;
    text.push(b'\n');
    let file = bundle.join(BUNDLE_FILE);
    atomic_file::write(&file, &text, 0o600).with_context(|| format!("writing {}", file.display()))
}

/// Makes the folders that the container mounts from the host.
pub(crate) fn make_folders(root: &Path) -> Result<()> {
    FOLDERS
        .iter()
        .try_for_each(|(path, mode)| folder(&root.join(path.trim_start_matches('/')), *mode))
}

/// Whether the node has an identity towards an API server, or credentials to request one with.
pub(crate) fn has_identity(world: &World) -> bool {
    [KUBECONFIG, BOOTSTRAP_KUBECONFIG]
        .iter()
        .any(|path| world.in_initrd(path).exists())
}

/// The arguments of the kubelet: its configuration, that of its cluster if it belongs to one, and its identity if it has
/// one.
fn arguments(world: &World) -> Vec<String> {
    let joined = world.in_initrd(JOINED_CONFIG).exists();
    let config = if joined { JOINED_CONFIG } else { CONFIG };
    let mut arguments = vec![
        format!("--config={config}"),
        format!("--root-dir={STATE}"),
        "--v=2".to_owned(),
    ];
    if has_identity(world) {
        arguments.push(format!("--kubeconfig={KUBECONFIG}"));
    }
    if world.in_initrd(BOOTSTRAP_KUBECONFIG).exists() {
        arguments.push(format!("--bootstrap-kubeconfig={BOOTSTRAP_KUBECONFIG}"));
    }
    if joined {
        arguments.extend(flags(world));
    }
    let providers = credential_providers::arguments(world, &arguments);
    arguments.extend(providers);
    arguments
}

/// The arguments that kubeadm's file of a node has: `KUBELET_KUBEADM_ARGS="--NAME=VALUE …"`.
fn flags(world: &World) -> Vec<String> {
    let text = fs::read_to_string(world.in_initrd(JOINED_FLAGS)).unwrap_or_default();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("KUBELET_KUBEADM_ARGS="));
    let words = value.unwrap_or_default().trim().trim_matches('"');
    words.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use image::paths::KUBELET_ROOTFS;
    use image::runtime_spec::Spec;
    use linux::world::Clock;

    use super::*;

    /// The bundle's spec, as written for the files below `world`.
    fn written(world: &World) -> Spec {
        write(world, KUBELET_ROOTFS).unwrap();
        let file = world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE);
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    }

    #[test]
    fn the_bundle_passes_its_own_rules() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let spec = written(&world);
        assert_eq!(
            spec.process.args[1],
            "--config=/etc/kubernetes/kubelet.yaml"
        );
        assert!(!spec.process.args.iter().any(|a| a.contains("kubeconfig")));
    }

    #[test]
    fn an_identity_that_came_after_the_boot_becomes_an_argument() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let before = written(&world).process.args.len();
        fs::create_dir_all(world.in_initrd("/etc/kubernetes")).unwrap();
        fs::write(world.in_initrd(BOOTSTRAP_KUBECONFIG), "").unwrap();
        let found = written(&world).process.args;
        assert_eq!(found.len(), before + 2);
        assert!(found.contains(&"--kubeconfig=/etc/kubernetes/kubelet.conf".to_owned()));
        let bootstrap = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf";
        assert!(found.contains(&bootstrap.to_owned()));
    }

    #[test]
    fn a_node_of_a_cluster_has_the_clusters_configuration_and_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        fs::create_dir_all(world.in_initrd("/var/lib/kubelet")).unwrap();
        fs::write(world.in_initrd(JOINED_CONFIG), "").unwrap();
        let flags = "KUBELET_KUBEADM_ARGS=\"--hostname-override=one --v=3\"\n";
        fs::write(world.in_initrd(JOINED_FLAGS), flags).unwrap();
        let found = written(&world).process.args;
        assert_eq!(found[1], "--config=/var/lib/kubelet/config.yaml");
        assert_eq!(found[4..], ["--hostname-override=one", "--v=3"]);
    }

    #[test]
    fn a_bundle_that_another_program_changed_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let mut spec = written(&world);
        for mount in &mut spec.mounts {
            mount.options.retain(|option| !option.ends_with("slave"));
        }
        let file = world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE);
        fs::write(&file, serde_json::to_string(&spec).unwrap()).unwrap();
        assert!(!container_lint::spec(&spec).is_empty());
        assert!(container_lint::spec(&written(&world)).is_empty());
    }
}
