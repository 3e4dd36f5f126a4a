//! Compare: what one image has otherwise than another, read from their bytes: packages, the kernel and its command line, sizes, and
//! every file of the verified root.

mod files;
mod text;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::host::session::Session;
use crate::inspect::{self, Report};
use crate::install::tools::Tools;

pub use files::FileChange;

/// What two images have otherwise; what is equal is left out.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Single values: image, kernel, Kubernetes, root hash, sizes in bytes.
    pub values: Vec<Value>,
    /// Words of the kernel's command line, without the root hash.
    pub cmdline: Sets,
    /// Modules in the initramfs.
    pub modules: Sets,
    /// Packages and other components.
    pub packages: Vec<Version>,
    /// Paths of the root; absent if they were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileChange>>,
    /// What could not be compared, and why.
    pub notes: Vec<String>,
}

/// One value that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// What it is.
    pub name: String,
    /// In the first image; absent if it has none.
    pub from: Option<String>,
    /// In the second image.
    pub to: Option<String>,
}

/// Names that only one of the images has.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sets {
    /// Only the first.
    pub removed: Vec<String>,
    /// Only the second.
    pub added: Vec<String>,
}

/// A component of which the images have other versions, or which one of them does not have.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Its versions in the first image.
    pub from: Vec<String>,
    /// Its versions in the second image.
    pub to: Vec<String>,
}

impl Comparison {
    /// Whether the images are equal in all that was compared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
            && self.cmdline == Sets::default()
            && self.modules == Sets::default()
            && self.packages.is_empty()
            && self.files.as_ref().is_none_or(Vec::is_empty)
    }
}

/// Two images that were read.
#[derive(Debug)]
pub struct Images<'a> {
    from: (&'a Path, Report),
    to: (&'a Path, Report),
}

impl<'a> Images<'a> {
    /// Reads both.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn read(from: &'a Path, to: &'a Path) -> Result<Self> {
        Ok(Self {
            from: (from, inspect::inspect(from)?),
            to: (to, inspect::inspect(to)?),
        })
    }

    /// Compares all but the files of the roots. If both roots have the same hash, their files are equal, and the list of
    /// differences is empty; otherwise it is absent.
    #[must_use]
    pub fn compare(&self) -> Comparison {
        let (old, new) = (&self.from.1, &self.to.1);
        let hash = |report: &Report| report.root.as_ref().map(|root| root.hash);
        let is_same = hash(old).is_some() && hash(old) == hash(new);
        Comparison {
            files: is_same.then(Vec::new),
            ..reports(old, new)
        }
    }

    /// The files of the roots that differ: `tools` unpack both roots into the cache.
    ///
    /// # Errors
    /// If an image has no root, or its root cannot be unpacked.
    pub fn files(&self, session: &Session, tools: &Tools) -> Result<Vec<FileChange>> {
        let (old, new) = (&self.from, &self.to);
        files::compare(session, tools, (old.0, &old.1), (new.0, &new.1))
    }
}

fn reports(from: &Report, to: &Report) -> Comparison {
    let (old, new) = (values(from), values(to));
    let names: Vec<&str> = old.iter().chain(&new).map(|(name, _)| *name).collect();
    let mut seen = BTreeSet::new();
    let value = |list: &[(&str, String)], name: &str| {
        let found = list.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    };
    let values = names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .map(|name| Value {
            name: name.to_owned(),
            from: value(&old, name),
            to: value(&new, name),
        })
        .filter(|value| value.from != value.to)
        .collect();
    let mut notes = Vec::new();
    let packages = match (&from.packages, &to.packages) {
        (Some(_), Some(_)) => versions(&packages(from), &packages(to)),
        _ => {
            notes.push("packages: one of the images does not list them".to_owned());
            Vec::new()
        }
    };
    notes.extend(another_etcd(from, to));
    Comparison {
        values,
        cmdline: sets(&words(from), &words(to)),
        modules: sets(&modules(from), &modules(to)),
        packages,
        files: None,
        notes,
    }
}

/// What a change of etcd's minor means for a node that has both images in its slots.
fn another_etcd(from: &Report, to: &Report) -> Option<String> {
    let minor = |report: &Report| {
        let manifest = report.kernels.first()?.manifest.as_ref()?;
        let image = manifest.kubernetes.as_ref()?.images.get("etcd")?;
        let tag = image.split('@').next()?.rsplit_once(':')?.1;
        let [major, minor, _] = cluster::release::Version::parse(tag)?.numbers;
        Some((major, minor))
    };
    let (old, new) = (minor(from)?, minor(to)?);
    let text = |(major, minor): (u32, u32)| format!("etcd {major}.{minor}");
    match old.cmp(&new) {
        Ordering::Equal => None,
        Ordering::Less => Some(format!(
            "{}: once a node's data is of it, an image with {} does not start there, not even as the other slot; have a snapshot",
            text(new),
            text(old)
        )),
        Ordering::Greater => Some(format!(
            "{}: a node whose data is of {} does not start it",
            text(new),
            text(old)
        )),
    }
}

/// The single values of an image, in the order in which they are printed.
fn values(report: &Report) -> Vec<(&'static str, String)> {
    let mut values = Vec::new();
    if let Some(kernel) = report.kernels.first() {
        if let Some(manifest) = &kernel.manifest {
            let image = &manifest.image;
            values.push(("image", format!("{} {}", image.name, image.version)));
            if let Some(kubernetes) = &manifest.kubernetes {
                values.push(("kubernetes", kubernetes.version.clone()));
                values.push(("kubelet", kubernetes.kubelet_sha256.clone()));
                let etcd = kubernetes.images.get("etcd");
                values.extend(etcd.map(|image| ("etcd", image.clone())));
            }
        }
        values.push(("kernel", kernel.release.clone()));
        values.push(("kernel image bytes", kernel.size.to_string()));
        values.push(("initramfs bytes", kernel.initrd.to_string()));
    }
    if let Some(root) = &report.root {
        values.push(("root hash", root.hash.to_string()));
        values.push(("root bytes", root.size.to_string()));
    }
    values
}

/// The words of the command line, but the root hash, which is a value of its own.
fn words(report: &Report) -> BTreeSet<String> {
    let kernels = report.kernels.iter().take(1);
    kernels
        .flat_map(|kernel| kernel.cmdline.split_whitespace())
        .filter(|word| !word.starts_with("roothash="))
        .map(str::to_owned)
        .collect()
}

fn modules(report: &Report) -> BTreeSet<String> {
    let kernels = report.kernels.iter().take(1);
    kernels.flat_map(|kernel| kernel.modules.clone()).collect()
}

fn sets(from: &BTreeSet<String>, to: &BTreeSet<String>) -> Sets {
    Sets {
        removed: from.difference(to).cloned().collect(),
        added: to.difference(from).cloned().collect(),
    }
}

/// The versions of every component that is there, by name: a name may be in the root and in the kubelet's container.
fn packages(report: &Report) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let listed = report.packages.iter().flatten();
    for component in listed.filter(|component| !component.is_removed()) {
        let versions = found.entry(component.name.clone()).or_default();
        versions.insert(component.version.clone());
    }
    found
}

fn versions(
    from: &BTreeMap<String, BTreeSet<String>>,
    to: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<Version> {
    let names: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let of = |list: &BTreeMap<String, BTreeSet<String>>, name: &String| {
        let versions = list.get(name).into_iter().flatten();
        versions.cloned().collect::<Vec<_>>()
    };
    names
        .into_iter()
        .map(|name| Version {
            name: name.clone(),
            from: of(from, name),
            to: of(to, name),
        })
        .filter(|version| version.from != version.to)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::KernelReport;
    use crate::publish::sbom::Component;

    fn report(cmdline: &str, packages: &[(&str, &str)]) -> Report {
        let component = |(name, version): &(&str, &str)| Component::program(name, version, "", "");
        Report {
            kernels: vec![KernelReport {
                cmdline: cmdline.to_owned(),
                release: "6.12".to_owned(),
                modules: vec!["ext4".to_owned()],
                ..KernelReport::default()
            }],
            packages: Some(packages.iter().map(component).collect()),
            ..Report::default()
        }
    }

    #[test]
    fn only_what_differs_is_told() {
        let one = report(
            "roothash=1 quiet a",
            &[("jq", "1"), ("curl", "8"), ("x", "1")],
        );
        let mut two = report(
            "roothash=2 quiet b",
            &[("jq", "2"), ("curl", "8"), ("y", "1")],
        );
        assert!(reports(&one, &one).is_empty());
        two.kernels[0].release = "6.13".to_owned();
        let found = reports(&one, &two);
        assert_eq!(found.cmdline.removed, ["a"]);
        assert_eq!(found.cmdline.added, ["b"]);
        assert_eq!(found.modules, Sets::default());
        let names: Vec<&str> = found
            .packages
            .iter()
            .map(|found| found.name.as_str())
            .collect();
        assert_eq!(names, ["jq", "x", "y"]);
        assert_eq!(found.values.len(), 1, "{:?}", found.values);
        assert!(!found.is_empty());
        let text = found.to_string();
        for line in [
            "~ kernel 6.12 → 6.13",
            "- a",
            "+ b",
            "~ jq 1 → 2",
            "- x 1",
            "+ y 1",
        ] {
            assert!(
                text.lines().any(|found| found.trim() == line),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn a_removed_package_is_none_of_the_image() {
        let listed = [("curl", "8"), ("dpkg", "1")];
        let (whole, mut lacking) = (report("", &listed), report("", &listed));
        let dpkg = |component: &&mut Component| component.name == "dpkg";
        for component in lacking.packages.iter_mut().flatten().filter(dpkg) {
            component.scope = Some("excluded".to_owned());
        }
        let versions = |found: Comparison| {
            let packages = found.packages.into_iter();
            let packages = packages.map(|found| (found.name, found.from, found.to));
            packages.collect::<Vec<_>>()
        };
        let one = || vec!["1".to_owned()];
        assert_eq!(
            versions(reports(&whole, &lacking)),
            [("dpkg".to_owned(), one(), Vec::<String>::new())]
        );
        assert_eq!(
            versions(reports(&lacking, &whole)),
            [("dpkg".to_owned(), Vec::<String>::new(), one())]
        );
        // To one that never had it there is no difference.
        let without = report("", &[("curl", "8")]);
        assert!(reports(&lacking, &without).is_empty());
    }

    #[test]
    fn another_minor_of_etcd_is_noted_in_both_directions() {
        let with = |etcd: &str| {
            let mut report = report("", &[]);
            let manifest = serde_json::json!({
                "contract": image::manifest::CONTRACT,
                "image": {"name": "a", "version": "1"},
                "architecture": "x86-64",
                "kernel": "6.12",
                "epoch": 1,
                "sizes": image::layout::Sizes::default(),
                "kubernetes": {"version": "v1.36.3", "kubeletSha256": "", "images": {"etcd": etcd}},
                "platforms": [],
                "node": image::node::NodeSettings::default(),
            });
            report.kernels[0].manifest = Some(serde_json::from_value(manifest).unwrap());
            report
        };
        let (old, new) = (
            with("slipway.local/etcd:3.5.16-0"),
            with("r.example:5000/etcd:3.6.8-0@sha256:00"),
        );
        let up = reports(&old, &new);
        assert!(up.notes[0].starts_with("etcd 3.6: once"), "{:?}", up.notes);
        assert_eq!(up.values[0].name, "etcd");
        let down = reports(&new, &old);
        assert!(
            down.notes[0].starts_with("etcd 3.5: a node"),
            "{:?}",
            down.notes
        );
        let patch = reports(&old, &with("slipway.local/etcd:3.5.24-0"));
        assert_eq!(patch.notes, Vec::<String>::new());
    }

    #[test]
    fn an_image_that_does_not_list_its_packages_is_noted() {
        let mut bare = report("", &[]);
        bare.packages = None;
        let found = reports(&bare, &report("", &[("jq", "1")]));
        assert!(found.packages.is_empty());
        assert_eq!(found.notes.len(), 1);
    }
}
