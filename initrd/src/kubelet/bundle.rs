//! The OCI bundle of the kubelet's container: `config.json` from the table of mounts, linted before it is written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::container;
use image::container_lint;
use image::kubelet::{BOOTSTRAP_KUBECONFIG, CONFIG, FOLDERS, KUBECONFIG, STATE};
use image::paths::{BUNDLE_FILE, KUBELET_ROOTFS, RUN_KUBELET_BUNDLE};
use image::runtime_spec::Spec;

use linux::mount::folder;
use linux::world::World;

/// Writes the bundle for the root below `sysroot`, with the folders that it binds.
///
/// # Errors
/// Every broken rule at once, with every missing source and target.
pub(crate) fn write(world: &World, sysroot: &Path) -> Result<()> {
    make_folders(sysroot)?;
    let spec = container::kubelet(&arguments(sysroot), &|path| inside(sysroot, path).exists());
    check(&spec, sysroot)?;
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

/// Checks a spec, by itself and against its root.
fn check(spec: &Spec, sysroot: &Path) -> Result<()> {
    let rootfs = inside(sysroot, KUBELET_ROOTFS);
    let mut wrong = container_lint::spec(spec);
    wrong.extend(container_lint::image(|path| {
        fs::metadata(inside(&rootfs, path)).map(|meta| meta.is_file())
    }));
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
    use image::kubelet::{MOUNTS, PROGRAM, Source};
    use linux::world::Clock;

    /// A root with a kubelet's image, as the builder makes it.
    fn sysroot(world: &World) {
        let rootfs = world.in_sysroot(KUBELET_ROOTFS);
        for mount in MOUNTS {
            let target = inside(&rootfs, mount.target);
            if let Source::File(_) = mount.source {
                folder(target.parent().unwrap(), 0o755).unwrap();
                fs::write(target, "").unwrap();
            } else {
                folder(&target, 0o755).unwrap();
            }
        }
        folder(&rootfs.join("usr/bin"), 0o755).unwrap();
        fs::write(inside(&rootfs, PROGRAM), "").unwrap();
    }

    #[test]
    fn the_bundle_passes_its_own_rules() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        sysroot(&world);
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

    #[test]
    fn an_image_without_a_target_is_refused_with_all_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        sysroot(&world);
        let rootfs = world.in_sysroot(KUBELET_ROOTFS);
        fs::remove_dir(rootfs.join("var/lib/kubelet")).unwrap();
        fs::remove_file(rootfs.join("usr/bin/kubelet")).unwrap();
        let error = write(&world, &world.sysroot).unwrap_err().to_string();
        assert!(
            error.contains("folder /var/lib/kubelet is missing"),
            "{error}"
        );
        assert!(
            error.contains("file /usr/bin/kubelet is missing"),
            "{error}"
        );
        assert!(!world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE).exists());
    }
}
