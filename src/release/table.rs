//! Tables of releases: TOML, an entry for each version of Kubernetes, whole or refused.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use cluster::release::Version;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::implied::{ARCHITECTURES, Implied, Unpack};
use crate::host::atomic_file;

/// The name of a user's own table, beside the recipe.
pub const FILE: &str = "slipway-releases.toml";
/// The table of this program.
const CARRIED: &str = include_str!("releases.toml");
/// SHA-256 of no bytes: the checksum of a file whose upload failed.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// The Go module of Kubernetes.
const KUBERNETES: &str = "k8s.io/kubernetes";

/// A program of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Binary {
    /// The program's name.
    pub name: String,
    /// Its machines, as `amd64`.
    pub architecture: String,
    /// Where it is, after the word of a base: `{release}/v1.36.3/bin/linux/amd64/kubelet`.
    pub url: String,
    /// Its path within the archive, `.` for all of it; empty for a file that is not packed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// How it is unpacked.
    pub unpack: Unpack,
    /// SHA-256 of the downloaded file, 64 hexadecimal digits.
    pub sha256: String,
}

/// A container image of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Image {
    /// The component's name.
    pub name: String,
    /// Its reference with a tag.
    pub reference: String,
    /// The digest of its index, `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

/// The Go modules that a release's programs are compiled from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Module {
    /// The version of `k8s.io/kubernetes`, as `v1.36.3`.
    pub version: String,
    /// Lines of go.sum (<https://go.dev/ref/mod#go-sum-files>): at least those of Kubernetes and CoreDNS.
    pub go_sum: String,
}

/// A release of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Release {
    /// As `1.36.3`.
    pub version: String,
    /// SHA-256 of the entry's canonical form: see [`Release::identity`].
    pub id: String,
    /// The programs of release servers.
    #[serde(default, rename = "binary", skip_serializing_if = "Vec::is_empty")]
    pub binaries: Vec<Binary>,
    /// The images of the registry.
    #[serde(default, rename = "image", skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// What the programs are compiled from where no release server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<Module>,
}

impl Release {
    /// The id that the entry must have. The canonical form is each field preceded by its length (8 bytes, little endian)
    /// in a fixed order, so that no two entries have the same; the order of programs and images in the file is not in it.
    #[must_use]
    pub fn identity(&self) -> String {
        let mut fields = vec!["slipway release 1", &self.version];
        let (mut binaries, mut images): (Vec<_>, Vec<_>) =
            (self.binaries.iter().collect(), self.images.iter().collect());
        binaries.sort_by_key(|binary| (&binary.name, &binary.architecture));
        images.sort_by_key(|image| &image.name);
        for Binary {
            name,
            architecture,
            url,
            path,
            unpack,
            sha256,
        } in binaries
        {
            fields.extend([
                "binary",
                name,
                architecture,
                url,
                path,
                unpack.name(),
                sha256,
            ]);
        }
        for Image {
            name,
            reference,
            digest,
        } in images
        {
            fields.extend(["image", name, reference, digest]);
        }
        if let Some(Module { version, go_sum }) = &self.module {
            fields.extend(["module", version, go_sum]);
        }
        let mut hash = Sha256::new();
        for field in fields {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        HEXLOWER.encode(&hash.finalize())
    }

    /// The entry as it stands in a table.
    ///
    /// # Errors
    /// If it cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String> {
        let table = Table {
            releases: vec![self.clone()],
        };
        Ok(toml::to_string_pretty(&table)?)
    }

    /// All that is wrong with the entry, empty if it is whole: every hash is there and of its form, no file of the release
    /// is missing, and the id is that of the content.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let version = &self.version;
        let Some(implied) = Implied::of(version) else {
            return vec![format!(
                "{version:?} is not a patch release of a known minor ({}); expected the form \"1.36.3\"",
                Implied::minors().join(", ")
            )];
        };
        self.check_binaries(&implied, &mut found);
        self.check_images(&implied, &mut found);
        match &self.module {
            Some(module) => found.extend(module.mistakes(version, implied.coredns())),
            None if self.binaries.is_empty() => {
                found.push("has neither programs of a release server nor a module".to_owned());
            }
            None => {}
        }
        let id = self.identity();
        if self.id != id {
            found.push(format!("has the id {:?}, its content has {id}", self.id));
        }
        found
    }

    fn check_binaries(&self, implied: &Implied, found: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for binary in &self.binaries {
            let place = format!("{} for {}", binary.name, binary.architecture);
            if !seen.insert((binary.name.as_str(), binary.architecture.as_str())) {
                found.push(format!("{place} is there twice"));
            }
            let files = implied.files(&binary.architecture);
            let known = files.iter().find(|file| file.name == binary.name);
            match known {
                Some(file) if ARCHITECTURES.contains(&binary.architecture.as_str()) => {
                    if (file.unpack, file.path) != (binary.unpack, binary.path.as_str()) {
                        found.push(format!(
                            "{place} is unpacked by {:?} with the path {:?}, expected {:?} and {:?}",
                            binary.unpack.name(),
                            binary.path,
                            file.unpack.name(),
                            file.path
                        ));
                    }
                    if !has_base(&binary.url) {
                        found.push(format!(
                            "{place} has the URL {:?}, expected one like {:?}",
                            binary.url, file.url
                        ));
                    }
                }
                _ => found.push(format!("{place} is not a program of a release")),
            }
            if let Err(why) = sha256(&binary.sha256) {
                found.push(format!("{place}: {why}"));
            }
        }
        let architectures: BTreeSet<&str> =
            seen.iter().map(|(_, architecture)| *architecture).collect();
        for architecture in architectures {
            for file in implied.files(architecture) {
                if !seen.contains(&(file.name, architecture)) {
                    found.push(format!("{} for {architecture} is missing", file.name));
                }
            }
        }
    }

    fn check_images(&self, implied: &Implied, found: &mut Vec<String>) {
        if self.images.is_empty() && self.binaries.is_empty() {
            return;
        }
        let mut seen = BTreeSet::new();
        for image in &self.images {
            let place = format!("the image {}", image.name);
            if !seen.insert(image.name.as_str()) {
                found.push(format!("{place} is there twice"));
            }
            if let Err(why) = image.reference.parse::<crate::oci::Reference>() {
                found.push(format!("{place}: {why}"));
            }
            let digits = image.digest.strip_prefix("sha256:").unwrap_or_default();
            if let Err(why) = sha256(digits) {
                found.push(format!("{place}: the digest {:?}: {why}", image.digest));
            }
        }
        for (name, _, _) in implied.images() {
            if !seen.remove(name) {
                found.push(format!("the image {name} is missing"));
            }
        }
        for name in seen {
            found.push(format!("the image {name} is not one of a release"));
        }
    }
}

impl Module {
    fn mistakes(&self, version: &str, coredns: &str) -> Vec<String> {
        let mut found = Vec::new();
        if self.version != format!("v{version}") {
            found.push(format!(
                "its module has version {:?}, expected \"v{version}\"",
                self.version
            ));
        }
        let mut seen = BTreeSet::new();
        for line in self.go_sum.lines() {
            let hash = sum(line);
            match hash {
                Some((module, _)) if seen.insert(module) => {}
                Some((module, _)) => found.push(format!("go-sum has {module} twice")),
                None => found.push(format!(
                    "go-sum has the line {line:?}, expected a module, its version and h1: with a hash"
                )),
            }
        }
        for module in [
            format!("{KUBERNETES} {}", self.version),
            format!("github.com/coredns/coredns {coredns}"),
        ] {
            for module in [module.clone(), format!("{module}/go.mod")] {
                if !seen.contains(module.as_str()) {
                    found.push(format!("go-sum has no hash of {module}"));
                }
            }
        }
        found
    }

    /// Compares the hashes of Kubernetes' go.sum with the entry's.
    ///
    /// # Errors
    /// If a module has another hash in the entry, or Kubernetes itself is not in `go_sum`.
    pub fn verify(&self, go_sum: &str) -> Result<()> {
        self.compare(go_sum)?;
        let kubernetes = format!("{KUBERNETES} {}", self.version);
        let mut found = go_sum.lines().filter_map(sum);
        ensure!(
            found.any(|(module, _)| module == kubernetes),
            "go.sum has no hash of {kubernetes}"
        );
        Ok(())
    }

    /// Compares the hashes of a go.sum with the entry's.
    ///
    /// # Errors
    /// If a module has another hash in the entry.
    pub fn compare(&self, go_sum: &str) -> Result<()> {
        let found: std::collections::BTreeMap<&str, &str> =
            go_sum.lines().filter_map(sum).collect();
        for (module, expected) in self.go_sum.lines().filter_map(sum) {
            if let Some(found) = found.get(module) {
                ensure!(
                    *found == expected,
                    "the Go module {module} has the hash {found}, expected {expected} as the release table says"
                );
            }
        }
        Ok(())
    }
}

/// A line of go.sum: module and version, and the hash: base64 of 32 bytes.
fn sum(line: &str) -> Option<(&str, &str)> {
    let (module, hash) = line.rsplit_once(' ')?;
    let bytes = data_encoding::BASE64
        .decode(hash.strip_prefix("h1:")?.as_bytes())
        .ok()?;
    let (name, version) = module.split_once(' ')?;
    let good =
        bytes.len() == 32 && !name.is_empty() && version.starts_with('v') && !version.contains(' ');
    good.then_some((module, hash))
}

/// Whether a URL begins with the word of a base, and stays below it.
fn has_base(url: &str) -> bool {
    let rest = ["{release}/", "{github}/"]
        .iter()
        .find_map(|word| url.strip_prefix(word));
    rest.is_some_and(|rest| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
        rest.chars().all(plain) && rest.split('/').all(|part| !part.is_empty() && part != "..")
    })
}

/// Checks the form of a SHA-256.
pub(super) fn sha256(text: &str) -> Result<(), String> {
    let digits = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    match text {
        _ if !digits => Err(format!(
            "{text:?} is not a SHA-256, expected 64 hexadecimal digits in lower case"
        )),
        OF_NOTHING => Err("its SHA-256 is that of an empty file".to_owned()),
        _ => Ok(()),
    }
}

/// A table of releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The entries.
    #[serde(default, rename = "release")]
    pub releases: Vec<Release>,
}

impl Table {
    /// The table that this program carries.
    ///
    /// # Errors
    /// If an entry is not whole, which a test excludes.
    pub fn carried() -> Result<Self> {
        Self::parse(CARRIED).context("reading the carried release table")
    }

    /// Reads a file; a missing one is an empty table.
    ///
    /// # Errors
    /// If it cannot be read, is not a table, or an entry is not whole: with all that is wrong.
    pub fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        Self::parse(&text).with_context(|| format!("reading the release table {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text)?;
        let mut mistakes = Vec::new();
        let mut seen = BTreeSet::new();
        for release in &table.releases {
            if !seen.insert(&release.version) {
                mistakes.push(format!("{} is there twice", release.version));
            }
            let found = release.mistakes();
            mistakes.extend(
                found
                    .iter()
                    .map(|mistake| format!("{}: {mistake}", release.version)),
            );
        }
        if !mistakes.is_empty() {
            bail!("the table is not whole:\n  {}", mistakes.join("\n  "));
        }
        Ok(table)
    }

    /// Writes the table by a rename, sorted by version.
    ///
    /// # Errors
    /// If an entry is not whole, or the folder cannot be written.
    pub fn write(&mut self, path: &Path) -> Result<()> {
        self.releases
            .sort_by_key(|release| numbers(&release.version));
        let text = format!(
            "# Releases of Kubernetes with the hash of everything that they imply. Written by `slipway release add`.\n\n{}",
            toml::to_string_pretty(&*self)?
        );
        // What would be refused at the next start must not be written.
        Self::parse(&text)?;
        atomic_file::write(path, 0o644, |file| Ok(file.write_all(text.as_bytes())?))
    }

    /// The entry of a patch release.
    #[must_use]
    pub fn get(&self, version: &str) -> Option<&Release> {
        self.releases
            .iter()
            .find(|release| release.version == version)
    }
}

fn numbers(version: &str) -> Option<[u32; 3]> {
    Version::parse(version).map(|version| version.numbers)
}

/// The carried table, and a user's own over it.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The carried one.
    pub carried: Table,
    /// The user's.
    pub own: Table,
    /// The file of the latter, which may be missing.
    pub path: PathBuf,
}

impl Tables {
    /// Reads both.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self {
            carried: Table::carried()?,
            own: Table::read(path)?,
            path: path.to_owned(),
        })
    }

    /// Puts an entry into the user's table as it is now, which another program may have changed since it was read; whether the file
    /// changed. Two programs that do this at once wait for each other, where the folder's file system has locks.
    ///
    /// # Errors
    /// If the table has the version with another content and `replace` is not set, or as [`Table::read`] and [`Table::write`].
    pub fn put(&mut self, entry: &Release, replace: bool) -> Result<bool> {
        let path = &self.path;
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let folder = File::open(folder.unwrap_or_else(|| Path::new(".")));
        let _held = folder.and_then(|folder| folder.lock().map(|()| folder));
        self.own = Table::read(path)?;
        if let Some(there) = self.own.get(&entry.version) {
            if there.id == entry.id {
                return Ok(false);
            }
            ensure!(
                replace,
                "{} has {} already with other content: id {}, the new one has {}; a published release never changes, so find out \
                 why, and then --replace replaces it",
                path.display(),
                entry.version,
                there.id,
                entry.id
            );
        }
        let releases = &mut self.own.releases;
        releases.retain(|release| release.version != entry.version);
        releases.push(entry.clone());
        self.own.write(path)?;
        Ok(true)
    }

    /// All entries, oldest version first. The user's entry of a version hides the carried one.
    #[must_use]
    pub fn releases(&self) -> Vec<&Release> {
        let hidden = |release: &&Release| self.own.get(&release.version).is_none();
        let carried = self.carried.releases.iter().filter(hidden);
        let mut all: Vec<&Release> = self.own.releases.iter().chain(carried).collect();
        all.sort_by_key(|release| numbers(&release.version));
        all
    }

    /// The entry of a patch release, the user's before the carried one.
    #[must_use]
    pub fn get(&self, version: &str) -> Option<&Release> {
        self.own.get(version).or_else(|| self.carried.get(version))
    }

    /// The entry for `1.36.3`, or the newest of `1.36`.
    ///
    /// # Errors
    /// If no table knows one, with the nearest versions that are known.
    pub fn find(&self, wanted: &str) -> Result<&Release> {
        let below = format!("{wanted}.");
        let all = self.releases();
        let fits =
            |release: &&&Release| release.version == wanted || release.version.starts_with(&below);
        if let Some(release) = all.iter().rev().find(fits) {
            return Ok(release);
        }
        let patch = if wanted.matches('.').count() == 1 {
            ".x"
        } else {
            ""
        };
        bail!(
            "Kubernetes {wanted} is in no release table, neither the carried one nor {}; nearest: {}; \
             `slipway release add {wanted}{patch}` adds it from the vendor's published checksums",
            self.path.display(),
            nearest(wanted, &all).join(", ")
        )
    }
}

/// Up to three versions by their distance, the nearest first.
fn nearest(wanted: &str, all: &[&Release]) -> Vec<String> {
    let mut parts = wanted
        .split('.')
        .skip(1)
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let (minor, patch) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let distance = |release: &&&Release| {
        numbers(&release.version).map(|[_, m, p]| (m.abs_diff(minor), p.abs_diff(patch)))
    };
    let mut sorted: Vec<&&Release> = all.iter().collect();
    sorted.sort_by_key(distance);
    sorted
        .iter()
        .take(3)
        .map(|release| release.version.clone())
        .collect()
}

#[cfg(test)]
mod tests;
