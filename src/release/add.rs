//! A new entry: the published checksum of each program, the digest of each image, and the modules' go.sum.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use data_encoding::HEXLOWER;
use fetch::oci::Document;
use fetch::{Patience, Repository, Want, blocking};
use sha2::Digest as _;

use super::implied::{File, Implied};
use super::table::{Binary, Image, Module, Release, sha256};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::oci::Reference;

/// Size limit of a published checksum, bytes.
const SMALL: u64 = 4096;
/// The time for one small file.
const PATIENCE: Patience = Patience {
    attempts: Some(2),
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(20),
    total: None,
    without_bytes: None,
    slowest: None,
    first_wait: Duration::from_millis(250),
};

/// The servers that an entry is made from: a mirror may stand for each.
#[derive(Clone, Debug)]
pub struct Bases {
    /// `{release}` in URLs: the server of Kubernetes' own programs.
    pub release: String,
    /// `{github}` in URLs: the server of crictl and the CNI plugins.
    pub github: String,
    /// The registry of the images, with a path below it if the mirror has one.
    pub registry: String,
}

/// The entry to make.
#[derive(Clone, Debug)]
pub struct Request {
    /// As `1.36.3`.
    pub version: String,
    /// The architectures of the programs.
    pub architectures: Vec<String>,
    /// Lines of go.sum for a compiled release.
    pub go_sum: Option<String>,
    /// Whether programs and images are taken from their servers; without them the entry is for compiling alone.
    pub published: bool,
}

impl Bases {
    fn url(&self, template: &str) -> String {
        template
            .replace("{release}", self.release.trim_end_matches('/'))
            .replace("{github}", self.github.trim_end_matches('/'))
    }
}

/// Makes the entry of a release: nothing larger than a checksum or an index of images is fetched.
///
/// # Errors
/// If the version is not known (before any request), a checksum or an image is missing or not of its form, or the registry's
/// bytes do not have the digest by which they are fetched again.
pub fn add(session: &Session, request: &Request, bases: &Bases, step: &Step) -> Result<Release> {
    let version = &request.version;
    let implied = Implied::of(version).ok_or_else(|| {
        anyhow!(
            "{version:?} is not a patch release of Kubernetes that this program knows; expected one of {}, as \"1.36.3\"",
            Implied::minors().join(", ")
        )
    })?;
    let mut release = Release {
        version: version.clone(),
        id: String::new(),
        binaries: Vec::new(),
        images: Vec::new(),
        module: request.go_sum.as_ref().map(|go_sum| Module {
            version: format!("v{version}"),
            go_sum: go_sum.clone(),
        }),
    };
    if request.published {
        let client = blocking::Client::new(&session.fetch_options())?;
        for architecture in &request.architectures {
            for file in implied.files(architecture) {
                step.note(&format!("checksum of {} for {architecture}", file.name));
                release
                    .binaries
                    .push(binary(&client, file, architecture, bases)?);
            }
        }
        for (name, repository, tag) in implied.images() {
            step.note(&format!("digest of the image {name}"));
            let reference = format!(
                "{}/{repository}:{tag}",
                bases.registry.trim_end_matches('/')
            );
            release
                .images
                .push(image(&client, name, &reference, &request.architectures)?);
        }
    }
    release.id = release.identity();
    let mistakes = release.mistakes();
    ensure!(
        mistakes.is_empty(),
        "the entry of {version} would not be whole:\n  {}",
        mistakes.join("\n  ")
    );
    Ok(release)
}

/// A program by the checksum that is published beside it.
fn binary(
    client: &blocking::Client,
    file: File,
    architecture: &str,
    bases: &Bases,
) -> Result<Binary> {
    let url = format!("{}.sha256", bases.url(&file.url));
    let about = || format!("taking the checksum of {} for {architecture}", file.name);
    let want = Want {
        patience: PATIENCE,
        ..Want::new(&url, SMALL)
    };
    let bytes = client.bytes(&want, &|_| (), &|_| ()).with_context(about)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| anyhow!("{} is not text", fetch::shown(&url)))
        .with_context(about)?;
    let target = file.url.rsplit('/').next().unwrap_or_default();
    let sha256 = published(text, target)
        .map_err(|why| anyhow!("{}: {why}", fetch::shown(&url)))
        .with_context(about)?;
    Ok(Binary {
        name: file.name.to_owned(),
        architecture: architecture.to_owned(),
        url: file.url,
        path: file.path.to_owned(),
        unpack: file.unpack,
        sha256,
    })
}

/// Reads a published checksum: the digits alone, or a line of `sha256sum` with the name of the file.
fn published(text: &str, file: &str) -> Result<String, String> {
    let shown: String = text.chars().take(80).collect();
    let mut words = text.split_whitespace();
    let digits = words.next().unwrap_or_default().to_ascii_lowercase();
    sha256(&digits).map_err(|why| match shown.trim() {
        "" => "it is empty, expected 64 hexadecimal digits".to_owned(),
        shown if shown.contains('<') => {
            format!("it is {shown:?}, a page and not a checksum; expected 64 hexadecimal digits")
        }
        _ => why,
    })?;
    let name = words.next().map(|name| name.trim_start_matches('*'));
    match (name, words.next()) {
        (None, _) => Ok(digits),
        (Some(name), None) if name.rsplit('/').next() == Some(file) => Ok(digits),
        _ => Err(format!(
            "it is {shown:?}, expected the checksum of {file} alone"
        )),
    }
}

/// An image by the digest of what the registry answers for its tag.
fn image(
    client: &blocking::Client,
    name: &str,
    reference: &str,
    architectures: &[String],
) -> Result<Image> {
    let digest = digest(client, reference, architectures)
        .with_context(|| format!("taking the digest of {reference}"))?;
    Ok(Image {
        name: name.to_owned(),
        reference: reference.to_owned(),
        digest,
    })
}

fn digest(client: &blocking::Client, reference: &str, architectures: &[String]) -> Result<String> {
    let read: Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let mut repository = Repository::new(&read.registry, &read.repository);
    let text = client.document(&mut repository, &read.version)?;
    let document = Document::read(&text).context("reading what the registry answers")?;
    let Document::Index(index) = document else {
        bail!("the tag is an image for one architecture, expected an index");
    };
    for architecture in architectures {
        index.for_linux(architecture).map_err(anyhow::Error::msg)?;
    }
    let digest = format!("sha256:{}", HEXLOWER.encode(&sha2::Sha256::digest(&text)));
    // A node asks by the digest: the registry must serve these bytes under it, and the client compares them.
    client.document(&mut repository, &digest)?;
    Ok(digest)
}

#[cfg(test)]
mod tests;
