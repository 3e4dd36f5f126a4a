//! The OCI bundle of the kubelet's container: `config.json` from the table of mounts, linted before it is written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::container;
use image::container_lint;
use image::kubelet::{BOOTSTRAP_KUBECONFIG, CONFIG, FOLDERS, KUBECONFIG, STATE};
use image::paths::{BUNDLE_FILE, RUN_KUBELET_BUNDLE};
use image::runtime_spec::Spec;

use linux::mount::folder;
use linux::world::World;

/// Writes the bundle for the root below `sysroot`, with the folders that it binds.
///
/// # Errors
/// Every broken rule at once.
pub(crate) fn write(world: &World, sysroot: &Path) -> Result<()> {
    make_folders(sysroot)?;
    let spec = container::kubelet(&arguments(sysroot), &|path| inside(sysroot, path).exists());
    check(&spec)?;
    let bundle = world.in_run(RUN_KUBELET_BUNDLE);
    folder(&bundle, 0o700)?;
    let file = bundle.join(BUNDLE_FILE);
    let text = serde_json::to_string_pretty(&spec).context("writing the kubelet's spec as JSON")?;
    fs::write(&file, text + "\n").with_context(|| format!("writing {}", file.display()))
}

/// Makes the host folders that the container mounts.
pub(crate) fn make_folders(sysroot: &Path) -> Result<()> {
    FOLDERS
        .iter()
        .try_for_each(|(path, mode)| folder(&inside(sysroot, path), *mode))
}

/// The arguments of the kubelet: its configuration, and its identity if it has one.
fn arguments(sysroot: &Path) -> Vec<String> {
    let mut arguments = vec![
        format!("--config={CONFIG}"),
        format!("--root-dir={STATE}"),
        "--v=2".to_owned(),
    ];
    let has = |path: &str| inside(sysroot, path).exists();
    if has(KUBECONFIG) || has(BOOTSTRAP_KUBECONFIG) {
        arguments.push(format!("--kubeconfig={KUBECONFIG}"));
    }
    if has(BOOTSTRAP_KUBECONFIG) {
        arguments.push(format!("--bootstrap-kubeconfig={BOOTSTRAP_KUBECONFIG}"));
    }
    arguments
}

/// Refuses a spec with all its mistakes. Whether the verified root has its mount points was checked when it was built.
fn check(spec: &Spec) -> Result<()> {
    let wrong = container_lint::spec(spec);
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "the kubelet's container is refused:\n  {}",
        wrong.join("\n  ")
    )
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn the_bundle_passes_its_own_rules() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        write(&world, &world.sysroot).unwrap();
        assert!(world.in_sysroot("/var/lib/kubelet/volumeplugins").is_dir());
        let text = fs::read_to_string(folder.path().join("run/slipway/kubelet/config.json"));
        let spec: Spec = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(
            spec.process.args[1],
            "--config=/etc/kubernetes/kubelet.yaml"
        );
        assert!(!spec.process.args.iter().any(|a| a.contains("kubeconfig")));
    }

    #[test]
    fn an_identity_becomes_an_argument() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        linux::mount::folder(&world.in_sysroot("/etc/kubernetes"), 0o755).unwrap();
        fs::write(world.in_sysroot(BOOTSTRAP_KUBECONFIG), "").unwrap();
        let found = arguments(&world.sysroot);
        assert!(found.contains(&"--kubeconfig=/etc/kubernetes/kubelet.conf".to_owned()));
        let bootstrap = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf";
        assert!(found.contains(&bootstrap.to_owned()));
    }
}
