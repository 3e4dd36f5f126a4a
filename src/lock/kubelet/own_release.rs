//! crictl, the CNI plugins, etcd, flannel, metrics-server and Amazon's cloud controller: none is of Kubernetes' release, which only names versions of the first three. The first two
//! come as archives from the server that the release table calls `{github}`, and all can be compiled from their Go modules.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::own_module::{
    self, AWS_CLOUD_CONTROLLER, CNI_PLUGINS, CONTAINERD, CRICTL, ETCD, FLANNEL, METRICS_SERVER,
    OF_IMAGES,
};
use super::program::{Pinned, Program};
use super::release::{self, Place};
use crate::format::hashed_file::HashedFile;
use crate::host::progress::Step;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::layer::archive::{self, Options};
use crate::layer::{Entry, Kind};
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::recipe::{self, KubeletRequest, KubeletSource};
use crate::release::{Implied, Tables};

/// Plugins without which no pod of a cluster has a network: an archive without them is another one.
const BASIC: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// The programs of containerd.
const RUNTIME: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];

/// Programs with a release of their own, as a file.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The file.
    pub program: Program,
    /// Where they are in it, if it is an archive: a path, or `.` for all of it.
    pub inside: Option<String>,
}

impl Packed {
    pub(super) fn new(name: &str, program: Program, source: &LockedFrom) -> Self {
        let inside = match (source, name) {
            (LockedFrom::Archive { path, .. }, _) => Some(path.clone()),
            (_, CNI_PLUGINS | CONTAINERD) => Some(".".to_owned()),
            _ => None,
        };
        Self { program, inside }
    }

    /// Unpacks it in `folder`, if it is an archive.
    ///
    /// # Errors
    /// If it is damaged, or a path leads out of it.
    pub fn unpack(&self, folder: &Path) -> Result<()> {
        let options = Options {
            strip: 0,
            keep_owners: false,
        };
        match self.inside {
            Some(_) => archive::unpack(&HashedFile::hash(&self.program.path)?, folder, options),
            None => Ok(()),
        }
    }

    /// The programs, below `/` by their names; `folder` is that of [`Packed::unpack`].
    ///
    /// # Errors
    /// If the archive does not have what it should, with what it has.
    pub fn programs(&self, name: &str, folder: &Path) -> Result<Vec<Entry>> {
        let Some(inside) = &self.inside else {
            let path = format!("/{name}");
            return Ok(vec![Entry::copy(path, 0o755, &self.program.path)]);
        };
        let entries = archive::open(folder)?;
        let is_program = |entry: &Entry| {
            let top = entry.path.rfind('/') == Some(0);
            matches!(entry.kind, Kind::File(_)) && entry.mode & 0o111 != 0 && top
        };
        let mut found: Vec<Entry> = match inside.as_str() {
            "." => entries.iter().filter(|entry| is_program(entry)).collect(),
            path => {
                let path = format!("/{path}");
                let is_it =
                    |entry: &&Entry| entry.path == path && matches!(entry.kind, Kind::File(_));
                entries.iter().filter(is_it).collect::<Vec<_>>()
            }
        }
        .into_iter()
        .cloned()
        .collect();
        let expected: &[&str] = match inside.as_str() {
            "." if name == CONTAINERD => &RUNTIME,
            "." => &BASIC,
            path => &[path],
        };
        let has = |wanted: &&&str| found.iter().any(|entry| entry.path[1..] == ***wanted);
        let missing: Vec<&str> = expected
            .iter()
            .filter(|wanted| !has(wanted))
            .copied()
            .collect();
        ensure!(
            missing.is_empty(),
            "the archive of {name} {} has {}, expected {}",
            self.program.version,
            listed(&entries),
            missing.join(", ")
        );
        for entry in &mut found {
            let program = entry.path.rsplit('/').next().unwrap_or_default();
            entry.path = format!("/{program}");
            (entry.mode, entry.uid, entry.gid) = (0o755, 0, 0);
        }
        Ok(found)
    }
}

/// The first files of an archive, for people.
fn listed(entries: &[Entry]) -> String {
    let files = entries
        .iter()
        .filter(|entry| matches!(entry.kind, Kind::File(_)));
    let names: Vec<&str> = files.map(|entry| &entry.path[1..]).collect();
    match names.as_slice() {
        [] => "no files".to_owned(),
        all if all.len() > 5 => format!("{} and {} more", all[..5].join(", "), all.len() - 5),
        all => all.join(", "),
    }
}

/// Splits the requested programs: those of Kubernetes' release, and those with releases of their own.
pub(super) fn split(request: &KubeletRequest) -> (KubeletRequest, BTreeSet<String>) {
    let mut rest = request.clone();
    let own = request.components.iter();
    let own: BTreeSet<String> = own
        .filter(|name| own_module::is_own(name))
        .cloned()
        .collect();
    rest.components.retain(|name| !own.contains(name));
    (rest, own)
}

/// Adds these programs to those of the kubelet's release.
///
/// # Errors
/// If no source has one, with the reason for each; or an archive differs from the release table, though other sources follow.
pub(super) fn add(
    pinned: &mut Pinned,
    names: &BTreeSet<String>,
    request: &KubeletRequest,
    tables: &Tables,
    session: &Session,
    locked: &LockedRecipe,
) -> Result<()> {
    for name in names {
        let step = session.progress.step(&format!("pin {name}"));
        let release = pinned.kubelet.version.clone();
        let wanted = Wanted {
            name,
            release: &release,
            request,
            tables,
        };
        let (program, hit) = pin(&wanted, session, locked, &step)?;
        step.done(hit, Some(program.size));
        pinned.hit &= hit;
        pinned.components.insert(name.clone(), program);
    }
    Ok(())
}

/// A program for a lock.
struct Wanted<'a> {
    name: &'a str,
    /// The release of Kubernetes, as `v1.36.3`.
    release: &'a str,
    request: &'a KubeletRequest,
    tables: &'a Tables,
}

fn pin(
    wanted: &Wanted<'_>,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let Wanted { name, release, .. } = wanted;
    let version = version(name, release)?;
    let mut refusals = Vec::new();
    for source in &wanted.request.sources {
        let (from, pinned) = match source {
            KubeletSource::Release { url } if !is_compiled(name) => {
                let pinned = published(wanted, url, session, locked, step);
                (format!("the server {}", github(wanted.request)), pinned)
            }
            KubeletSource::GoModule => {
                let pinned = own_module::pin(name, &version, session, locked, step);
                let proven = pinned.and_then(|pinned| {
                    prove(name, &pinned.0, session)?;
                    Ok(pinned)
                });
                ("the Go module".to_owned(), proven)
            }
            _ => continue,
        };
        match pinned {
            Ok(pinned) => {
                if !refusals.is_empty() {
                    session.progress.warn(&format!(
                        "{name} is pinned from {from}, since {}",
                        refusals.join("; ")
                    ));
                }
                if pinned.0.version != version {
                    let why = match *name {
                        FLANNEL | CONTAINERD | METRICS_SERVER | AWS_CLOUD_CONTROLLER => {
                            "which this program knows".to_owned()
                        }
                        _ => format!("which Kubernetes {release} is tested with"),
                    };
                    session.progress.warn(&format!(
                        "{name} is {}: the module proxy does not have {version}, {why}",
                        pinned.0.version
                    ));
                }
                return Ok(pinned);
            }
            // Another archive than the table's is not a source that is away.
            Err(error) if release::is_final(&error) => return Err(error),
            Err(error) => refusals.push(format!("{from}: {error:#}")),
        }
    }
    ensure!(
        !refusals.is_empty(),
        "{}: {name} comes from a release server or its Go module; expected {{ release = \"…\" }} or {{ go-module = true }} in `kubelet` \
         of [kubernetes]",
        locked.recipe.path.display()
    );
    bail!(
        "no source of {} has {name} {version}:\n  {}",
        locked.recipe.path.display(),
        refusals.join("\n  ")
    )
}

/// Whether a program comes from its Go module alone.
fn is_compiled(name: &str) -> bool {
    name == CONTAINERD || OF_IMAGES.contains(&name)
}

/// The version of containerd, which follows no release of Kubernetes.
const CONTAINERD_VERSION: &str = "v2.2.9";
/// The version of flannel, which follows none either.
const FLANNEL_VERSION: &str = "v0.28.10";
/// The version of metrics-server, each of which is for several releases
/// (<https://github.com/kubernetes-sigs/metrics-server#compatibility-matrix>).
const METRICS_SERVER_VERSION: &str = "v0.9.0";

/// The version of a program that a release of Kubernetes implies.
fn version(name: &str, release: &str) -> Result<String> {
    match name {
        FLANNEL => return Ok(FLANNEL_VERSION.to_owned()),
        METRICS_SERVER => return Ok(METRICS_SERVER_VERSION.to_owned()),
        CONTAINERD => return Ok(CONTAINERD_VERSION.to_owned()),
        AWS_CLOUD_CONTROLLER => {
            let version = recipe::aws_cloud_controller(release);
            return Ok(version.map_err(|why| anyhow!(why.join("; ")))?.to_owned());
        }
        _ => {}
    }
    let version = Implied::of(release.trim_start_matches('v'))
        .and_then(|implied| implied.own_version(name))
        .with_context(|| {
            format!(
                "which {name} belongs to Kubernetes {release} is not known; expected a patch release of {}",
                Implied::minors().join(", ")
            )
        })?;
    ensure!(
        name != ETCD || !version.starts_with("v3.5."),
        "Kubernetes {release} is tested with etcd {version}; expected etcd = \"3.5\" in [containers]"
    );
    Ok(version)
}

fn github(request: &KubeletRequest) -> &str {
    request.github.as_deref().unwrap_or_default()
}

/// Where a program's archive is, and its path in there.
fn place(wanted: &Wanted<'_>, template: &str, architecture: &str) -> Result<(Place, String)> {
    let Wanted { name, release, .. } = wanted;
    let release = release.trim_start_matches('v');
    let implied = Implied::of(release).context("the release is not known")?;
    let files = implied.files(architecture);
    let file = files.iter().find(|file| file.name == *name);
    let file = file.with_context(|| format!("{name} is not a program of a release"))?;
    let entry = wanted.tables.get(release);
    let binary = entry.and_then(|entry| {
        let mut all = entry.binaries.iter();
        all.find(|binary| binary.name == *name && binary.architecture == architecture)
    });
    let url = binary.map_or(&file.url, |binary| &binary.url);
    let base = release::base(template);
    ensure!(
        base.is_some() || !url.contains("{release}"),
        "the release table has it at {url}, and the recipe's URL {} does not say where {{release}} is",
        fetch::shown(template)
    );
    let url = url
        .replace("{github}", github(wanted.request).trim_end_matches('/'))
        .replace("{release}", base.unwrap_or_default());
    let sha256 = binary.map(|binary| binary.sha256.clone());
    let path = binary.map_or(file.path, |binary| &binary.path).to_owned();
    Ok((Place { url, sha256 }, path))
}

/// Whether a locked program is still one of what the recipe's sources would give.
pub(super) fn is_current(
    name: &str,
    program: &LockedProgram,
    release: &str,
    request: &KubeletRequest,
    tables: &Tables,
    architecture: &str,
) -> bool {
    let wanted = Wanted {
        name,
        release,
        request,
        tables,
    };
    request
        .sources
        .iter()
        .any(|source| match (source, &program.source) {
            (KubeletSource::Release { url }, LockedFrom::Archive { url: found, .. }) => {
                place(&wanted, url, architecture).is_ok_and(|(place, _)| place.url == *found)
            }
            (KubeletSource::GoModule, LockedFrom::GoModule { .. }) => true,
            _ => false,
        })
}

/// Pins an archive by the release table's hash, else by the one that is published beside it.
fn published(
    wanted: &Wanted<'_>,
    template: &str,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let Wanted { name, release, .. } = wanted;
    let (place, path) = place(wanted, template, locked.recipe.image.architecture.debian())?;
    let client = fetch::blocking::Client::new(&session.fetch_options())?;
    let version = version(name, release)?;
    // The release table may have it at the server of the release.
    let github = github(wanted.request);
    let source = match place.url.starts_with(github) {
        true => github,
        false => template,
    };
    let server = (&client, source);
    let (program, hit) = release::pin_one(server, &place, name, &version, session, step)?;
    let url = place.url;
    let (about, given) = (format!("reading {}", fetch::shown(&url)), url.clone());
    let program = LockedProgram {
        source: LockedFrom::Archive { url, path },
        ..program
    };
    prove(name, &program, session).context(about)?;
    session.answers.give(source, &given);
    Ok((program, hit))
}

/// Checks that the programs are in their archive, and that crictl runs and is of its version.
fn prove(name: &str, locked: &LockedProgram, session: &Session) -> Result<()> {
    let program = Program {
        version: locked.version.clone(),
        sha256: locked.sha256.clone(),
        path: session.cache.object(&locked.sha256),
    };
    let packed = Packed::new(name, program, &locked.source);
    let scratch = session.cache.scratch()?;
    packed.unpack(scratch.path())?;
    let programs = packed.programs(name, scratch.path())?;
    let (CRICTL, [crictl]) = (name, programs.as_slice()) else {
        return Ok(());
    };
    let root = scratch.path().join("root");
    fs::create_dir(&root)?;
    let inside = root.join(CRICTL);
    let Kind::File(content) = &crictl.kind else {
        return Err(anyhow!("{CRICTL} is not a file"));
    };
    io::copy(&mut content.read()?.as_slice(), &mut File::create(&inside)?)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
    let said = Sandbox::new(&root)
        .command(format!("/{CRICTL}"))
        .arg("--version")
        .run()
        .context("asking crictl for its version in an empty root (it must be linked statically)")?;
    check_version(&locked.version, &String::from_utf8_lossy(&said))
}

/// Compares crictl's answer to `--version` with its release.
fn check_version(version: &str, said: &str) -> Result<()> {
    let version = version.trim_start_matches('v');
    let mut words = said.split_whitespace();
    ensure!(
        words.any(|word| word.trim_start_matches('v') == version),
        "crictl answers {:?} to --version, expected {version}",
        said.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gzipped archive of these files: path, mode.
    fn packed(inside: &str, files: &[(&str, u32)]) -> (tempfile::TempDir, Packed) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        let out = File::create(&path).unwrap();
        let out = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
        let mut archive = tar::Builder::new(out);
        for (name, mode) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(name.len() as u64);
            header.set_mode(*mode);
            header.set_uid(1000);
            header.set_gid(1000);
            archive
                .append_data(&mut header, name, name.as_bytes())
                .unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
        let program = Program {
            version: "v1.9.1".to_owned(),
            sha256: String::new(),
            path,
        };
        let inside = Some(inside.to_owned());
        (folder, Packed { program, inside })
    }

    fn names(packed: &Packed, name: &str) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        packed.unpack(folder.path())?;
        let programs = packed.programs(name, folder.path())?;
        assert!(programs.iter().all(|entry| entry.mode == 0o755));
        Ok(programs.into_iter().map(|entry| entry.path).collect())
    }

    #[test]
    fn programs_are_found_in_their_archive_and_what_is_missing_is_named() {
        let all = [
            ("./LICENSE", 0o644),
            ("./bridge", 0o755),
            ("./host-local", 0o755),
            ("./loopback", 0o4755),
            ("./portmap", 0o755),
        ];
        let (_folder, plugins) = packed(".", &all);
        let found = names(&plugins, CNI_PLUGINS).unwrap();
        assert_eq!(found, ["/bridge", "/host-local", "/loopback", "/portmap"]);
        let (_folder, fewer) = packed(".", &all[..3]);
        let error = names(&fewer, CNI_PLUGINS).unwrap_err().to_string();
        let expected = "the archive of cni-plugins v1.9.1 has LICENSE, bridge, host-local, expected loopback, portmap";
        assert_eq!(error, expected);
        let (_folder, crictl) = packed("bin/crictl", &[("bin/crictl", 0o755)]);
        assert_eq!(names(&crictl, CRICTL).unwrap(), ["/crictl"]);
        let (_folder, elsewhere) = packed("crictl", &[("bin/crictl", 0o755)]);
        let error = names(&elsewhere, CRICTL).unwrap_err().to_string();
        assert!(
            error.ends_with("has bin/crictl, expected crictl"),
            "{error}"
        );
    }

    #[test]
    fn amazons_controller_is_of_the_release_of_kubernetes() {
        let version = |release: &str| version(AWS_CLOUD_CONTROLLER, release);
        assert_eq!(version("v1.36.3").unwrap(), "v1.36.2");
        assert_eq!(version("1.34.9").unwrap(), "v1.34.4");
        let error = version("v1.37.0").unwrap_err().to_string();
        assert!(
            error.ends_with("expected a patch release of 1.34, 1.35, 1.36"),
            "{error}"
        );
    }

    #[test]
    fn a_crictl_of_another_version_is_not_taken() {
        for said in ["crictl version 1.35.0\n", "crictl version v1.35.0"] {
            check_version("v1.35.0", said).unwrap();
        }
        let error = check_version("v1.35.0", "crictl version 1.34.0").unwrap_err();
        assert!(error.to_string().contains("expected 1.35.0"), "{error}");
    }
}
