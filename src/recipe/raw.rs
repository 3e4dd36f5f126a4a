//! The recipe as it is written: every key of the TOML file. From these types comes the JSON Schema, and
//! the schema is what a file is held against, so that the types, the checks and the editors agree.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ContainerImage, Platform};
use crate::artifact;

/// Lists of names: what a recipe gives is added to what it extends; `-name` takes an inherited name away
/// and `-*` all of them. Every other list replaces the inherited one.
pub(super) const APPENDED: &[&str] = &[
    "debian.components",
    "debian.packages",
    "debian.backports",
    "debian.snapshots",
    "debian.locales",
    "kernel.modules",
    "kernel.cmdline",
    "overlay.trees",
    "units.enable",
    "units.disable",
    "units.mask",
    "kubernetes.container-packages",
];

/// Tables that describe one thing and replace the inherited one as a whole (`*` is any key).
pub(super) const WHOLE: &[&str] = &["files.*", "node.etcd"];

/// A Slipway recipe: from it comes one image.
///
/// With `extends`, tables are merged key by key and single values replace inherited ones. Lists of names
/// are added to the inherited list (`-name` takes a name away, `-*` all of them); other lists,
/// the tables `[files."…"]` and the table `[node.etcd]` replace the inherited one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[schemars(title = "Slipway recipe")]
pub(super) struct RawRecipe {
    /// Another recipe that this one builds on; a path relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// What the image is called.
    pub image: RawImage,
    /// Which packages, and from where.
    pub debian: RawDebian,
    /// The kernel and what it is told.
    pub kernel: RawKernel,
    /// Files laid over the packages' files, by their absolute path inside the image.
    pub files: BTreeMap<String, RawFile>,
    /// Whole folders laid over the packages' files.
    pub overlay: RawOverlay,
    /// What systemd starts.
    pub units: RawUnits,
    /// The kubelet. Without this table the image has none.
    pub kubernetes: Option<RawKubernetes>,
    /// Container images that are baked into the image.
    pub containers: RawContainers,
    /// Defaults of the node settings; a node's config may replace them in `/etc/slipway/node.toml`.
    pub node: RawNode,
    /// The Ignition config that is baked in.
    pub ignition: RawIgnition,
    /// Forms of the disk to write beside `disk.raw`.
    pub artifacts: Vec<RawArtifact>,
    /// Sizes of the partitions.
    pub disk: RawDisk,
    /// How the root file system is packed.
    pub root: RawRoot,
}

/// What the image is called.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawImage {
    /// Lower-case letters, digits and hyphens, beginning with a letter. Required.
    pub name: Option<String>,
    /// Letters, digits, dots, hyphens and tildes. Required.
    pub version: Option<String>,
    /// What machines it is for. Default: x86-64.
    pub architecture: Option<RawArchitecture>,
}

/// Architectures that images can be built for.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(super) enum RawArchitecture {
    /// 64-bit x86, Debian's amd64.
    #[serde(rename = "x86-64")]
    X86_64,
}

/// Which packages, and from where.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawDebian {
    /// Code name of the release. Its updates and security updates are always included. Default: trixie.
    pub suite: Option<RawSuite>,
    /// Components of the archive. Default: main.
    pub components: Vec<String>,
    /// Packages of the root, beside the essential ones and whatever these depend on; recommended ones are not followed.
    pub packages: Vec<String>,
    /// Packages that are taken from the suite's backports.
    pub backports: Vec<String>,
    /// Base URL of the archive. Default: SLIPWAY_DEBIAN_MIRROR, else this host's apt configuration.
    pub mirror: Option<String>,
    /// Base URL of the security archive. Default: SLIPWAY_DEBIAN_SECURITY_MIRROR, else this host's apt configuration.
    pub security_mirror: Option<String>,
    /// Base URLs of snapshot archives, tried for locked files that are gone from the mirror.
    pub snapshots: Vec<String>,
    /// Keep documentation and manual pages. Default: false.
    pub docs: Option<bool>,
    /// Locales that are kept beside C.UTF-8.
    pub locales: Vec<String>,
    /// Keep apt and dpkg with its database. Default: false.
    pub package_manager: Option<bool>,
}

/// Debian releases that images can be built from.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawSuite {
    /// Debian 13.
    Trixie,
}

/// The kernel and what it is told.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKernel {
    /// Kernel metapackage, as linux-image-cloud-amd64. Required.
    pub package: Option<String>,
    /// Machines that the image is for: drivers in the initramfs, and where the node looks for its config. Required.
    pub platforms: Vec<Platform>,
    /// Modules that go into the initramfs beside the platforms', by name.
    pub modules: Vec<String>,
    /// Words of the kernel command line; the build adds roothash= itself.
    pub cmdline: Vec<String>,
}

/// What is put at one path. Exactly one of content, source, link, directory and remove is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawFile {
    /// The file's text.
    pub content: Option<String>,
    /// A file to copy; a path relative to this recipe.
    pub source: Option<String>,
    /// A symbolic link with this target.
    pub link: Option<String>,
    /// A folder, when true.
    pub directory: Option<bool>,
    /// Nothing, when true: what a package put there goes, with everything below it.
    pub remove: Option<bool>,
    /// Permission bits in octal, as "0644" or 0o644. Default: 0644; 0755 for folders and executable sources.
    pub mode: Option<TextOrNumber>,
    /// Name or number of the owner. Default: root.
    pub user: Option<TextOrNumber>,
    /// Name or number of the group. Default: root.
    pub group: Option<TextOrNumber>,
}

/// Whole folders laid over the packages' files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawOverlay {
    /// Folders whose content is copied to `/`, all owned by root; paths relative to this recipe.
    /// Files get mode 0644, or 0755 if they are executable; `[files]` wins over them.
    pub trees: Vec<String>,
}

/// What systemd starts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawUnits {
    /// Units to enable, as systemctl enable does.
    pub enable: Vec<String>,
    /// Units to disable.
    pub disable: Vec<String>,
    /// Units to mask: nothing can start them.
    pub mask: Vec<String>,
}

/// The kubelet.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKubernetes {
    /// "1.36" for the newest patch release that a source has, or "1.36.3". Required.
    pub version: Option<String>,
    /// Where the program comes from; the first source that answers is taken, and locked. Required.
    pub kubelet: Vec<RawKubeletSource>,
    /// Packages of the kubelet's container, beside the essential ones.
    pub container_packages: Vec<String>,
}

/// A source of the kubelet: exactly one key is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKubeletSource {
    /// URL of the program on a release server, with {version} (as v1.36.3) and {arch} (as amd64) in it.
    pub release: Option<String>,
    /// The program as a file; a path relative to this recipe.
    pub file: Option<String>,
    /// Reference of an OCI image that holds the program.
    pub oci: Option<String>,
    /// Compile the Go module k8s.io/kubernetes, when true.
    pub go_module: Option<bool>,
}

/// Container images that are baked into the image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawContainers {
    /// Images that are built from Debian packages and imported on first boot.
    pub images: Vec<ContainerImage>,
}

/// Defaults of the node settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawNode {
    /// What the node is for. Default: worker.
    pub role: Option<RawRole>,
    /// The etcd disk of a control plane.
    pub etcd: Option<RawEtcd>,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRole {
    /// Runs etcd on the etcd disk.
    ControlPlane,
    /// Runs workloads only.
    Worker,
}

/// The etcd disk. Exactly one of serial, label and partlabel is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawEtcd {
    /// Serial number of the disk.
    pub serial: Option<String>,
    /// Label of the file system.
    pub label: Option<String>,
    /// Label of the GPT partition.
    pub partlabel: Option<String>,
    /// Whether a blank disk may be formatted. Default: never.
    pub format: Option<RawEtcdFormat>,
    /// Name of the cluster that the data belongs to. Default: default.
    pub cluster: Option<String>,
    /// The smallest disk that may be formatted, as "1 GiB" or in bytes. Default: 1 GiB.
    pub minimum_size: Option<TextOrNumber>,
}

/// Consent to format.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawEtcdFormat {
    /// A blank disk is refused.
    Never,
    /// A disk that is provably blank is formatted.
    IfBlank,
}

/// The Ignition config that is baked in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawIgnition {
    /// The config's file, Ignition JSON or Butane YAML; a path relative to this recipe. Butane's local files are
    /// relative to the config's folder.
    pub config: Option<String>,
}

/// One form of the disk.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawArtifact {
    /// Which form. Required.
    pub kind: Option<artifact::Kind>,
}

/// Sizes of the partitions, as "512 MiB" or in bytes; whole MiB.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawDisk {
    /// EFI system partition. Default: 512 MiB.
    pub esp: Option<TextOrNumber>,
    /// Each of the two root slots. Default: 2 GiB.
    pub root: Option<TextOrNumber>,
    /// Each of the two hash tree slots; a tree takes 0.8 % of its root. Default: 32 MiB.
    pub verity: Option<TextOrNumber>,
    /// The node's own state. Default: 256 MiB.
    pub state: Option<TextOrNumber>,
    /// The least that must be left for var. Default: 4 GiB.
    pub var_minimum: Option<TextOrNumber>,
}

/// How the root file system is packed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawRoot {
    /// none, lz4, lz4hc or zstd, with ",LEVEL" if wanted. Default: lz4 (fast); "zstd,3" is a quarter smaller.
    pub compression: Option<String>,
    /// What is compressed together at most, as "64 KiB" or in bytes: a power of two. Default: 64 KiB.
    pub cluster: Option<TextOrNumber>,
}

/// A value that may be written with or without quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TextOrNumber {
    Text(String),
    Number(u64),
}

impl JsonSchema for TextOrNumber {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TextOrNumber".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "integer"] })
    }
}
