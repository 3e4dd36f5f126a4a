//! The tables of a recipe, a module each: the raw table, the checked table, and the check between them.
//!
//! The JSON Schema is generated from the raw types, and every file is validated against the schema, so that the types,
//! the checks and the editors agree. The checks cover rules beyond the schema: whether names, versions, sizes and paths
//! are valid.

// Floor: names and sizes
mod download;
mod names;
mod paths;
mod references;
mod size;

// Floor: what files of a recipe are filled in with
mod image;
mod variables;

// Floor: container images of packages
mod composed;

// Floor: container images
mod containers;

// Floor: trees of files
mod trees;

// Floor: files that a recipe brings
mod files;

// Floor: files that its words come to
mod made;

// Floor: the tables of a recipe
mod accounts;
mod archives;
mod artifacts;
mod build;
mod ca;
mod debian;
mod debs;
mod disk;
mod ignition;
mod kernel;
mod kubernetes;
mod locale;
mod node;
mod root;
mod sysctl;
mod units;

// Floor: what the files of a recipe hold
mod addons;
mod cluster_object;
mod containerd;
mod mirrors;

// Floor: programs whose version follows that of Kubernetes
mod cloud_controller;

// Floor: what Slipway writes
mod reserved;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use accounts::{RawGroup, RawUser};
use artifacts::RawArtifact;
use build::RawBuild;
use ca::RawCa;
use containers::RawContainers;
use debian::RawDebian;
use disk::RawDisk;
use files::{RawFile, RawOverlay};
use ignition::RawIgnition;
use image::RawImage;
use kernel::RawKernel;
use kubernetes::RawKubernetes;
use locale::RawLocale;
use made::Made;
pub use mirrors::ContainerdRelease;
use mirrors::RawContainerd;
use node::RawNode;
use root::RawRoot;
use sysctl::RawSetting;
use units::RawUnits;
use variables::Variables;

pub use accounts::{Accounts, User};
pub use build::Run;
pub use ca::Authority;
pub use cloud_controller::aws_cloud_controller;
pub use composed::Composed;
pub use containers::{ContainerImage, EtcdRelease, ImagesFrom, Prebuilt, PrebuiltFrom};
pub use debian::Debian;
pub use debs::{DebFile, DebFrom};
pub use download::Download;
pub use files::{FileEntry, FileKind};
pub use ignition::BaseConfig;
pub use image::Image;
pub(crate) use kernel::LOAD;
pub use kernel::{Kernel, Lockdown};
pub use kubernetes::{
    CniPlugins, KubeletSource, Kubernetes, KubernetesTool, NEWEST_KUBERNETES_MINOR,
};
pub use locale::Locale;
pub(crate) use locale::ZONES;
pub(crate) use paths::covered;
pub use root::RootOptions;
pub use trees::{ArchiveFile, FileTree, TreeFrom};
pub use units::Units;

use super::Recipe;
use super::mistakes::{Mistake, Mistakes, Place};
use super::places::Places;
use super::tree::{self, Node};

/// A Slipway recipe: from it comes one image.
///
/// With `extends`, tables are merged key by key and single values replace inherited ones. Lists of names
/// are added to the inherited list (`-name` takes a name away, `-*` all of them); other lists,
/// the tables `[files."…"]` and the table `[node.etcd]` replace the inherited one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[schemars(title = "Slipway recipe")]
pub(super) struct RawRecipe {
    /// Another recipe that this one builds on, or a list of several, of which a later one wins: paths relative to this file, or
    /// slipway:NAME for a recipe that the program carries.
    extends: Option<TextOrTexts>,
    /// Recipes of their own in this one, by name: what such a table has is laid over the rest of the file. Its image is called after
    /// both, unless it says otherwise.
    variants: BTreeMap<String, RawRecipe>,
    /// What the image is called.
    image: RawImage,
    /// Values by name, for files with `template = true`.
    variables: BTreeMap<String, String>,
    /// Which packages, and from where.
    debian: RawDebian,
    /// The kernel, its modules and its command line.
    kernel: RawKernel,
    /// Settings of the running kernel by their names, as `net.ipv4.tcp_keepalive_time = 300`, each a number or a text. They are written
    /// to `/etc/sysctl.d/90-recipe.conf`.
    sysctl: BTreeMap<String, RawSetting>,
    /// Users of the image, by name.
    users: BTreeMap<String, RawUser>,
    /// Groups of the image, by name.
    groups: BTreeMap<String, RawGroup>,
    /// The language of the system's programs, the locales that the image has, and the time zone.
    locale: RawLocale,
    /// Files laid over the packages' files, by their absolute path inside the image. Paths that Slipway writes are refused.
    files: BTreeMap<String, RawFile>,
    /// Whole folders laid over the packages' files. Paths that Slipway writes are refused.
    overlay: RawOverlay,
    /// What the build does in the image beside installing packages.
    build: RawBuild,
    /// Certificate authorities that the image trusts beside those of its packages.
    ca: RawCa,
    /// What systemd starts.
    units: RawUnits,
    /// The kubelet. Without this table the image has none.
    kubernetes: Option<RawKubernetes>,
    /// Container images that are baked into the image.
    containers: RawContainers,
    /// Mirrors of registries, for what a node pulls.
    containerd: RawContainerd,
    /// Defaults of the node settings; a node's config may replace them in `/etc/slipway/node.toml`.
    node: RawNode,
    /// The Ignition config that is baked in.
    ignition: RawIgnition,
    /// Forms of the disk to write beside `disk.raw`.
    artifacts: Vec<RawArtifact>,
    /// Sizes of the partitions.
    disk: RawDisk,
    /// How the root file system is packed.
    root: RawRoot,
}

/// A text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TextOrTexts {
    Text(#[expect(dead_code, reason = "read with the files")] String),
    Texts(#[expect(dead_code, reason = "read with the files")] Vec<String>),
}

impl JsonSchema for TextOrTexts {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TextOrTexts".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
    }
}

/// Turns a merged tree that follows the schema into a recipe, adding every mistake. `gone` has the paths of
/// values that the schema check removed: they are not reported as missing.
#[allow(
    clippy::too_many_lines,
    reason = "a line for each field: the compiler warns of one that is forgotten"
)]
pub(super) fn recipe(
    path: &Path,
    variant: Option<String>,
    tree: &Node,
    gone: &[String],
    mistakes: &mut Mistakes,
) -> Option<Recipe> {
    // All fields by name, here and in the tables: the compiler warns of a field without a check.
    let RawRecipe {
        extends: _,
        variants: _,
        image,
        variables,
        debian,
        kernel,
        sysctl,
        users,
        groups,
        locale,
        files,
        overlay,
        build,
        ca,
        units,
        kubernetes,
        containers,
        containerd,
        node,
        ignition,
        artifacts,
        disk,
        root,
    } = raw(tree, mistakes)?;
    let mut check = Check::new(tree, gone, mistakes);
    let variables = Variables::check(&mut check, variables, &image);
    let image = check.image(&image);
    let debian = check.debian(debian);
    let kernel = check.kernel(kernel);
    let accounts = accounts::check(&mut check, users, groups);
    let (locale, made) = check.words(locale, &sysctl, &kernel, kubernetes.is_some());
    let mut files = files::check(&mut check, &overlay, &files, &variables);
    mirrors::check(&mut check, &containerd, kubernetes.is_some(), &mut files);
    let containerd = mirrors::release(&mut check, &containerd, kubernetes.is_some());
    let (files, places) = made::with_made(&mut check, files, made);
    let trees = trees::check(&mut check, &overlay.archives, &overlay.images);
    addons::check(&mut check, &files);
    let runs = build::check(&mut check, &build);
    let authorities = ca::check(&mut check, &ca);
    let units = check.units(units);
    let kubernetes = kubernetes.map(|raw| kubernetes::check(&mut check, raw));
    let node = node::check(&mut check, node);
    let version = kubernetes.as_ref().map(|wanted| wanted.version.as_str());
    cluster_object::check(&mut check, &files, node.role, version);
    let ignition = check.ignition(ignition.config.as_deref());
    let artifacts = check.artifacts(&artifacts);
    let (sizes, sector) = disk::check(&mut check, &disk);
    check.sectors(&artifacts, sector);
    let root = root::check(&mut check, &root);
    let containers = check.containers(containers);
    cloud_controller::check(&mut check, &containers, version);
    let recipe = Recipe {
        path: path.to_owned(),
        variant,
        parts: check.mistakes.recipes().cloned().collect(),
        places: Places::new(check.mistakes, tree),
        image,
        debian,
        kernel,
        accounts,
        locale,
        files,
        trees,
        runs,
        units,
        kubernetes,
        node,
        ignition,
        artifacts,
        sizes,
        sector,
        root,
        ca_bundle: authorities.iter().map(|one| one.pem.as_str()).collect(),
        authorities,
        containers: containers.images,
        images_from: containers.images_from,
        etcd: containers.etcd,
        containerd,
        prebuilt: containers.prebuilt,
        composed: containers.composed,
    };
    reserved::check(&mut check, &recipe, &places);
    Some(recipe)
}

/// The tables as they are written.
fn raw(tree: &Node, mistakes: &mut Mistakes) -> Option<RawRecipe> {
    match serde_json::from_value(tree.to_json()) {
        Ok(raw) => Some(raw),
        Err(error) => {
            mistakes.add(Mistake::at(&Place::top(0), error.to_string(), ""));
            None
        }
    }
}

/// The mistake of a variant's name, which is part of an image's and of a file's.
pub(super) fn variant_name(name: &str, place: &Place) -> Option<Mistake> {
    let why = names::Rule::ImageName.check(name).err()?;
    Some(why.mistake(place))
}

impl Recipe {
    /// The mistakes of the cluster object that the recipe bakes in, for the images that its own has, by component, and the
    /// patch release of Kubernetes: what only a lock knows.
    #[must_use]
    pub fn cluster_mistakes(
        &self,
        kubernetes: &str,
        images: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let version = kubernetes.trim_start_matches('v');
        cluster_object::mistakes(&self.files, self.node.role, Some(version), Some(images))
    }
}

/// The state of all checks: the tree with its positions, and the collected mistakes.
struct Check<'a> {
    tree: &'a Node,
    gone: &'a [String],
    mistakes: &'a mut Mistakes,
}

impl<'a> Check<'a> {
    fn new(tree: &'a Node, gone: &'a [String], mistakes: &'a mut Mistakes) -> Self {
        Self {
            tree,
            gone,
            mistakes,
        }
    }

    /// The locale, and the files that words about it, the kernel's settings and its modules come to.
    fn words(
        &mut self,
        locale: RawLocale,
        sysctl: &BTreeMap<String, RawSetting>,
        kernel: &Kernel,
        has_kubelet: bool,
    ) -> (Locale, Vec<Made>) {
        let (locale, mut made) = locale::check(self, locale);
        made.extend(sysctl::check(self, sysctl, has_kubelet));
        made.extend(self.files_of_modules(kernel));
        (locale, made)
    }

    fn find(&self, path: &str) -> Option<&'a Node> {
        let keys: Vec<&str> = path.split('.').collect();
        self.tree.at(&keys)
    }

    /// The position of the value at a path; if there is none, of the nearest table around it.
    fn place(&self, path: &str) -> Place {
        let keys: Vec<&str> = path.split('.').collect();
        if let Some(node) = self.tree.at(&keys) {
            return node.place.clone();
        }
        let around = keys.split_last().and_then(|(_, around)| {
            let (last, before) = around.split_last()?;
            Some(self.tree.at(before)?.entry(last)?.key.clone())
        });
        around.unwrap_or(Place::top(0))
    }

    fn add(&mut self, mistake: Mistake) {
        self.mistakes.add(mistake);
    }

    /// Adds that a required value is missing, unless an invalid value was given.
    fn missing(&mut self, path: &str, expected: &str) {
        let lost = self.gone.iter().any(|gone| {
            gone.trim_end_matches("[]") == path || path.starts_with(&format!("{gone}."))
        });
        if !lost {
            let mistake = Mistake::at(
                &self.place(path),
                format!("`{path}` is missing"),
                expected.to_owned(),
            );
            self.add(mistake);
        }
    }

    /// Checks each item of a list of names against a rule, and that no name is given twice.
    fn list(&mut self, path: &str, rule: names::Rule) {
        for item in self.find(path).map_or(&[][..], Node::items) {
            if let Some(text) = item.text()
                && let Err(why) = rule.check(text)
            {
                self.add(why.mistake(&item.place));
            }
        }
        self.unique(path);
    }

    /// Checks that no item of a list of words or paths is given twice.
    fn unique(&mut self, path: &str) {
        let items = self.find(path).map_or(&[][..], Node::items);
        for (number, item) in items.iter().enumerate() {
            let before = items[..number]
                .iter()
                .find(|before| tree::is_same(path, before, item, self.mistakes));
            if let (Some(before), Some(text)) = (before, item.text()) {
                let mistake = Mistake::at(
                    &item.place,
                    format!("`{text}` is given twice in `{path}`"),
                    "expected each name once",
                );
                self.add(mistake.also(&before.place, "first given here"));
            }
        }
    }

    /// Checks the names of variables of an item's `environment`.
    fn environment(&mut self, environment: &BTreeMap<String, String>, item: &Node) {
        let place = item.at(&["environment"]).unwrap_or(item).place.clone();
        for name in environment.keys() {
            let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !good {
                let found = format!("{name:?} is not the name of a variable of the environment");
                let expected = "expected letters, digits and underscores, beginning with a letter";
                self.add(Mistake::at(&place, found, expected));
            }
        }
    }

    /// Checks a text against a rule.
    fn text(&mut self, path: &str, rule: names::Rule) {
        if let Some(node) = self.find(path)
            && let Some(text) = node.text()
            && let Err(why) = rule.check(text)
        {
            self.add(why.mistake(&node.place));
        }
    }

    /// A path of the building host from the recipe, resolved relative to the file that names it.
    fn host_path(&self, place: &Place, text: &str) -> PathBuf {
        let folder = self.mistakes.path(place.file).parent();
        folder.unwrap_or(Path::new("")).join(text)
    }
}
