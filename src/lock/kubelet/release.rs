//! The programs from a release server. What the release table has of a program, its path and its SHA-256, is taken from there;
//! without it the upstream project's conventions count: beside each program stands its SHA-256
//! (<https://kubernetes.io/releases/download/>).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fetch::{Digest, Failure, Patience, Want, blocking};

use super::program::{LIMIT, Pinned, ask_version};
use crate::host::answers::Inconsistent;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::recipe::KubeletRequest;
use crate::release::{Release, Tables};

/// Short timeouts, because the next source is tried after a failure.
const PATIENCE: Patience = Patience {
    attempts: Some(2),
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(20),
    total: None,
    without_bytes: None,
    slowest: None,
    first_wait: Duration::from_millis(250),
};
/// Size limit of a digest, bytes.
const SMALL: u64 = 4096;
/// The end of a URL by upstream's conventions: a mirror has another beginning only.
const CONVENTION: &str = "/{version}/bin/linux/{arch}/";

/// A server has another program than the release table.
#[derive(Debug)]
struct OtherBytes(String);

impl std::fmt::Display for OtherBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OtherBytes {}

/// Whether no other source may stand in for the one with this error: it gave another program than the release table says, or an
/// image of this run has its programs from it.
pub(super) fn is_final(error: &anyhow::Error) -> bool {
    error.is::<OtherBytes>() || error.is::<Inconsistent>()
}

/// Where a program is.
pub(super) struct Place {
    pub(super) url: String,
    /// Its SHA-256, if the release table has the program.
    pub(super) sha256: Option<String>,
}

impl Place {
    /// A program of a release at a server whose URLs have the form of `template`.
    fn of(entry: Option<&Release>, name: &str, release: &str, arch: &str, template: &str) -> Self {
        let url = template
            .replace("{version}", release)
            .replace("{arch}", arch)
            .replace("{program}", name);
        let binary = entry.and_then(|entry| {
            let mut all = entry.binaries.iter();
            all.find(|binary| binary.name == name && binary.architecture == arch)
        });
        let Some(binary) = binary else {
            return Self { url, sha256: None };
        };
        let base = template
            .rsplit_once(CONVENTION)
            .filter(|(_, program)| [name, "{program}"].contains(program));
        Self {
            // A mirror with other paths is asked by its own.
            url: base.map_or(url, |(base, _)| binary.url.replace("{release}", base)),
            sha256: Some(binary.sha256.clone()),
        }
    }
}

/// The server of a URL of upstream's form, which `{release}` stands for in a table.
pub(super) fn base(template: &str) -> Option<&str> {
    template.rsplit_once(CONVENTION).map(|(base, _)| base)
}

/// Where the kubelet of a release (`v1.36.3`) is at a server whose URLs have the form of `template`.
pub(super) fn kubelet_url(template: &str, tables: &Tables, release: &str, arch: &str) -> String {
    let entry = tables.get(release.trim_start_matches('v'));
    Place::of(entry, "kubelet", release, arch, template).url
}

pub(super) fn pin(
    template: &str,
    request: &KubeletRequest,
    entry: Option<&Release>,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<Pinned> {
    ensure!(
        request.components.is_empty() || template.contains("{program}"),
        "its URL stands for one program, and the recipe wants others: write {{program}} in it"
    );
    let client = blocking::Client::new(&session.fetch_options())?;
    let release = format!("v{}", request.version);
    let arch = locked.recipe.image.architecture.debian();
    let mut all = true;
    let mut urls = Vec::new();
    let mut pin = |name: &str| {
        let place = Place::of(entry, name, &release, arch, template);
        let server = (&client, template);
        let (program, hit) = pin_one(server, &place, name, &release, session, step)?;
        urls.push(place.url);
        all &= hit;
        anyhow::Ok(program)
    };
    let kubelet = pin("kubelet")?;
    let object = session.cache.object(&kubelet.sha256);
    let found = ask_version(&session.cache, &object)?;
    ensure!(
        found == release,
        "the kubelet of {release} reports version {found}"
    );
    let mut components = BTreeMap::new();
    for name in &request.components {
        components.insert(name.clone(), pin(name)?);
    }
    for url in &urls {
        session.answers.give(template, url);
    }
    Ok(Pinned {
        kubelet,
        components,
        hit: all,
    })
}

/// Pins a program by the digest of the release table, else by the one beside it, and fetches it; gives whether it was in the
/// cache. A server, by its name in the answers of this run, is asked only for what is not known.
pub(super) fn pin_one(
    (client, server): (&blocking::Client, &str),
    place: &Place,
    name: &str,
    release: &str,
    session: &Session,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let url = &place.url;
    let sha256 = match &place.sha256 {
        Some(sha256) => sha256.clone(),
        None => {
            let beside = format!("{url}.sha256");
            let asked = session.answers.ask(server, url, || text(client, &beside));
            asked?
        }
    };
    // Some servers use the format of `sha256sum`: the digest, then the name.
    let sha256 = sha256
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let hit = session.cache.object(&sha256).exists();
    if !hit {
        let fetch = || fetch(url, &sha256, session, step);
        let fetched = session.answers.ask(server, url, fetch);
        fetched.map_err(|error| match error.downcast_ref::<Failure>() {
            Some(Failure::Digest {
                expected, found, ..
            }) if place.sha256.is_some() => OtherBytes(format!(
                "{} has SHA-256 {found}, expected {expected} as the release table says of {name} {release}",
                fetch::shown(url)
            ))
            .into(),
            _ => error,
        })?;
    }
    let program = LockedProgram {
        version: release.to_owned(),
        size: std::fs::metadata(session.cache.object(&sha256))?.len(),
        sha256,
        source: LockedFrom::Release {
            url: url.to_owned(),
        },
    };
    Ok((program, hit))
}

/// Fetches the program into the cache.
pub(super) fn fetch(url: &str, sha256: &str, session: &Session, step: &Step) -> Result<()> {
    let digest = Digest::sha256(sha256).with_context(|| {
        format!("{sha256:?} is not a SHA-256 digest; expected 64 hexadecimal digits")
    })?;
    let client = blocking::Client::new(&session.fetch_options())?;
    let want = Want {
        patience: PATIENCE,
        ..Want::new(url, LIMIT).digest(digest)
    };
    let object = session.cache.object(sha256);
    if let Some(folder) = object.parent() {
        std::fs::create_dir_all(folder)?;
    }
    client.file(&want, &object, &|bytes| step.advance(bytes))?;
    Ok(())
}

fn text(client: &blocking::Client, url: &str) -> Result<String> {
    let want = Want {
        patience: PATIENCE,
        ..Want::new(url, SMALL)
    };
    let bytes = client.bytes(&want, &|_| (), &|_| ())?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::{Binary, Table, Unpack};

    #[test]
    fn a_program_of_the_table_has_its_place_and_hash_before_any_request() {
        let carried = Table::carried().unwrap();
        let mut entry = carried.get("1.36.3").unwrap().clone();
        entry.binaries.push(Binary {
            name: "kubelet".to_owned(),
            architecture: "amd64".to_owned(),
            url: "{release}/v1.36.3/bin/linux/amd64/kubelet".to_owned(),
            path: String::new(),
            unpack: Unpack::None,
            sha256: "a".repeat(64),
        });
        let place = |name: &str, arch: &str, template: &str| {
            let place = Place::of(Some(&entry), name, "v1.36.3", arch, template);
            (place.url, place.sha256.is_some())
        };
        for (name, arch, template, url, known) in [
            (
                "kubelet",
                "amd64",
                "http://mirror.example/k8s/{version}/bin/linux/{arch}/{program}",
                "http://mirror.example/k8s/v1.36.3/bin/linux/amd64/kubelet",
                true,
            ),
            (
                "kubelet",
                "amd64",
                "http://mirror.example/{version}/bin/linux/{arch}/kubelet",
                "http://mirror.example/v1.36.3/bin/linux/amd64/kubelet",
                true,
            ),
            // A mirror that names its files otherwise.
            (
                "kubelet",
                "amd64",
                "http://mirror.example/{program}-{version}-{arch}",
                "http://mirror.example/kubelet-v1.36.3-amd64",
                true,
            ),
            (
                "kubelet",
                "arm64",
                "http://mirror.example/{version}/bin/linux/{arch}/{program}",
                "http://mirror.example/v1.36.3/bin/linux/arm64/kubelet",
                false,
            ),
            (
                "kubectl",
                "amd64",
                "http://mirror.example/{version}/bin/linux/{arch}/{program}",
                "http://mirror.example/v1.36.3/bin/linux/amd64/kubectl",
                false,
            ),
        ] {
            assert_eq!(place(name, arch, template), (url.to_owned(), known));
        }
    }
}
