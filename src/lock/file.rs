//! The lock file: TOML, one line for each package, so that a renewal gives a readable diff.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use serde::{Deserialize, Serialize};

use crate::code::Builder;
use crate::debian::pinned::LockedPackage;
use crate::host::atomic_file;

/// Version of the lock file's format.
pub const VERSION: u32 = 1;

/// All external inputs of a recipe's build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lock {
    /// Version of this format, [`VERSION`].
    pub version: u32,
    /// The program that wrote this content; none in locks of earlier versions. A lock is as good with any program that knows its
    /// version: nothing but messages follows from this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<Builder>,
    /// Hash of the recipe's requirements: the lock is valid for these only.
    pub recipe_digest: String,
    /// Hash of the requirements of Slipway's own tools, which another version of it may change: the sets of tools are for these only.
    #[serde(default)]
    pub tools_digest: String,
    /// The newest `Date` of the sources, seconds since 1970: the time of all files in the image.
    pub epoch: u64,
    /// The epochs of earlier locks that packages were kept of which the suites do not have any more, the newest first: snapshots of
    /// these times have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<u64>,
    /// A folder, relative to that of the recipe, or a URL below which all files are by their hashes (`ab/abcd…`): builds ask it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The suites that the packages were chosen from.
    pub sources: Vec<LockedSource>,
    /// The packages of each set, sorted by name.
    pub sets: BTreeMap<String, Vec<LockedPackage>>,
    /// The kubelet, if the recipe has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<LockedProgram>,
    /// The other programs of the kubelet's release that the recipe wants, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, LockedProgram>,
    /// The images of the release that a registry has: references with digests, by component.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
}

/// A suite in its state when the lock was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedSource {
    /// `debian`, `debian-security` or the name of an archive in the recipe.
    pub archive: String,
    /// The suite's name.
    pub suite: String,
    /// `Date` of its signed list, seconds since 1970.
    pub date: u64,
}

/// A program of a Kubernetes release that a lock pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedProgram {
    /// Release, as `v1.36.3`; for CoreDNS its own.
    pub version: String,
    /// SHA-256 of the program, hexadecimal.
    pub sha256: String,
    /// Size of the program in bytes.
    pub size: u64,
    /// The program's source.
    pub source: LockedFrom,
}

/// The source of a pinned program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LockedFrom {
    /// A release server.
    Release {
        /// URL of the program.
        url: String,
    },
    /// An archive of a server, which has the program or several.
    Archive {
        /// URL of the archive, whose bytes the SHA-256 is of.
        url: String,
        /// The program's path in it, or `.` for all of it.
        path: String,
    },
    /// A program of the building host, named in the recipe.
    File {
        /// Its path in the recipe.
        path: String,
    },
    /// An OCI image.
    Oci {
        /// Its reference in the recipe.
        reference: String,
        /// Digest of its manifest, as `sha256:…`.
        digest: String,
    },
    /// Compiled with the kubelet, from its modules: one program that is all components beside the kubelet, and acts as the
    /// one by whose name it is called.
    KubeletModule,
    /// The Go module, compiled locally.
    GoModule {
        /// `go.mod` of the compiled program.
        go_mod: String,
        /// `go.sum`: the hash of every module.
        go_sum: String,
    },
}

const HEAD: &str = "# Made by `slipway lock`: what the recipe beside it takes from elsewhere, pinned. Keep it with the recipe.\n";

/// Reads a lock; `None` if there is no file.
pub(super) fn read(path: &Path) -> Result<Option<Lock>> {
    read_or(path, "; `slipway lock --renew` makes a new one")
}

/// The same, with another remedy in its error.
///
/// # Errors
/// As [`read()`].
pub(super) fn read_or(path: &Path, remedy: &str) -> Result<Option<Lock>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
    };
    let about = || format!("reading {}{}{remedy}", path.display(), by_another(&text));
    parse(&text).with_context(about).map(Some)
}

/// By which program a lock was written that this one cannot read: often that is why. Empty if it was this one, or nobody knows.
fn by_another(text: &str) -> String {
    // Of a lock that has other fields, or is of another version, this one may still be understood.
    #[derive(Deserialize)]
    struct Written {
        builder: Builder,
    }
    let this = Builder::this();
    match toml::from_str(text) {
        Ok(Written { builder }) if builder.version != this.version => format!(
            " (written by slipway {}, this is {})",
            builder.version, this.version
        ),
        Ok(Written { builder }) if builder.code != this.code => {
            format!(" (written by another build of slipway {})", this.version)
        }
        _ => String::new(),
    }
}

fn parse(text: &str) -> Result<Lock> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = toml::from_str(text)?;
    if version != VERSION {
        bail!("it is of version {version}, this program knows version {VERSION}");
    }
    let lock: Lock = toml::from_str(text)?;
    let is_url = |vendor: &&String| vendor.contains("://");
    if lock
        .vendor
        .iter()
        .filter(is_url)
        .any(|url| fetch::has_login(url))
    {
        bail!("`vendor` in it has a user or a password; SLIPWAY_AUTH_FILE names a file for these");
    }
    let kubelet = lock.kubelet.iter().map(|program| ("kubelet", program));
    let components = lock
        .components
        .iter()
        .map(|(name, program)| (name.as_str(), program));
    for (name, program) in kubelet.chain(components) {
        if fetch::Digest::sha256(&program.sha256).is_none() {
            bail!("the program {name} has no usable SHA-256");
        }
    }
    for (name, reference) in &lock.images {
        let digest = reference.split_once('@').map(|(_, digest)| digest);
        if digest.and_then(fetch::oci::sha256).is_none() {
            bail!("the image {name} has no usable digest");
        }
    }
    for (set, packages) in &lock.sets {
        for package in packages {
            let plain = package
                .path
                .split('/')
                .all(|part| !matches!(part, "" | "." | ".."));
            if !plain || fetch::Digest::sha256(&package.sha256).is_none() {
                bail!(
                    "package {} of set {set} has no usable path or SHA-256",
                    package.name
                );
            }
        }
    }
    Ok(lock)
}

/// Writes a lock over `known`, which is in the file, with this program as its builder. A file whose content would be the same stays as
/// it is, with its builder: an update of Slipway alone changes no lock in a user's repository. Gives the file's size in bytes.
pub(super) fn write(path: &Path, known: Option<&Lock>, lock: &mut Lock) -> Result<u64> {
    if let Some(known) = known {
        lock.builder.clone_from(&known.builder);
        if *lock == *known {
            let found = std::fs::metadata(path);
            let found = found.with_context(|| format!("reading {}", path.display()))?;
            return Ok(found.len());
        }
    }
    lock.builder = Some(Builder::this());
    let text = text(lock)?;
    atomic_file::write(path, 0o644, |file| Ok(file.write_all(text.as_bytes())?))?;
    Ok(u64::try_from(text.len())?)
}

fn text(lock: &Lock) -> Result<String> {
    // An inline table on one line for each entry of a list, which TOML writers do not support.
    let line = |entry: toml::Value| format!("    {entry},\n");
    let mut text = HEAD.to_owned();
    writeln!(text, "version = {}", lock.version)?;
    if let Some(builder) = &lock.builder {
        writeln!(text, "builder = {}", toml::Value::try_from(builder)?)?;
    }
    writeln!(text, "recipe-digest = {}", string(&lock.recipe_digest))?;
    writeln!(text, "tools-digest = {}", string(&lock.tools_digest))?;
    writeln!(text, "epoch = {}", lock.epoch)?;
    if !lock.earlier.is_empty() {
        let all: Vec<String> = lock.earlier.iter().map(u64::to_string).collect();
        writeln!(text, "earlier = [{}]", all.join(", "))?;
    }
    if let Some(vendor) = &lock.vendor {
        writeln!(text, "vendor = {}", string(vendor))?;
    }
    text.push_str("sources = [\n");
    for source in &lock.sources {
        text.push_str(&line(toml::Value::try_from(source)?));
    }
    text.push_str("]\n\n[sets]\n");
    for (name, packages) in &lock.sets {
        writeln!(text, "{} = [", string(name))?;
        for package in packages {
            text.push_str(&line(toml::Value::try_from(package)?));
        }
        text.push_str("]\n");
    }
    let mut programs = toml::Table::new();
    if let Some(kubelet) = &lock.kubelet {
        programs.insert("kubelet".to_owned(), toml::Value::try_from(kubelet)?);
    }
    if !lock.components.is_empty() {
        let components = toml::Value::try_from(&lock.components)?;
        programs.insert("components".to_owned(), components);
    }
    if !lock.images.is_empty() {
        programs.insert("images".to_owned(), toml::Value::try_from(&lock.images)?);
    }
    if !programs.is_empty() {
        write!(text, "\n{}", toml::to_string_pretty(&programs)?)?;
    }
    Ok(text)
}

fn string(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::pinned::LockedPackage;
    use crate::lock::LockedSource;

    fn lock() -> Lock {
        let package = |name: &str, version: &str| LockedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            architecture: "amd64".to_owned(),
            archive: "debian".to_owned(),
            path: format!("pool/main/{name}_{version}_amd64.deb"),
            size: 4096,
            sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
            source: None,
        };
        Lock {
            version: VERSION,
            builder: None,
            recipe_digest: "abc".to_owned(),
            tools_digest: String::new(),
            epoch: 1_795_140_670,
            earlier: Vec::new(),
            vendor: Some("vendor".to_owned()),
            sources: vec![LockedSource {
                archive: "debian".to_owned(),
                suite: "trixie".to_owned(),
                date: 1_795_140_670,
            }],
            sets: [
                (
                    "root".to_owned(),
                    vec![package("bash", "1:5.2~rc1+\"b\""), package("c++", "1")],
                ),
                ("empty".to_owned(), vec![]),
            ]
            .into(),
            kubelet: Some(LockedProgram {
                version: "v1.36.3".to_owned(),
                sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
                    .to_owned(),
                size: 84_426_878,
                source: LockedFrom::GoModule {
                    go_mod: "module m\n\nrequire (\n\ta v1 // indirect\n)\n".to_owned(),
                    go_sum: "a v1 h1:x/+=\n".to_owned(),
                },
            }),
            components: [(
                "kubectl".to_owned(),
                LockedProgram {
                    version: "v1.36.3".to_owned(),
                    sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
                        .to_owned(),
                    size: 84_426_878,
                    source: LockedFrom::KubeletModule,
                },
            )]
            .into(),
            images: [(
                "etcd".to_owned(),
                format!("r.example/etcd:3.6.8-0@sha256:{}", "a".repeat(64)),
            )]
            .into(),
        }
    }

    #[test]
    fn a_written_lock_reads_back_and_has_a_line_for_each_package() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.lock");
        assert_eq!(read(&path).unwrap(), None);
        let mut written = lock();
        let size = write(&path, None, &mut written).unwrap();
        assert_eq!(written.builder, Some(Builder::this()));
        assert_eq!(read(&path).unwrap(), Some(written));
        assert_eq!(size, std::fs::metadata(&path).unwrap().len());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| line.contains("sha256")).count();
        assert_eq!(lines, 5, "{text}");
        assert!(text.contains("\na v1 h1:x/+=\n"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_lock_that_cannot_be_used_is_refused() {
        let good = text(&lock()).unwrap();
        for (from, to, words) in [
            (
                "version = 1",
                "version = 2",
                "of version 2, this program knows version 1",
            ),
            ("epoch", "epohc", "epohc"),
            ("pool/main/c++", "pool/../c++", "package c++ of set root"),
            ("\"e3b0c442", "\"zzb0c442", "package bash of set root"),
            (
                "\"ba7816bf",
                "\"zz7816bf",
                "the program kubelet has no usable",
            ),
            ("@sha256:a", "@sha256:z", "the image etcd has no usable"),
            ("3.6.8-0@", "3.6.8-0-", "the image etcd has no usable"),
        ] {
            let changed = good.replace(from, to);
            assert_ne!(changed, good, "{from}");
            let error = format!("{:#}", parse(&changed).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
