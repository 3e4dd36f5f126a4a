//! Compare: what one image has otherwise than another, read from their bytes: packages, the kernel and its command line, sizes, and
//! every file of the verified root.

mod files;
mod text;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use image::manifest::Manifest;
use serde::Serialize;

use crate::host::session::Session;
use crate::inspect::{self, Report};
use crate::install::tools::Tools;

pub use files::FileChange;

/// The fields of the manifest that [`values`] has under shorter names.
const NAMED_FIELDS: [&str; 6] = [
    "manifest.image.name",
    "manifest.image.version",
    "manifest.kernel",
    "manifest.kubernetes.version",
    "manifest.kubernetes.kubeletSha256",
    "manifest.kubernetes.images.etcd",
];

/// What two images have otherwise; what is equal is left out.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Single values: image, kernel, Kubernetes, root hash, sizes in bytes, SHA-256 of the kernel, the initramfs and the config in it,
    /// fields of the manifest.
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
    let names = old.iter().chain(&new).map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.collect();
    let mut seen = BTreeSet::new();
    let value = |list: &[(String, String)], name: &str| {
        let found = list.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let mut values: Vec<Value> = names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .map(|name| Value {
            name: name.to_owned(),
            from: value(&old, name),
            to: value(&new, name),
        })
        .filter(|value| value.from != value.to)
        .collect();
    let cmdline = sets(&words(from), &words(to));
    // The kernel reads its words in their order, and counts each of several equal ones.
    let (old, new) = (ordered(from), ordered(to));
    if cmdline == Sets::default() && old != new {
        values.push(Value {
            name: "order of the command line".to_owned(),
            from: Some(old),
            to: Some(new),
        });
    }
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
        cmdline,
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
fn values(report: &Report) -> Vec<(String, String)> {
    let mut values = Vec::new();
    let mut add = |name: &str, value: String| values.push((name.to_owned(), value));
    let mut fields = Vec::new();
    if let Some(kernel) = report.kernels.first() {
        if let Some(manifest) = &kernel.manifest {
            let image = &manifest.image;
            add("image", format!("{} {}", image.name, image.version));
            if let Some(kubernetes) = &manifest.kubernetes {
                add("kubernetes", kubernetes.version.clone());
                add("kubelet", kubernetes.kubelet_sha256.clone());
                if let Some(etcd) = kubernetes.images.get("etcd") {
                    add("etcd", etcd.clone());
                }
            }
            fields = manifest_fields(manifest);
        }
        add("kernel", kernel.release.clone());
        add("kernel sha256", kernel.kernel_sha256.clone());
        add("kernel image bytes", kernel.size.to_string());
        add("initramfs bytes", kernel.initrd.to_string());
        add("initramfs sha256", kernel.initrd_sha256.clone());
        if let Some(config) = &kernel.config_sha256 {
            add("baked config sha256", config.clone());
        }
    }
    if let Some(root) = &report.root {
        add("root hash", root.hash.to_string());
        add("root bytes", root.size.to_string());
    }
    values.extend(fields);
    values
}

/// The other fields of a manifest, named as in its JSON: `manifest.node.role`.
fn manifest_fields(manifest: &Manifest) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    if let Ok(value) = serde_json::to_value(manifest) {
        add_fields("manifest", &value, &mut fields);
    }
    fields.retain(|(name, _)| !NAMED_FIELDS.contains(&name.as_str()));
    fields
}

fn add_fields(name: &str, value: &serde_json::Value, fields: &mut Vec<(String, String)>) {
    match value {
        serde_json::Value::Object(inner) => {
            for (key, value) in inner {
                add_fields(&format!("{name}.{key}"), value, fields);
            }
        }
        serde_json::Value::String(text) => fields.push((name.to_owned(), text.clone())),
        other => fields.push((name.to_owned(), other.to_string())),
    }
}

/// The words of the command line, but the root hash, which is a value of its own.
fn words(report: &Report) -> BTreeSet<String> {
    listed_words(report).map(str::to_owned).collect()
}

/// The same as one text, in their order.
fn ordered(report: &Report) -> String {
    listed_words(report).collect::<Vec<_>>().join(" ")
}

fn listed_words(report: &Report) -> impl Iterator<Item = &str> {
    let kernels = report.kernels.iter().take(1);
    kernels
        .flat_map(|kernel| kernel.cmdline.split_whitespace())
        .filter(|word| !word.starts_with("roothash="))
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
    use crate::format::initrd::tests::sample as manifest;
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

    fn of_control_plane(kernel: &mut KernelReport) {
        let manifest = kernel.manifest.as_mut().unwrap();
        manifest.node.role = image::node::Role::ControlPlane;
    }

    fn of_later_lock(kernel: &mut KernelReport) {
        kernel.manifest.as_mut().unwrap().epoch = 2;
    }

    #[test]
    fn parts_of_equal_size_with_other_content_differ_by_name() {
        let with = |change: fn(&mut KernelReport)| {
            let mut report = report("roothash=1 a b a", &[]);
            let kernel = &mut report.kernels[0];
            kernel.kernel_sha256 = "1".to_owned();
            kernel.initrd_sha256 = "2".to_owned();
            kernel.config_sha256 = Some("3".to_owned());
            kernel.manifest = Some(manifest("etcd:3.6.8-0"));
            change(kernel);
            report
        };
        let old = with(|_| {});
        assert!(reports(&old, &old).is_empty());
        for (new, name) in [
            (
                with(|kernel| kernel.kernel_sha256 = "x".to_owned()),
                "kernel sha256",
            ),
            (
                with(|kernel| kernel.initrd_sha256 = "x".to_owned()),
                "initramfs sha256",
            ),
            (
                with(|kernel| kernel.config_sha256 = None),
                "baked config sha256",
            ),
            (
                with(|kernel| kernel.cmdline = "roothash=2 b a a".to_owned()),
                "order of the command line",
            ),
            (with(of_control_plane), "manifest.node.role"),
            (with(of_later_lock), "manifest.epoch"),
        ] {
            let found = reports(&old, &new);
            let names: Vec<&str> = found
                .values
                .iter()
                .map(|value| value.name.as_str())
                .collect();
            assert_eq!(names, [name]);
            assert!(!found.is_empty());
        }
    }

    #[test]
    fn roots_with_equal_files_and_other_hashes_are_noted() {
        let mut found = Comparison {
            files: Some(Vec::new()),
            ..Comparison::default()
        };
        let note = "file systems were written otherwise";
        assert!(!found.to_string().contains(note), "{found}");
        found.values.push(Value {
            name: "root hash".to_owned(),
            from: Some("1".to_owned()),
            to: Some("2".to_owned()),
        });
        assert!(found.to_string().contains(note), "{found}");
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
            report.kernels[0].manifest = Some(manifest(etcd));
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
