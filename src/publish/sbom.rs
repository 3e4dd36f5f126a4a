//! SBOM: the components of an image, as CycloneDX 1.6.
//!
//! Format: <https://cyclonedx.org/docs/1.6/json/>, package URLs as the purl specification's type `deb`. The text
//! depends on the lock alone: the serial number is a hash of the rest.

use std::collections::BTreeMap;

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
use crate::lock::kubelet::{Programs, purl};
use crate::recipe::{SET_DKMS, SET_ETCD, SET_KERNEL, SET_KUBELET, SET_LOCALES, SET_ROOT};
use crate::steps::identity::Identity;
use crate::steps::kernel::{Kernel, dkms};
use crate::steps::kubelet::Kubelet;

/// The document's name in the output folder.
pub const FILE: &str = "sbom.cdx.json";
/// The property of a component that lists its sets.
pub(super) const SET: &str = "slipway:set";
/// The property of a component that is removed from a set: the set.
const REMOVED: &str = "slipway:removed";
/// The property of a removed component that tells what names a program of it.
const MISSED: &str = "slipway:missed-by";
/// The property of a component of which DKMS compiled a module: its path below `/usr/lib/modules`.
const MODULE: &str = "slipway:module";
/// The scope of components that are listed and not there.
const EXCLUDED: &str = "excluded";

/// A component of an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    pub fn package(package: &LockedPackage, set: &str, suite: &str) -> Self {
        // A package of another archive is none of Debian's, whatever its name: no advisory of Debian's is about it.
        let (vendor, distro) = match package.archive.as_str() {
            DEBS => (String::new(), String::new()),
            archive if is_debians(archive) => {
                ("debian/".to_owned(), format!("&distro={}", encode(suite)))
            }
            archive => (format!("{}/", encode(archive)), String::new()),
        };
        let purl = format!(
            "pkg:deb/{vendor}{}@{}?arch={}{distro}",
            encode(&package.name),
            encode(&package.version),
            encode(&package.architecture),
        );
        Self {
            reference: purl.clone(),
            kind: "library".to_owned(),
            name: package.name.clone(),
            version: package.version.clone(),
            purl: Some(purl),
            scope: None,
            hashes: vec![Hash::sha256(&package.sha256)],
            properties: vec![Property {
                name: SET.to_owned(),
                value: set.to_owned(),
            }],
        }
    }

    /// The same, if the set lacks its files.
    #[must_use]
    fn removed(mut self, set: &str, dropped: Option<&Dropped>) -> Self {
        let Some(dropped) = dropped else { return self };
        self.scope = Some(EXCLUDED.to_owned());
        let property = |name: &str, value: String| Property {
            name: name.to_owned(),
            value,
        };
        self.properties.push(property(REMOVED, set.to_owned()));
        self.properties.extend(
            dropped
                .missed_by
                .iter()
                .map(|missed| property(MISSED, format!("{}: {}", missed.path, missed.program))),
        );
        self
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
            scope: None,
            hashes: vec![Hash::sha256(sha256)],
            properties: Vec::new(),
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

/// The document of an image: all its packages, removed ones among them, and the programs of the kubelet's release.
///
/// # Errors
/// The same as [`text`].
pub fn list(
    locked: &LockedRecipe,
    identity: &Identity,
    rootfs: &Report,
    kernel: &Kernel,
    kubelet: &Kubelet,
) -> Result<String> {
    let suite = &locked.recipe.debian.suite;
    let components = [SET_ROOT, SET_KERNEL, SET_LOCALES, SET_KUBELET, SET_ETCD]
        .into_iter()
        .flat_map(|set| {
            let packages = locked.lock.sets.get(set).into_iter().flatten();
            packages.map(move |package| {
                let dropped = match set {
                    SET_ROOT => rootfs.dropped.as_slice(),
                    SET_KUBELET => &kubelet.dropped,
                    _ => &[],
                };
                let dropped = dropped
                    .iter()
                    .find(|dropped| dropped.package == package.name);
                Component::package(package, set, suite).removed(set, dropped)
            })
        });
    let modules = dkms::packages(locked, &kernel.compiled).map(|(package, compiled)| {
        let mut component = Component::package(package, SET_DKMS, suite);
        let modules = compiled.modules.iter().map(|path| Property {
            name: MODULE.to_owned(),
            value: format!("{}/{path}", kernel.release),
        });
        component.properties.extend(modules);
        component
    });
    let programs = kubelet.programs.iter().flat_map(Programs::all);
    let programs = programs.map(|(name, program)| {
        Component::program(
            name,
            &program.version,
            &purl(name, program),
            &program.sha256,
        )
    });
    let images = kubelet.prebuilt.iter();
    let images = images.map(|(name, digest)| Component::image(name, digest));
    let components = components.chain(modules).chain(programs).chain(images);
    text(&identity.manifest.image, locked.lock.epoch, components)
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
    for component in components {
        match unique.entry(component.reference.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(component);
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                // What one set has is in the image.
                if component.scope.is_none() {
                    slot.get_mut().scope = None;
                }
                let known = &mut slot.get_mut().properties;
                known.extend(component.properties);
                known.sort();
                known.dedup();
            }
        }
    }
    let components: Vec<Component> = unique.into_values().collect();
    let time = jiff::Timestamp::from_second(i64::try_from(epoch)?)
        .context("writing the time of the SBOM")?;
    let reference = format!("{}@{}", image.name, image.version);
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.to_string(),
            "tools": { "components": [{ "type": "application", "name": "slipway" }] },
            "component": {
                "type": "operating-system",
                "bom-ref": reference,
                "name": image.name,
                "version": image.version,
            },
        },
        "components": components,
        "dependencies": [{
            "ref": reference,
            "dependsOn": components.iter().map(|c| &c.reference).collect::<Vec<_>>(),
        }],
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
mod tests {
    use super::*;

    #[test]
    fn an_image_of_others_is_listed_by_its_manifest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let found = Component::image("r.example:5000/group/app:v1", &digest);
        assert_eq!((found.name.as_str(), found.version.as_str()), ("app", "v1"));
        let expected = format!(
            "pkg:oci/app@sha256%3A{}?repository_url=r.example%3A5000%2Fgroup%2Fapp",
            "a".repeat(64)
        );
        assert_eq!(found.purl.as_deref(), Some(expected.as_str()));
        assert_eq!(found.hashes[0].content, "a".repeat(64));
        let pinned = Component::image(&format!("r.example/app@{digest}"), &digest);
        assert_eq!((pinned.name.as_str(), pinned.version.as_str()), ("app", ""));
    }

    fn package(name: &str, version: &str) -> LockedPackage {
        LockedPackage {
            name: name.into(),
            version: version.into(),
            architecture: "amd64".into(),
            archive: "debian".into(),
            path: format!("pool/{name}"),
            size: 1,
            sha256: "ab".repeat(32),
        }
    }

    #[test]
    fn a_package_of_another_archive_is_none_of_debians() {
        let package = LockedPackage {
            archive: "vendor".into(),
            ..package("engine", "2")
        };
        let purl = Component::package(&package, "root", "trixie").purl;
        assert_eq!(purl.as_deref(), Some("pkg:deb/vendor/engine@2?arch=amd64"));
    }

    #[test]
    fn a_removed_package_is_excluded_unless_another_set_has_it() {
        let image = ImageId {
            name: "node".into(),
            version: "1".into(),
        };
        let (perl, dpkg) = (package("perl-base", "5"), package("dpkg", "1"));
        let dropped = |name: &str| Dropped {
            package: name.into(),
            kept: Vec::new(),
            missed_by: vec![crate::install::Missed {
                path: "/usr/bin/c_rehash".into(),
                package: "openssl".into(),
                program: "/usr/bin/perl".into(),
            }],
        };
        let listed = |set: &str, package: &LockedPackage, is_removed: bool| {
            let dropped = Some(dropped(&package.name)).filter(|_| is_removed);
            Component::package(package, set, "trixie").removed(set, dropped.as_ref())
        };
        let text = text(
            &image,
            1_780_000_000,
            [
                listed("root", &perl, true),
                listed("root", &dpkg, true),
                listed("kubelet", &dpkg, false),
            ],
        )
        .unwrap();
        let read = components(&text).unwrap();
        let names: Vec<(&str, bool)> = read
            .iter()
            .map(|c| (c.name.as_str(), c.is_removed()))
            .collect();
        assert_eq!(names, [("dpkg", false), ("perl-base", true)]);
        let missed: Vec<&str> = read[1].missed_by().collect();
        assert_eq!(missed, ["/usr/bin/c_rehash: /usr/bin/perl"]);
        assert!(text.contains("\"scope\": \"excluded\""), "{text}");
    }

    #[test]
    fn packages_stand_once_with_all_their_sets() {
        let image = ImageId {
            name: "node".into(),
            version: "1".into(),
        };
        let libc = package("libc6", "2.41-12+deb13u1");
        let text = text(
            &image,
            1_780_000_000,
            [
                Component::package(&libc, "root", "trixie"),
                Component::package(&libc, "kubelet", "trixie"),
                Component::package(&package("mount", "1:2.41"), "root", "trixie"),
            ],
        )
        .unwrap();
        let read = components(&text).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(
            read[0].purl.as_deref(),
            Some("pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64&distro=trixie")
        );
        let sets: Vec<&str> = read[0]
            .properties
            .iter()
            .map(|p| p.value.as_str())
            .collect();
        assert_eq!(sets, ["kubelet", "root"]);
        assert!(text.contains("2026-05-28T20:26:40Z"));
        assert!(text.contains("mount@1%3A2.41"));
    }
}
