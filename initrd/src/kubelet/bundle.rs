//! The OCI bundle of the kubelet's container: `config.json` from the table of mounts, linted before it is written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::kubelet::spec::{self, Spec};
use image::kubelet::{
    BOOTSTRAP_KUBECONFIG, CONFIG, FOLDERS, KUBECONFIG, MOUNTS, PROGRAM, STATE, Source,
};
use image::paths::{KUBELET_ROOTFS, RUN_KUBELET_BUNDLE};

use super::lint;
use crate::mount::folder;
use crate::world::World;

/// The file that the runtime reads.
const FILE: &str = "config.json";

/// Writes the bundle for the root below `sysroot`, with the folders that it binds.
///
/// # Errors
/// Every broken rule at once, every missing source and target too.
pub(crate) fn write(world: &World, sysroot: &Path) -> Result<()> {
    make_folders(sysroot)?;
    let spec = spec::kubelet(&arguments(sysroot), &|path| inside(sysroot, path).exists());
    check(&spec, sysroot)?;
    let bundle = world.in_run(RUN_KUBELET_BUNDLE);
    folder(&bundle, 0o700)?;
    let file = bundle.join(FILE);
    let text = serde_json::to_string_pretty(&spec).context("writing the kubelet's spec as JSON")?;
    fs::write(&file, text + "\n").with_context(|| format!("writing {}", file.display()))
}

/// Reads the bundle back and lints it, against the root at `sysroot`: what runs is what was checked.
///
/// # Errors
/// If it is not there, does not parse or breaks a rule.
pub(crate) fn verify(world: &World, sysroot: &Path) -> Result<()> {
    let file = world.in_run(RUN_KUBELET_BUNDLE).join(FILE);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let spec: Spec =
        serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    check(&spec, sysroot)
}

/// Makes the folders that the container expects of the host.
///
/// # Errors
/// Names the folder.
pub(crate) fn make_folders(sysroot: &Path) -> Result<()> {
    FOLDERS
        .iter()
        .try_for_each(|(path, mode)| folder(&inside(sysroot, path), *mode))
}

/// What the kubelet is started with: its configuration, and its identity where it has one.
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

/// All that is wrong with a spec, in itself and against the root that it will run in.
fn check(spec: &Spec, sysroot: &Path) -> Result<()> {
    let mut wrong = lint::spec(spec);
    wrong.extend(missing(sysroot));
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "the kubelet's container is refused:\n  {}",
        wrong.join("\n  ")
    )
}

/// The program and the mount targets that the image should have and has not. The root is read-only: the runtime could
/// not make them.
fn missing(sysroot: &Path) -> Vec<String> {
    let rootfs = inside(sysroot, KUBELET_ROOTFS);
    let targets = MOUNTS.iter().map(|mount| {
        let is_file = matches!(mount.source, Source::File(_));
        (mount.target, is_file)
    });
    std::iter::once((PROGRAM, true))
        .chain(targets)
        .filter_map(|(target, is_file)| {
            let expected = if is_file { "file" } else { "folder" };
            match fs::metadata(inside(&rootfs, target)) {
                Ok(meta) if meta.is_file() == is_file => None,
                Ok(_) => Some(format!("{target} in the kubelet's image is no {expected}")),
                Err(error) => Some(format!(
                    "the {expected} {target} is missing in the kubelet's image: {error}"
                )),
            }
        })
        .collect()
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::world::Clock;

    /// A root with a kubelet's image, as the builder makes it.
    pub(in crate::kubelet) fn sysroot(world: &World) {
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
    fn the_bundle_passes_its_own_rules_and_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        sysroot(&world);
        write(&world, &world.sysroot).unwrap();
        verify(&world, &world.sysroot).unwrap();
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
        crate::mount::folder(&world.in_sysroot("/etc/kubernetes"), 0o755).unwrap();
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
        assert!(!world.in_run(RUN_KUBELET_BUNDLE).join(FILE).exists());
    }
}
