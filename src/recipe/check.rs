//! What the schema cannot say: whether names, versions, sizes and paths of a merged recipe make sense.

mod files;
mod kubernetes;
mod names;
mod sizes;

use std::path::{Path, PathBuf};

use image::layout::Architecture;

use super::mistakes::{Mistake, Mistakes, Place};
use super::raw::{self, RawRecipe, RawSuite};
use super::tree::Node;
use super::{BaseConfig, Debian, Image, Kernel, Recipe, Units};
use crate::artifact;
use crate::recipe::node_config;

/// Turns a merged tree that follows the schema into a recipe, adding every mistake. `gone` are the paths of
/// values that had to be taken out: they are not reported as missing.
pub(super) fn recipe(
    path: &Path,
    parts: Vec<PathBuf>,
    tree: &Node,
    gone: &[String],
    mistakes: &mut Mistakes,
) -> Option<Recipe> {
    let raw: RawRecipe = match serde_json::from_value(tree.to_json()) {
        Ok(raw) => raw,
        Err(error) => {
            mistakes.add(Mistake::at(&Place::top(0), error.to_string(), ""));
            return None;
        }
    };
    let mut check = Check {
        tree,
        gone,
        mistakes,
    };
    let image = check.image(&raw.image);
    let debian = check.debian(raw.debian);
    let kernel = check.kernel(raw.kernel);
    let files = files::check(&mut check, &raw.overlay, &raw.files);
    let units = check.units(raw.units);
    let kubernetes = raw.kubernetes.map(|raw| kubernetes::check(&mut check, raw));
    let node = kubernetes::node(&mut check, raw.node);
    let ignition = check.ignition(raw.ignition.config.as_deref());
    let artifacts = check.artifacts(&raw.artifacts);
    let sizes = sizes::disk(&mut check, &raw.disk);
    let root = sizes::root(&mut check, &raw.root);
    check.unique("containers.images");
    Some(Recipe {
        path: path.to_owned(),
        parts,
        image,
        debian,
        kernel,
        files,
        units,
        kubernetes,
        node,
        ignition,
        artifacts,
        sizes,
        root,
        containers: raw.containers.images,
    })
}

/// What the checks share: the tree that knows the places, and where mistakes go.
struct Check<'a> {
    tree: &'a Node,
    gone: &'a [String],
    mistakes: &'a mut Mistakes,
}

impl<'a> Check<'a> {
    fn find(&self, path: &str) -> Option<&'a Node> {
        let keys: Vec<&str> = path.split('.').collect();
        self.tree.at(&keys)
    }

    /// Where the value at a path stands; if there is none, the nearest table around it.
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

    /// Adds that a required value is missing, unless it was given and wrong.
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

    /// Holds each item of a list of names against a rule, and no name may be given twice.
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

    /// No item of a list of words may be given twice.
    fn unique(&mut self, path: &str) {
        let items = self.find(path).map_or(&[][..], Node::items);
        for (number, item) in items.iter().enumerate() {
            let before = items[..number]
                .iter()
                .find(|before| before.text() == item.text());
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

    /// Holds a text against a rule.
    fn text(&mut self, path: &str, rule: names::Rule) {
        if let Some(node) = self.find(path)
            && let Some(text) = node.text()
            && let Err(why) = rule.check(text)
        {
            self.add(why.mistake(&node.place));
        }
    }

    /// A path of the building host as it stands in the recipe, relative to the file that names it.
    fn host_path(&self, place: &Place, text: &str) -> PathBuf {
        let folder = self.mistakes.path(place.file).parent();
        folder.unwrap_or(Path::new("")).join(text)
    }

    fn image(&mut self, raw: &raw::RawImage) -> Image {
        if raw.name.is_none() {
            self.missing("image.name", "expected name = \"…\" in [image]");
        }
        if raw.version.is_none() {
            self.missing("image.version", "expected version = \"…\" in [image]");
        }
        self.text("image.name", names::Rule::ImageName);
        self.text("image.version", names::Rule::ImageVersion);
        Image {
            name: raw.name.clone().unwrap_or_default(),
            version: raw.version.clone().unwrap_or_default(),
            architecture: match raw.architecture {
                None | Some(raw::RawArchitecture::X86_64) => Architecture::X86_64,
            },
        }
    }

    fn debian(&mut self, raw: raw::RawDebian) -> Debian {
        self.list("debian.components", names::Rule::Component);
        self.list("debian.packages", names::Rule::Package);
        self.list("debian.backports", names::Rule::Package);
        self.list("debian.snapshots", names::Rule::Url);
        self.list("debian.locales", names::Rule::Locale);
        self.text("debian.mirror", names::Rule::Url);
        self.text("debian.security-mirror", names::Rule::Url);
        let mut components = raw.components;
        if components.is_empty() {
            components.push("main".to_owned());
        }
        Debian {
            suite: match raw.suite {
                None | Some(RawSuite::Trixie) => "trixie".to_owned(),
            },
            components,
            packages: raw.packages,
            backports: raw.backports,
            mirror: raw.mirror,
            security_mirror: raw.security_mirror,
            snapshots: raw.snapshots,
            docs: raw.docs.unwrap_or(false),
            locales: raw.locales,
            package_manager: raw.package_manager.unwrap_or(false),
        }
    }

    fn kernel(&mut self, raw: raw::RawKernel) -> Kernel {
        if raw.package.is_none() {
            self.missing(
                "kernel.package",
                "expected package = \"linux-image-…\" in [kernel]",
            );
        }
        if raw.platforms.is_empty() {
            self.missing(
                "kernel.platforms",
                "expected platforms = [\"qemu\", …] in [kernel]",
            );
        }
        self.text("kernel.package", names::Rule::Package);
        self.unique("kernel.platforms");
        self.list("kernel.modules", names::Rule::Module);
        self.list("kernel.cmdline", names::Rule::CmdlineWord);
        Kernel {
            package: raw.package.unwrap_or_default(),
            platforms: raw.platforms,
            modules: raw.modules,
            cmdline: raw.cmdline,
        }
    }

    fn units(&mut self, raw: raw::RawUnits) -> Units {
        let lists = ["units.enable", "units.disable", "units.mask"];
        for path in lists {
            self.list(path, names::Rule::Unit);
        }
        for (number, path) in lists.iter().enumerate() {
            for other in &lists[..number] {
                self.apart(path, other);
            }
        }
        Units {
            enable: raw.enable,
            disable: raw.disable,
            mask: raw.mask,
        }
    }

    /// No name may be in both lists.
    fn apart(&mut self, path: &str, other: &str) {
        let items = |path| self.find(path).map_or(&[][..], Node::items);
        let (these, those) = (items(path), items(other));
        for item in these {
            let Some(text) = item.text() else { continue };
            if let Some(twin) = those.iter().find(|twin| twin.text() == Some(text)) {
                let mistake = Mistake::at(
                    &item.place,
                    format!("`{text}` is in `{path}` and in `{other}`"),
                    "expected it in one of them",
                );
                self.add(mistake.also(&twin.place, "the other one"));
            }
        }
    }

    fn ignition(&mut self, config: Option<&str>) -> Option<BaseConfig> {
        let place = self.place("ignition.config");
        let path = self.host_path(&place, config?);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) => {
                self.add(Mistake::at(
                    &place,
                    format!("reading the config {} failed: {error}", path.display()),
                    "expected a file of Ignition JSON or Butane YAML, relative to this recipe",
                ));
                return None;
            }
        };
        let name = path.display().to_string();
        match node_config::bake(&text, &path) {
            Ok(text) => Some(BaseConfig { name, text }),
            Err(report) => {
                let shown = String::from_utf8_lossy(&text).into_owned();
                let file = self.mistakes.file(path, shown);
                for entry in report.entries {
                    if entry.kind == ignition::Kind::Error {
                        self.config_mistake(file, &entry, &place);
                    }
                }
                None
            }
        }
    }

    /// A mistake of the config, shown in the config's own text and where the recipe names it.
    fn config_mistake(&mut self, file: usize, entry: &ignition::Entry, named: &Place) {
        let start = entry
            .at
            .as_ref()
            .map_or(0, |at| offset(self.mistakes.text(file), at.line, at.column));
        let place = Place::new(file, &(start..start));
        let mistake = Mistake::at(&place, format!("{}: {}", entry.path, entry.message), "here");
        self.add(mistake.also(named, "the config is named here"));
    }

    fn artifacts(&mut self, raw: &[raw::RawArtifact]) -> Vec<artifact::Kind> {
        let items = self.find("artifacts").map_or(&[][..], Node::items);
        let mut kinds = Vec::new();
        for (raw, item) in raw.iter().zip(items) {
            match raw.kind {
                Some(kind) if kinds.contains(&kind) => self.add(Mistake::at(
                    &item.place,
                    format!("the artifact `{}` is asked for twice", kind.name()),
                    "expected each kind once",
                )),
                Some(kind) => kinds.push(kind),
                None if self.gone.iter().any(|gone| gone == "artifacts[].kind") => {}
                None => self.add(Mistake::at(
                    &item.place,
                    "an artifact without `kind`",
                    format!("expected kind = {}", artifact::names()),
                )),
            }
        }
        kinds
    }
}

/// The byte at a line and column that count from 1, columns in characters.
fn offset(text: &str, line: u32, column: u32) -> usize {
    let count = |number: u32| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let mut before = 0;
    for (number, text) in text.split_inclusive('\n').enumerate() {
        if number == count(line) {
            let inside = text.char_indices().nth(count(column));
            return before + inside.map_or(text.trim_end().len(), |(at, _)| at);
        }
        before += text.len();
    }
    before
}
