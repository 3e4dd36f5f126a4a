//! Recipe: what the user asked for, read from TOML and checked.
//!
//! [`Recipe`] is the checked form: whoever holds one need not check it again. Paths in it are as the
//! user's files are reached from the present folder; nothing in it depends on the building host.

// Floor: platforms by their names in recipes
mod platform;

// Floor: mistakes
mod mistakes;

// Floor: the TOML of a recipe and of what it extends, configs beside it
pub mod node_config;
mod tree;

// Floor: the tables, raw to checked
mod check;

// Floor: the schema
pub mod schema;

// Floor: the reference
pub mod reference;

// Floor: files
mod load;

// Floor: recipes in the program
pub mod carried;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use image::layout::{Architecture, Sizes};
use image::node::NodeSettings;
use serde::Serialize;

use crate::artifact;

pub use check::{
    BaseConfig, ContainerImage, Debian, FileEntry, FileKind, Image, Kernel, KubeletSource,
    Kubernetes, NEWEST_KUBERNETES_MINOR, RootOptions, Units,
};
pub use load::load;
pub use mistakes::Mistakes;
pub use platform::Platform;

/// A checked recipe.
///
/// Its serialised form is in the key of the output folder, so that a new field is in it without further code. Skipped is
/// what says only where inputs come from: their content is in the keys of the steps that read them.
#[derive(Clone, Debug, Serialize)]
pub struct Recipe {
    /// The file that was asked for.
    #[serde(skip)]
    pub path: PathBuf,
    /// Every recipe file that was read, the one asked for first, then what it extends.
    #[serde(skip)]
    pub parts: Vec<PathBuf>,
    /// What the image is called.
    pub image: Image,
    /// Which packages, and from where.
    pub debian: Debian,
    /// The kernel, its modules and its command line.
    pub kernel: Kernel,
    /// Files laid over the packages' files, sorted by path.
    pub files: Vec<FileEntry>,
    /// What systemd starts.
    pub units: Units,
    /// The kubelet, if the image has one.
    pub kubernetes: Option<Kubernetes>,
    /// Defaults of the node settings.
    pub node: NodeSettings,
    /// The Ignition config that is baked into the initramfs.
    pub ignition: Option<BaseConfig>,
    /// The forms of the disk beside the raw one.
    pub artifacts: Vec<artifact::Kind>,
    /// Sizes of the partitions.
    pub sizes: Sizes,
    /// How the root is packed.
    pub root: RootOptions,
    /// Container images that are baked into the root.
    pub containers: Vec<ContainerImage>,
}

/// All of a recipe that decides what its lock holds. A lock is made from this alone, and its digest of the recipe is the hash
/// of all of it, so that a field which a lock is to follow is in the digest as soon as [`crate::lock`] can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockRequest {
    /// Code name of the release.
    pub suite: String,
    /// Components of the archive.
    pub components: Vec<String>,
    /// What machines the packages are for.
    pub architecture: Architecture,
    /// The sets of packages.
    pub sets: Vec<SetRequest>,
    /// The kubelet, if the image has one.
    pub kubelet: Option<KubeletRequest>,
}

/// The kubelet that is locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KubeletRequest {
    /// As [`Kubernetes::version`].
    pub version: String,
    /// As [`Kubernetes::kubelet`], files relative to the recipe's folder: a lock is the same from wherever it is made.
    pub sources: Vec<KubeletSource>,
}

/// A set of packages that is chosen, locked and fetched together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetRequest {
    /// The set's name, by which the lock and [`crate::lock`] know it.
    pub name: &'static str,
    /// The packages asked for.
    pub packages: Vec<String>,
    /// Whether what they depend on belongs to the set.
    pub dependencies: bool,
    /// Whether Debian's essential packages belong to the set.
    pub essential: bool,
    /// Packages that are taken from the suite's backports if they come into the set.
    pub backports: Vec<String>,
}

/// The set of the root's packages.
pub const SET_ROOT: &str = "root";
/// The set of the one package that holds kernel and modules.
pub const SET_KERNEL: &str = "kernel";
/// The set of the packages in the kubelet's container.
pub const SET_KUBELET: &str = "kubelet";
/// The set of the packages of the baked container images.
pub const SET_ETCD: &str = "etcd";
/// The set of the tools that a build needs.
pub const SET_TOOLS_BUILD: &str = "tools-build";
/// The set of the tools that `slipway run` needs.
pub const SET_TOOLS_RUN: &str = "tools-run";
/// The set of the Go toolchain, present when the kubelet may be compiled.
pub const SET_TOOLS_GO: &str = "tools-go";

/// What a build runs: packing, the boot loader and stub, conversions, file systems.
const TOOLS_BUILD: &[&str] = &[
    "e2fsprogs",
    "erofs-utils",
    "kmod",
    "qemu-utils",
    "systemd-boot-efi",
];
/// What `slipway run` runs: QEMU, firmware, network boot, a TPM.
const TOOLS_RUN: &[&str] = &[
    "e2fsprogs",
    "ipxe-qemu",
    "ovmf",
    "qemu-system-x86",
    "qemu-utils",
    "swtpm",
];
/// The Go that the newest supported Kubernetes needs, first the package to ask for; all from backports.
const TOOLS_GO: &[&str] = &["golang-1.26-go", "golang-1.26-src"];

impl Recipe {
    /// The sets of packages that this recipe needs, in the order in which a build uses them.
    #[must_use]
    pub fn sets(&self) -> Vec<SetRequest> {
        let set = |name, packages: Vec<String>, dependencies, essential| SetRequest {
            name,
            packages,
            dependencies,
            essential,
            backports: self.debian.backports.clone(),
        };
        let mut sets = vec![
            set(SET_TOOLS_BUILD, owned_names(TOOLS_BUILD), true, false),
            set(SET_ROOT, self.debian.packages.clone(), true, true),
            set(SET_KERNEL, vec![self.kernel.package.clone()], false, false),
        ];
        if let Some(kubernetes) = &self.kubernetes {
            let packages = kubernetes.container_packages.clone();
            sets.push(set(SET_KUBELET, packages, true, true));
            if kubernetes.kubelet.contains(&KubeletSource::GoModule) {
                sets.push(SetRequest {
                    backports: owned_names(TOOLS_GO),
                    ..set(SET_TOOLS_GO, owned_names(&TOOLS_GO[..1]), true, false)
                });
            }
        }
        let images: Vec<String> = self
            .containers
            .iter()
            .flat_map(|image| owned_names(image.packages()))
            .collect();
        if !images.is_empty() {
            sets.push(set(SET_ETCD, images, true, false));
        }
        sets.push(set(SET_TOOLS_RUN, owned_names(TOOLS_RUN), true, false));
        sets
    }

    /// What its lock is made from.
    #[must_use]
    pub fn lock_request(&self) -> LockRequest {
        let relative = |source: &KubeletSource| match source {
            KubeletSource::File { path } => KubeletSource::File {
                path: path.strip_prefix(self.folder()).unwrap_or(path).to_owned(),
            },
            other => other.clone(),
        };
        LockRequest {
            suite: self.debian.suite.clone(),
            components: self.debian.components.clone(),
            architecture: self.image.architecture,
            sets: self.sets(),
            kubelet: self.kubernetes.as_ref().map(|kubernetes| KubeletRequest {
                version: kubernetes.version.clone(),
                sources: kubernetes.kubelet.iter().map(relative).collect(),
            }),
        }
    }

    /// The lock file beside the recipe.
    #[must_use]
    pub fn lock_path(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    /// The folder that the recipe stands in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

fn owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
