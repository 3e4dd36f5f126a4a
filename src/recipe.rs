//! Recipe: the user's requirements for an image, read from TOML and checked.
//!
//! [`Recipe`] is the checked form and needs no further check. Its paths are relative to the
//! current folder or absolute; no field depends on the building host.

// Floor: platforms by their names in recipes
mod platform;

// Floor: mistakes
mod mistakes;

// Floor: the TOML of a recipe and of what it extends, configs beside it
pub mod node_config;
mod tree;

// Floor: where the words of a checked recipe are written
mod places;

// Floor: the tables, raw to checked
mod check;

// Floor: the schema
pub mod schema;

// Floor: the reference
pub mod reference;

// Floor: values of the command line
mod setting;

// Floor: files
mod load;

// Floor: recipes in the program
pub mod carried;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use image::iscsi::PACKAGE;
use image::layout::{Architecture, SectorSize, Sizes};
use image::node::{NodeSettings, Role};
use serde::Serialize;

use crate::artifact;
use crate::debian::third_party::ThirdParty;
use crate::node_files::Features;

pub use check::{
    Accounts, ArchiveFile, Authority, BaseConfig, CniPlugins, Composed, ContainerImage,
    ContainerdRelease, DebFile, DebFrom, Debian, Download, EtcdRelease, FileEntry, FileKind,
    FileTree, Image, ImagesFrom, Kernel, KubeletSource, Kubernetes, KubernetesTool, Locale,
    Lockdown, NEWEST_KUBERNETES_MINOR, Prebuilt, PrebuiltFrom, RootOptions, Run, TreeFrom, Units,
    User, aws_cloud_controller,
};
pub(crate) use check::{LOAD, ZONES, covered};
pub use load::{Choice, load, load_as, only_one, several_given, variants};
pub use mistakes::Mistakes;
pub(crate) use mistakes::{Mistake, Place, nearest};
pub use places::Places;
pub use platform::Platform;

/// A checked recipe.
///
/// Its serialised form is in the key of the output folder, so that a new field is in it without further code. Fields
/// that only name the source of an input are skipped: the input's content is in the key of the step that reads it.
#[derive(Clone, Debug, Serialize)]
pub struct Recipe {
    /// The requested file.
    #[serde(skip)]
    pub path: PathBuf,
    /// Which of the file's variants it is.
    #[serde(skip)]
    pub variant: Option<String>,
    /// Every recipe file that was read: the requested one first, then those that it extends.
    #[serde(skip)]
    pub parts: Vec<PathBuf>,
    /// Where its words are written, for mistakes that only a lock or a build can find.
    #[serde(skip)]
    pub places: Places,
    /// Name, version and architecture of the image.
    pub image: Image,
    /// The packages and their archives.
    pub debian: Debian,
    /// The kernel, its modules and its command line.
    pub kernel: Kernel,
    /// Users and groups beside those of the packages, and the numbers of these.
    pub accounts: Accounts,
    /// The locales that are made. The default one and the time zone are among the files too.
    pub locale: Locale,
    /// Files laid over the packages' files, sorted by path.
    pub files: Vec<FileEntry>,
    /// Trees of files that are laid below these, in this order.
    pub trees: Vec<FileTree>,
    /// Programs that run over the packages and these trees, in this order.
    pub runs: Vec<Run>,
    /// Units to enable, disable and mask.
    pub units: Units,
    /// The kubelet, if the image has one.
    pub kubernetes: Option<Kubernetes>,
    /// Defaults of the node settings.
    pub node: NodeSettings,
    /// The Ignition config that is baked into the initramfs.
    pub ignition: Option<BaseConfig>,
    /// The formats of the disk beside the raw one.
    pub artifacts: Vec<artifact::Kind>,
    /// Sizes of the partitions.
    pub sizes: Sizes,
    /// The logical sectors of the disks that the image is for.
    pub sector: SectorSize,
    /// The compression of the root.
    pub root: RootOptions,
    /// Certificate authorities that the image trusts beside those of its packages.
    pub authorities: Vec<Authority>,
    /// All of them in PEM; empty without any.
    #[serde(skip)]
    pub ca_bundle: String,
    /// Container images that are baked into the root.
    pub containers: Vec<ContainerImage>,
    /// Where they come from.
    pub images_from: ImagesFrom,
    /// The release of etcd in the image that the build makes.
    pub etcd: EtcdRelease,
    /// The release of containerd.
    pub containerd: ContainerdRelease,
    /// Container images that others built, which are baked in too.
    pub prebuilt: Vec<Prebuilt>,
    /// Container images that the build makes of Debian packages, which are baked in too.
    pub composed: Vec<Composed>,
}

/// The part of a recipe that its lock depends on. A lock is made from this alone, and its digest of the recipe is the
/// hash of all of it, so that every field that [`crate::lock`] can read is in the digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockRequest {
    /// Code name of the release.
    pub suite: String,
    /// Components of the archive.
    pub components: Vec<String>,
    /// The archives beside Debian's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archives: Vec<ThirdParty>,
    /// As [`Debian::debs`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub debs: Vec<DebFile>,
    /// As [`Debian::versions`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// The machines that the packages are for.
    pub architecture: Architecture,
    /// The sets of packages.
    pub sets: Vec<SetRequest>,
    /// The kubelet, if the image has one.
    pub kubelet: Option<KubeletRequest>,
    /// Images of the release that a registry has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ContainerImage>,
}

/// The kubelet to lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KubeletRequest {
    /// As [`Kubernetes::version`].
    pub version: String,
    /// As [`Kubernetes::kubelet`], files relative to the recipe's folder: the lock is the same from every current
    /// folder.
    pub sources: Vec<KubeletSource>,
    /// The other programs of the release, by name.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub components: BTreeSet<String>,
    /// The server of crictl and the CNI plugins, if one of them is among these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub github: Option<String>,
}

/// A set of packages that is chosen, locked and fetched together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetRequest {
    /// The set's name in the lock and in [`crate::lock`].
    pub name: Cow<'static, str>,
    /// The requested packages.
    pub packages: Vec<String>,
    /// Whether their dependencies belong to the set.
    pub dependencies: bool,
    /// Whether Debian's essential packages belong to the set.
    pub essential: bool,
    /// Whether what they recommend belongs to the set, as far as it fits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recommends: bool,
    /// Packages that are taken from the suite's backports if they come into the set.
    pub backports: Vec<String>,
}

impl SetRequest {
    /// Whether these are tools of Slipway's, of which the image has nothing.
    #[must_use]
    pub fn is_tools(&self) -> bool {
        [SET_TOOLS_BUILD, SET_TOOLS_RUN, SET_TOOLS_GO].contains(&&*self.name)
    }
}

/// The set of the root's packages.
pub const SET_ROOT: &str = "root";
/// The set of the one package that holds kernel and modules.
pub const SET_KERNEL: &str = "kernel";
/// The set of the packages that DKMS compiles modules of, with all that it takes to compile them, present when there are any. The image
/// has nothing of them but the modules.
pub const SET_DKMS: &str = "dkms";
/// The set of the one package that locales are made of, present when there are any.
pub const SET_LOCALES: &str = "locales";
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

/// Debian's CNI plugins.
const CNI_PLUGINS_PACKAGE: &str = "containernetworking-plugins";
/// The CNI plugins of their own release, as a program of the lock.
const CNI_PLUGINS: &str = "cni-plugins";
/// The name of containerd and what belongs to it, of their own release.
pub(crate) const CONTAINERD: &str = "containerd";

/// Packages of a build's tools: packing, the boot loader and stub, conversions, file systems.
const TOOLS_BUILD: &[&str] = &[
    "e2fsprogs",
    "erofs-utils",
    "kmod",
    "qemu-utils",
    "systemd-boot-efi",
];
/// Packages of the tools for `slipway run`: QEMU, firmware, network boot, a TPM.
const TOOLS_RUN: &[&str] = &[
    "e2fsprogs",
    "ipxe-qemu",
    "ovmf",
    "qemu-system-x86",
    "qemu-utils",
    "swtpm",
];
/// What compiles the modules of packages, beside the headers of their kernel.
const DKMS: &[&str] = &["dkms", "gcc"];
/// The Go for the newest supported Kubernetes, first the package to request; all from backports.
const TOOLS_GO: &[&str] = &["golang-1.26-go", "golang-1.26-src"];

impl Recipe {
    /// The sets of packages of this recipe, in the order of their use in a build.
    #[must_use]
    pub fn sets(&self) -> Vec<SetRequest> {
        let set = |name: &'static str, packages: Vec<String>, dependencies, essential| SetRequest {
            name: name.into(),
            packages,
            dependencies,
            essential,
            recommends: false,
            backports: self.debian.backports.clone(),
        };
        let mut sets = vec![
            set(SET_TOOLS_BUILD, owned_names(TOOLS_BUILD), true, false),
            SetRequest {
                recommends: self.debian.recommends,
                ..set(SET_ROOT, self.root_packages(), true, true)
            },
            set(SET_KERNEL, vec![self.kernel.package.clone()], false, false),
        ];
        if !self.kernel.dkms.is_empty() {
            // The headers follow from the kernel that is chosen.
            let compiles = owned_names(DKMS).into_iter();
            let packages = compiles.chain(self.kernel.dkms.iter().cloned()).collect();
            sets.push(set(SET_DKMS, packages, true, true));
        }
        if !self.locale.generate.is_empty() {
            sets.push(set(SET_LOCALES, owned_names(&["locales"]), false, false));
        }
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
            .built()
            .iter()
            .filter(|image| !self.compiles(**image))
            .flat_map(|image| owned_names(image.packages()))
            .collect();
        if !images.is_empty() {
            sets.push(set(SET_ETCD, images, true, false));
        }
        for image in &self.composed {
            sets.push(SetRequest {
                name: image.set().into(),
                ..set(SET_KUBELET, image.packages.clone(), true, true)
            });
        }
        sets.push(set(SET_TOOLS_RUN, owned_names(TOOLS_RUN), true, false));
        sets
    }

    /// Whether an image is not made of Debian's packages, as it is otherwise, but of a compiled program.
    fn compiles(&self, image: ContainerImage) -> bool {
        image == ContainerImage::Etcd && self.etcd == EtcdRelease::Of36
    }

    /// The packages of the root that are asked for.
    fn root_packages(&self) -> Vec<String> {
        let mut packages = self.debian.packages.clone();
        let plugins = CNI_PLUGINS_PACKAGE.to_owned();
        if self.cni_plugins() == Some(CniPlugins::Debian) && !packages.contains(&plugins) {
            packages.push(plugins);
        }
        packages
    }

    /// Where the CNI plugins come from, if the recipe says so.
    #[must_use]
    pub fn cni_plugins(&self) -> Option<CniPlugins> {
        self.kubernetes.as_ref()?.cni_plugins
    }

    /// The images that the build makes.
    #[must_use]
    pub fn built(&self) -> &[ContainerImage] {
        match self.images_from {
            ImagesFrom::Build => &self.containers,
            ImagesFrom::Registry => &[],
        }
    }

    /// The programs beside the kubelet, by name: those of container images, the node's tools, and the CNI plugins of their release.
    #[must_use]
    pub fn components(&self) -> BTreeSet<String> {
        let images = self.built().iter();
        let images = images.filter_map(|image| match self.compiles(*image) {
            true => Some(image.name()),
            false => image.component(),
        });
        let tools = self
            .kubernetes
            .iter()
            .flat_map(|kubernetes| &kubernetes.tools);
        let plugins = self.cni_plugins() == Some(CniPlugins::Release);
        let containerd = self.containerd == ContainerdRelease::Of22;
        images
            .chain(tools.map(|tool| tool.name()))
            .chain(containerd.then_some(CONTAINERD))
            .chain(plugins.then_some(CNI_PLUGINS))
            .map(str::to_owned)
            .collect()
    }

    /// The part that its lock is made from.
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
            archives: self.debian.archives.clone(),
            debs: self.debian.debs.clone(),
            versions: self.debian.versions.clone(),
            architecture: self.image.architecture,
            sets: self.sets(),
            kubelet: self.kubernetes.as_ref().map(|kubernetes| KubeletRequest {
                version: kubernetes.version.clone(),
                sources: kubernetes.kubelet.iter().map(relative).collect(),
                components: self.components(),
                github: kubernetes
                    .takes_own_releases()
                    .then(|| kubernetes.github.clone()),
            }),
            images: match self.images_from {
                ImagesFrom::Build => Vec::new(),
                ImagesFrom::Registry => self.containers.clone(),
            },
        }
    }

    /// The files of servers that it names by URL and SHA-256, each with the place that names it.
    pub fn downloads(&self) -> impl Iterator<Item = (&Download, &str)> {
        let files = self.files.iter().filter_map(|file| match &file.kind {
            FileKind::Download(download) => Some((download, file.origin.as_str())),
            _ => None,
        });
        let trees = self.trees.iter();
        files.chain(trees.filter_map(|tree| Some((tree.download()?, tree.origin.as_str()))))
    }

    /// Where the recipe has the hash of a file of a server.
    pub(crate) fn download_place(&self, sha256: &str) -> Option<Place> {
        let is_one =
            |file: &&FileEntry| matches!(&file.kind, FileKind::Download(of) if of.sha256 == sha256);
        let Some(file) = self.files.iter().find(is_one) else {
            let is_one = |tree: &&FileTree| tree.download().is_some_and(|of| of.sha256 == sha256);
            let tree = self.trees.iter().find(is_one)?;
            return self.places.item(&tree.list(), tree.number);
        };
        self.places.value(&["files", &file.path, "sha256"])
    }

    /// The lock file beside the recipe: each variant has its own.
    #[must_use]
    pub fn lock_path(&self) -> PathBuf {
        lock_path(&self.path, self.variant.as_deref())
    }

    /// What decides which files Slipway writes into the root.
    #[must_use]
    pub fn features(&self) -> Features {
        Features {
            kubernetes: self.kubernetes.is_some(),
            etcd: self.containers.contains(&ContainerImage::Etcd)
                && self.node.role == Role::ControlPlane,
            iscsi: self.debian.packages.iter().any(|name| name == PACKAGE),
        }
    }

    /// The recipe's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

fn lock_path(recipe: &Path, variant: Option<&str>) -> PathBuf {
    match variant {
        Some(variant) => recipe.with_extension(format!("{variant}.lock")),
        None => recipe.with_extension("lock"),
    }
}

fn owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
