//! SBOM: the components of an image, as CycloneDX 1.6.
//!
//! Format: <https://cyclonedx.org/docs/1.6/json/>, package URLs as the purl specification has them. The text depends on the lock and on
//! this program alone: the serial number is a hash of the rest.
//!
//! What scanners need beyond it: the distribution is a component of its own, and the qualifier `distro` of its packages is its name and
//! version; Debian's advisories are about source packages, which Grype reads from the qualifier `upstream`, as Syft writes it, and Trivy from
//! properties of its own.

mod crates;
mod go;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use image::guid::Guid;
use image::manifest::ImageId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::debian::mirror::{DEBS, is_debians};
use crate::debian::pinned::LockedPackage;
use crate::install::{Dropped, Report};
use crate::lock::LockedRecipe;
use crate::lock::kubelet::{Program, Programs, purl};
use crate::recipe::{
    Composed, SET_DKMS, SET_ETCD, SET_KERNEL, SET_KUBELET, SET_LOCALES, SET_ROOT, SET_TOOLS_BUILD,
};
use crate::steps::identity::Identity;
use crate::steps::kernel::{Kernel, dkms};
use crate::steps::kubelet::Kubelet;

/// The document's name in the output folder.
pub const FILE: &str = "sbom.cdx.json";
/// The property of a component that lists its sets.
const SET: &str = "slipway:set";
/// The property of a component that is removed from a set: the set.
const REMOVED: &str = "slipway:removed";
/// The property of a removed component that tells what names a program of it.
const MISSED: &str = "slipway:missed-by";
/// The property of a component of which DKMS compiled a module: its path below `/usr/lib/modules`.
const MODULE: &str = "slipway:module";
/// The property of a component that programs are made of: the program.
const PART: &str = "slipway:part-of";
/// The package of Debian's whose boot loader and stubs are in an image.
const BOOT: &str = "systemd-boot-efi";
/// The set of the packages whose files are in the ESP.
const SET_BOOT: &str = "boot";
/// The properties of a Debian package that name its source package and the version of that.
const SOURCE: [&str; 2] = [
    "aquasecurity:trivy:SrcName",
    "aquasecurity:trivy:SrcVersion",
];
/// The property of a program that tells the language of its parts, and its values.
const LANGUAGE: &str = "aquasecurity:trivy:Type";
const GO: &str = "gobinary";
const RUST: &str = "rustbinary";
/// The kernel's source package, and how those of its signatures begin.
const KERNEL: &str = "linux";
const SIGNED_KERNEL: &str = "linux-signed-";
/// The scope of components that are listed and not there.
const EXCLUDED: &str = "excluded";

/// A component of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Component {
    /// Unique in the document; the package URL.
    #[serde(rename = "bom-ref")]
    pub reference: String,
    /// `library`, `application` …, as CycloneDX has them.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What of it is in the image, if that is neither all nor nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Package URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purl: Option<String>,
    /// `excluded` if its files are not in the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Hashes of its package file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<Hash>,
    /// Other properties.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// What it is made of: components that the document has beside it, as its dependencies.
    #[serde(skip)]
    pub parts: Vec<Component>,
}

/// The distribution whose packages are in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// `ID` of its `os-release`.
    pub id: String,
    /// `VERSION_ID`, or its suite's name if it has no version yet.
    pub version: String,
}

impl Distribution {
    /// The one of an `os-release`; Debian's of this suite where that does not say it.
    #[must_use]
    pub fn of(os_release: &str, suite: &str) -> Self {
        let value = |key: &str, other: &str| {
            let mut lines = os_release.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or(other).trim_matches('"').to_owned()
        };
        Self {
            id: value("ID", "debian"),
            version: value("VERSION_ID", suite),
        }
    }

    /// The distribution as a component, by which scanners choose the advisories.
    #[must_use]
    pub fn component(&self) -> Component {
        Component {
            kind: "operating-system".to_owned(),
            name: self.id.clone(),
            version: self.version.clone(),
            reference: format!("os:{}@{}", self.id, self.version),
            ..Component::default()
        }
    }
}

/// A hash of a component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hash {
    /// `SHA-256`.
    pub alg: String,
    /// Hexadecimal digits.
    pub content: String,
}

/// A property of a component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Component {
    /// A Debian package of a set.
    #[must_use]
    pub fn package(package: &LockedPackage, set: &str, distribution: &Distribution) -> Self {
        let Distribution { id, version } = distribution;
        let source = Source::of(package);
        // A package of another archive is none of Debian's, whatever its name: no advisory of Debian's is about it.
        let (vendor, distro) = match package.archive.as_str() {
            DEBS => (String::new(), String::new()),
            archive if is_debians(archive) => (
                "debian/".to_owned(),
                format!("&distro={}", encode(&format!("{id}-{version}"))),
            ),
            archive => (format!("{}/", encode(archive)), String::new()),
        };
        let purl = format!(
            "pkg:deb/{vendor}{}@{}?arch={}{distro}{}",
            encode(&package.name),
            encode(&package.version),
            encode(&package.architecture),
            source.map(Source::qualifier).unwrap_or_default(),
        );
        let named = source.into_iter().flat_map(|source| {
            let version = source.version.unwrap_or(&package.version);
            let values = [source.name, version].map(str::to_owned);
            SOURCE.into_iter().zip(values)
        });
        let properties = named.chain([(SET, set.to_owned())]);
        let properties = properties.map(|(name, value)| Property {
            name: name.to_owned(),
            value,
        });
        Self {
            reference: purl.clone(),
            kind: "library".to_owned(),
            name: package.name.clone(),
            version: package.version.clone(),
            purl: Some(purl),
            description: None,
            scope: None,
            hashes: vec![Hash::sha256(&package.sha256)],
            properties: properties.collect(),
            parts: Vec::new(),
        }
    }

    /// The sets that have files of it: a set that it is removed from is none of them.
    pub fn sets(&self) -> impl Iterator<Item = &str> {
        let is_removed = move |set: &str| {
            let mut properties = self.properties.iter();
            properties.any(|property| property.name == REMOVED && property.value == set)
        };
        let properties = self.properties.iter();
        let sets = properties.filter(|property| property.name == SET);
        let sets = sets.map(|property| property.value.as_str());
        sets.filter(move |set| !is_removed(set))
    }

    /// The programs that it is a part of.
    pub fn part_of(&self) -> impl Iterator<Item = &str> {
        let properties = self.properties.iter();
        let parts = properties.filter(|property| property.name == PART);
        parts.map(|property| property.value.as_str())
    }

    /// The same as a program in this language, with its parts if it has any.
    fn made_of(mut self, language: &str, parts: impl IntoIterator<Item = Self>) -> Self {
        self.parts = parts.into_iter().collect();
        if !self.parts.is_empty() {
            self.properties.push(Property {
                name: LANGUAGE.to_owned(),
                value: language.to_owned(),
            });
        }
        self
    }

    /// A Go module.
    fn module(module: &go::Module) -> Self {
        let path: Vec<String> = module.path.split('/').map(encode).collect();
        let purl = format!("pkg:golang/{}@{}", path.join("/"), encode(&module.version));
        Self {
            reference: purl.clone(),
            kind: "library".to_owned(),
            name: module.path.clone(),
            version: module.version.clone(),
            purl: Some(purl),
            ..Self::default()
        }
    }

    /// The same, if the set lacks its files.
    #[must_use]
    fn removed(mut self, set: &str, dropped: Option<&Dropped>) -> Self {
        let Some(dropped) = dropped else { return self };
        let property = |name: &str, value: String| Property {
            name: name.to_owned(),
            value,
        };
        if dropped.kept.is_empty() {
            self.scope = Some(EXCLUDED.to_owned());
            self.properties.push(property(REMOVED, set.to_owned()));
        } else {
            // Advisories are about these as much as about all of it.
            let kept = dropped.kept.join(", ");
            self.description = Some(format!("Of its files only these are in the image: {kept}"));
        }
        self.properties.extend(
            dropped
                .missed_by
                .iter()
                .map(|missed| property(MISSED, format!("{}: {}", missed.path, missed.program))),
        );
        self
    }

    /// The same as the package that these locales were compiled from: none of its files is in the image.
    #[must_use]
    fn compiled_to(mut self, locales: &[String]) -> Self {
        self.scope = Some(EXCLUDED.to_owned());
        self.description = Some(format!(
            "Not in the image, which has locales that were compiled from it: {}",
            locales.join(", ")
        ));
        self
    }

    /// How much of it is in the image: nothing, a part or all.
    fn presence(&self) -> u8 {
        match (self.is_removed(), &self.description) {
            (true, _) => 0,
            (false, Some(_)) => 1,
            (false, None) => 2,
        }
    }

    /// Whether its files are not in the image.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.scope.as_deref() == Some(EXCLUDED)
    }

    /// The files that name a program of it, if it is removed, each with the program.
    pub fn missed_by(&self) -> impl Iterator<Item = &str> {
        let properties = self.properties.iter();
        let missed = properties.filter(|property| property.name == MISSED);
        missed.map(|property| property.value.as_str())
    }

    /// The modules of it that DKMS compiled, by their paths below `/usr/lib/modules`.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        let properties = self.properties.iter();
        let modules = properties.filter(|property| property.name == MODULE);
        modules.map(|property| property.value.as_str())
    }

    /// A program outside of packages, such as the kubelet, with its package URL `purl`.
    #[must_use]
    pub fn program(name: &str, version: &str, purl: &str, sha256: &str) -> Self {
        Self {
            reference: purl.to_owned(),
            kind: "application".to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
            purl: Some(purl.to_owned()),
            description: None,
            scope: None,
            hashes: vec![Hash::sha256(sha256)],
            properties: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// A container image that somebody else built, by its full name and the digest of its manifest.
    #[must_use]
    pub fn image(name: &str, digest: &str) -> Self {
        let repository = name.split('@').next().unwrap_or(name);
        let (repository, tag) = match repository.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, tag),
            _ => (repository, ""),
        };
        let short = repository.rsplit('/').next().unwrap_or(repository);
        let purl = format!(
            "pkg:oci/{}@{}?repository_url={}",
            encode(short),
            encode(digest),
            encode(repository)
        );
        Self {
            kind: "container".to_owned(),
            ..Self::program(short, tag, &purl, digest.trim_start_matches("sha256:"))
        }
    }
}

impl Hash {
    fn sha256(content: &str) -> Self {
        Self {
            alg: "SHA-256".to_owned(),
            content: content.to_owned(),
        }
    }
}

/// The source package that advisories are about, if its name or version is another than the package's.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    name: &'a str,
    /// Its version, if that is not the package's.
    version: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn of(package: &'a LockedPackage) -> Option<Self> {
        let field = package.source.as_deref()?;
        let (name, version) = match field.split_once(" (") {
            Some((name, version)) => (name, Some(version.trim_end_matches(')'))),
            None => (field, None),
        };
        // Only the signatures are of this source. The package has the version of what they are for, and so have its advisories.
        if name.starts_with(SIGNED_KERNEL) {
            return Some(Self {
                name: KERNEL,
                version: None,
            });
        }
        Some(Self { name, version })
    }

    /// The qualifier of a package URL.
    fn qualifier(self) -> String {
        let upstream = match self.version {
            Some(version) => format!("{}@{version}", self.name),
            None => self.name.to_owned(),
        };
        format!("&upstream={}", encode(&upstream))
    }
}

/// The document of an image: all its packages, removed ones among them, the boot loader's, the programs of the kubelet's release, and ours.
///
/// # Errors
/// When a program cannot be read; otherwise the same as [`text`].
pub fn list(
    locked: &LockedRecipe,
    identity: &Identity,
    rootfs: &Report,
    kernel: &Kernel,
    kubelet: &Kubelet,
) -> Result<String> {
    let distribution = &Distribution::of(&identity.os_release, &locked.recipe.debian.suite);
    let composed: Vec<String> = locked.recipe.composed.iter().map(Composed::set).collect();
    let components = [SET_ROOT, SET_KERNEL, SET_LOCALES, SET_KUBELET, SET_ETCD]
        .into_iter()
        .chain(composed.iter().map(String::as_str))
        .flat_map(|set| {
            let packages = locked.lock.sets.get(set).into_iter().flatten();
            packages.map(move |package| {
                let report = match set {
                    SET_ROOT => Some(rootfs),
                    set => kubelet.reports.get(set),
                };
                let mut dropped = report.into_iter().flat_map(|report| &report.dropped);
                let dropped = dropped.find(|dropped| dropped.package == package.name);
                let component = Component::package(package, set, distribution);
                match set {
                    SET_LOCALES => component.compiled_to(&locked.recipe.locale.generate),
                    _ => component.removed(set, dropped),
                }
            })
        });
    let modules = dkms::packages(locked, &kernel.compiled).map(|(package, compiled)| {
        let mut component = Component::package(package, SET_DKMS, distribution);
        let modules = compiled.modules.iter().map(|path| Property {
            name: MODULE.to_owned(),
            value: format!("{}/{path}", kernel.release),
        });
        component.properties.extend(modules);
        component
    });
    let boot = locked.lock.sets.get(SET_TOOLS_BUILD).into_iter().flatten();
    let boot = boot.filter(|package| package.name == BOOT);
    let boot = boot.map(|package| Component::package(package, SET_BOOT, distribution));
    let programs = kubelet.programs.iter().flat_map(Programs::all);
    let programs = programs.map(|(name, program)| released(name, program));
    let programs: Vec<Component> = programs.collect::<Result<_>>()?;
    let images = kubelet.prebuilt.iter();
    let images = images.map(|(name, digest)| Component::image(name, digest));
    let components = components.chain(modules).chain(boot);
    let components = components.chain(programs).chain(images);
    let components = components.chain(own());
    let components = components.chain([distribution.component()]);
    text(&identity.manifest.image, locked.lock.epoch, components)
}

/// The programs of this project in an image, each with the crates that it is made of.
pub fn own() -> impl Iterator<Item = Component> {
    crates::programs()
}

/// A program of a release, with the Go modules that it says to be made of.
fn released(name: &str, program: &Program) -> Result<Component> {
    let component = Component::program(
        name,
        &program.version,
        &purl(name, program),
        &program.sha256,
    );
    let parts = go::modules(&program.path)?;
    Ok(component.made_of(GO, parts.iter().map(Component::module)))
}

/// The document's text. A package in several sets has one component, with all sets.
///
/// # Errors
/// When `epoch` is out of the calendar's range.
pub fn text(
    image: &ImageId,
    epoch: u64,
    components: impl IntoIterator<Item = Component>,
) -> Result<String> {
    let mut unique: BTreeMap<String, Component> = BTreeMap::new();
    let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let given: Vec<Component> = components.into_iter().collect();
    let wholes: BTreeSet<String> = given.iter().map(|c| c.reference.clone()).collect();
    let mut all = Vec::new();
    for mut component in given {
        for mut part in std::mem::take(&mut component.parts) {
            if part.reference == component.reference {
                continue;
            }
            let of = dependencies.entry(component.reference.clone()).or_default();
            of.insert(part.reference.clone());
            // The module of one program may be in another one, as CoreDNS' in a program of several: it stays a program.
            if !wholes.contains(&part.reference) {
                part.properties.push(Property {
                    name: PART.to_owned(),
                    value: component.name.clone(),
                });
                all.push(part);
            }
        }
        all.push(component);
    }
    for component in all {
        match unique.entry(component.reference.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(component);
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                // What one set has is in the image.
                if component.presence() > slot.get().presence() {
                    slot.get_mut().scope = component.scope;
                    slot.get_mut().description = component.description;
                }
                let known = &mut slot.get_mut().properties;
                known.extend(component.properties);
                known.sort();
                known.dedup();
            }
        }
    }
    let components: Vec<Component> = unique.into_values().collect();
    let reference = format!("{}@{}", image.name, image.version);
    dependencies.insert(reference.clone(), wholes);
    let dependencies: Vec<_> = dependencies
        .iter()
        .map(|(reference, on)| json!({ "ref": reference, "dependsOn": on }))
        .collect();
    let time = jiff::Timestamp::from_second(i64::try_from(epoch)?)
        .context("writing the time of the SBOM")?;
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.to_string(),
            "tools": { "components": [{ "type": "application", "name": "slipway" }] },
            // A scanner takes the first operating system for the one that advisories are about: the distribution has to be the only one.
            "component": {
                "type": "platform",
                "bom-ref": reference,
                "name": image.name,
                "version": image.version,
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(document.to_string())[..16]);
    document["serialNumber"] = json!(format!("urn:uuid:{}", Guid::from_random(bytes)));
    Ok(format!("{document:#}\n"))
}

/// The components of a document.
///
/// # Errors
/// When the text is not a CycloneDX document.
pub fn components(text: &str) -> Result<Vec<Component>> {
    #[derive(Deserialize)]
    struct Document {
        components: Vec<Component>,
    }
    let document: Document = serde_json::from_str(text).context("reading the SBOM")?;
    Ok(document.components)
}

/// Percent-encodes the reserved characters of a package URL.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests;
