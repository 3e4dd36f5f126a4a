//! Kubelet: the locked programs of its release, its container, and the container images of the static pods.

mod composed;
mod container;
mod images;
mod own_release;
mod prebuilt;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use image::kubelet::PROGRAM;
use image::paths::KUBELET_ROOTFS;

use super::{accounts, rootfs};
use crate::host::cache::Cache;
use crate::host::session::Session;
use crate::install::{self, Purpose, Report};
use crate::layer::{Entry, Layer};
use crate::lock;
use crate::lock::LockedRecipe;
use crate::lock::kubelet::{Program, Programs};
use crate::recipe::{Kubernetes, KubernetesTool, Recipe, SET_KUBELET};

/// The kubelet and its layers of the root. Empty if the recipe has none.
#[derive(Clone, Debug, Default)]
pub struct Kubelet {
    /// The programs of the release.
    pub programs: Option<Programs>,
    /// Its container, the tools of its release, and the container images of static pods.
    pub layers: Vec<Layer>,
    /// Its container as an OCI layout.
    pub layout: Option<PathBuf>,
    /// The references of the baked container images, by their names without registry and tag.
    pub images: BTreeMap<String, String>,
    /// The baked images that others built: full name and digest of the manifest.
    pub prebuilt: Vec<(String, String)>,
    /// What became of the packages of its container, and of the container images that are composed of packages, by the names of their sets.
    pub reports: BTreeMap<String, Report>,
}

impl Kubelet {
    /// The kubelet's program.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        self.programs.as_ref().map(|programs| &programs.kubelet)
    }
}

/// Installs the kubelet of the lock, if it has one.
///
/// # Errors
/// If a program or a package cannot be fetched, or an image cannot be made of them.
pub fn install(session: &Session, locked: &LockedRecipe) -> Result<Kubelet> {
    let lock = &locked.lock;
    let Some(programs) = lock::kubelet::obtain(session, locked)? else {
        return Ok(Kubelet::default());
    };
    let program = &programs.kubelet;
    let packages = &locked.recipe.kubernetes.as_ref();
    let packages = packages.map(|wants| wants.container_packages.clone());
    let options = rootfs::options(locked, Purpose::Container, packages.unwrap_or_default());
    let debs = locked.packages(session, SET_KUBELET)?;
    let rootfs = install::install(session, "kubelet rootfs", &debs, &options)?;
    let rootfs =
        rootfs::without_generated(session, locked, SET_KUBELET, (&debs, &options), rootfs)?;
    let rootfs = accounts::of_container(&locked.recipe, rootfs)?;
    let mut images = images::bake(session, locked, &programs.components)?;
    let mistakes = locked
        .recipe
        .cluster_mistakes(&program.version, &images.references);
    ensure!(
        mistakes.is_empty(),
        "the cluster object does not fit the image:\n  {}",
        mistakes.join("\n  ")
    );
    let packages = &locked.recipe.debian.packages;
    let content = container::Content {
        rootfs: &rootfs,
        program,
        has_iscsi: packages.iter().any(|name| name == image::iscsi::PACKAGE),
    };
    let layers = vec![
        container::layer(content)?,
        tools(&session.cache, &locked.recipe, &programs)?,
        own_release::layer(session, &locked.recipe, &programs)?,
        images.layer,
    ];
    let architecture = locked.recipe.image.architecture.debian();
    let layout = container::image(session, content, architecture, lock.epoch)?;
    let set = SET_KUBELET.to_owned();
    images.reports.insert(set, rootfs.report);
    Ok(Kubelet {
        programs: Some(programs),
        layers,
        layout: Some(layout),
        images: images.references,
        prebuilt: images.prebuilt,
        reports: images.reports,
    })
}

/// The tools of Kubernetes' release that the recipe wants, in `/usr/bin`.
fn tools(cache: &Cache, recipe: &Recipe, programs: &Programs) -> Result<Layer> {
    let mut entries = Vec::new();
    for tool in recipe.kubernetes.iter().flat_map(|wants| &wants.tools) {
        let name = tool.name();
        if programs.own.contains_key(name) {
            continue;
        }
        let program = programs
            .components
            .get(name)
            .with_context(|| format!("the lock has no program {name}"))?;
        entries.push(Entry::copy(
            format!("/usr/bin/{name}"),
            0o755,
            &program.path,
        ));
    }
    // kubeadm asks it for its version (`kubelet --version`), and takes no other word for it.
    let asks = |wants: &Kubernetes| wants.tools.contains(&KubernetesTool::Kubeadm);
    if recipe.kubernetes.as_ref().is_some_and(asks) {
        let program = format!("{KUBELET_ROOTFS}{PROGRAM}");
        entries.push(Entry::symlink(PROGRAM, program));
    }
    Layer::new(cache, entries)
}
