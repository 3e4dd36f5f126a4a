//! Fetches a pinned container, verifies it and makes its folder; or finds the folder that an earlier start made.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster::object::{KubeletImage, skew};
use cluster::release::Version;
use data_encoding::HEXLOWER;
use fetch::blocking::Client;
use fetch::oci::{Descriptor, Document, Manifest, architecture, sha256};
use fetch::{Options, Patience, Repository};
use image::container_lint;
use image::kubelet::{LINKS, PINNED, PROGRAM};
use image::paths::VAR_LINKS;
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::oci_layer;

/// The most bytes that the files of a container may have, and its blobs: ten times the image's own.
const LARGEST: u64 = 2 << 30;
/// The most bytes of a config.
const CONFIG: u64 = 1 << 20;
/// The label with the kubelet's version, as `slipway build` writes it.
const VERSION: &str = "org.opencontainers.image.version";
/// The longest silence of a registry.
const SILENCE: Duration = Duration::from_secs(15);

/// The fields of an image's config that decide here.
#[derive(Debug, Deserialize)]
struct Config {
    architecture: String,
    os: String,
    #[serde(default)]
    config: Run,
}

#[derive(Debug, Default, Deserialize)]
struct Run {
    #[serde(default, rename = "Labels")]
    labels: Option<std::collections::BTreeMap<String, String>>,
}

/// The path of the container's root, for the runtime. `api_server` is the version of the cluster.
///
/// # Errors
/// Why it cannot be had, or is not the right one.
pub(super) fn obtain(
    world: &World,
    image: &KubeletImage,
    api_server: &str,
    patience: Duration,
) -> Result<String> {
    let path = format!("{PINNED}/{}", image.digest);
    let (root, version) = (
        world.in_initrd(&path),
        world.in_initrd(&format!("{path}.version")),
    );
    if root.is_dir() {
        // The cluster may have another version than when it was fetched, and the mounts may be others since an update.
        let found = fs::read_to_string(&version)
            .with_context(|| format!("reading {}", version.display()))?;
        fits(found.trim(), api_server)?;
        examine(&root)?;
        return Ok(path);
    }
    let part = world.in_initrd(&format!("{path}.part"));
    let inside = part.join("rootfs");
    let made = Attempt::new(image, &part, patience)?.make(&inside, api_server);
    let found = match made {
        Ok(found) => found,
        Err(error) => {
            // Verified blobs stay for the next attempt.
            clear(&inside)?;
            return Err(error);
        }
    };
    File::open(&inside)
        .and_then(|folder| Ok(nix::unistd::syncfs(folder)?))
        .with_context(|| format!("syncing {}", inside.display()))?;
    atomic_file::write_line(&version, &found)?;
    fs::rename(&inside, &root).with_context(|| format!("renaming {}", inside.display()))?;
    File::open(world.in_initrd(PINNED))
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("syncing {PINNED}"))?;
    clear(&part)?;
    tracing::info!("the kubelet {found} of {image} is in place");
    Ok(path)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Whether this kubelet works with the cluster.
fn fits(kubelet: &str, api_server: &str) -> Result<()> {
    let read = |text: &str| {
        Version::parse(text).with_context(|| format!("{text:?} is not a version of Kubernetes"))
    };
    skew(&read(kubelet)?, &read(api_server)?).map_err(anyhow::Error::msg)
}

/// One attempt to fetch an image.
struct Attempt {
    client: Client,
    repository: Repository,
    digest: String,
    blobs: PathBuf,
    ends: Instant,
}

impl Attempt {
    fn new(image: &KubeletImage, part: &Path, patience: Duration) -> Result<Self> {
        let blobs = part.join("blobs");
        folder(&blobs, 0o700)?;
        Ok(Self {
            client: Client::new(&Options::default())?,
            repository: Repository::new(&image.registry, &image.repository),
            digest: format!("sha256:{}", image.digest),
            blobs,
            ends: Instant::now() + patience,
        })
    }

    /// Makes the files of the container; returns the kubelet's version.
    fn make(&mut self, root: &Path, api_server: &str) -> Result<String> {
        let manifest = self.manifest()?;
        let layers: Vec<&str> = manifest
            .layers
            .iter()
            .map(compression)
            .collect::<Result<_>>()?;
        let version = self.config(&manifest.config)?;
        fits(&version, api_server)?;
        let size = manifest.layers.iter().map(|layer| layer.size);
        let size = size.fold(0, u64::saturating_add);
        ensure!(
            size <= LARGEST,
            "its layers have {size} bytes, expected {LARGEST} at most"
        );
        clear(root)?;
        folder(root, 0o755)?;
        let mut room = LARGEST;
        for (number, (layer, compression)) in manifest.layers.iter().zip(layers).enumerate() {
            let file = self.blob(layer)?;
            let open = || stream(&file, compression);
            oci_layer::unpack(open, root, number == 0, &mut room)
                .with_context(|| format!("unpacking {}", layer.digest))?;
        }
        examine(root)?;
        Ok(version)
    }

    /// Requests wait for a network and for a registry that comes later, until the time is over.
    fn patience(&self) -> Result<Patience> {
        let left = self.ends.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "its registry takes too long");
        Ok(Patience {
            attempts: None,
            header_timeout: SILENCE,
            idle_timeout: SILENCE,
            total: Some(left),
            ..Patience::default()
        })
    }

    /// The repository with what is left of the time.
    fn within(&mut self) -> Result<&mut Repository> {
        self.repository = self.repository.clone().with_patience(self.patience()?);
        Ok(&mut self.repository)
    }

    fn manifest(&mut self) -> Result<Manifest> {
        let document = self.document(&self.digest.clone())?;
        let document = match document {
            Document::Index(index) => {
                let chosen = index
                    .for_linux(architecture())
                    .map_err(anyhow::Error::msg)?;
                ensure!(
                    sha256(&chosen.digest).is_some(),
                    "its index names {:?}, expected a digest of SHA-256",
                    chosen.digest
                );
                self.document(&chosen.digest.clone())?
            }
            manifest @ Document::Manifest(_) => manifest,
        };
        match document {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(_) => bail!("its index names another index, expected a manifest"),
        }
    }

    fn document(&mut self, digest: &str) -> Result<Document> {
        self.within()?;
        let text = self.client.document(&mut self.repository, digest)?;
        Document::read(&text).with_context(|| format!("reading the manifest {digest}"))
    }

    /// Checks that the image is for this machine; returns the kubelet's version.
    fn config(&mut self, descriptor: &Descriptor) -> Result<String> {
        ensure!(
            descriptor.size <= CONFIG,
            "its config has {} bytes, expected {CONFIG} at most",
            descriptor.size
        );
        let file = self.blob(descriptor)?;
        let text = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let config: Config = serde_json::from_slice(&text).context("reading its config")?;
        ensure!(
            config.os == "linux" && config.architecture == architecture(),
            "it is for {}/{}, expected linux/{}",
            config.os,
            config.architecture,
            architecture()
        );
        let labels = config.config.labels.unwrap_or_default();
        let version = labels.get(VERSION).with_context(|| {
            format!("its config has no label {VERSION} with the kubelet's version")
        })?;
        Ok(version.clone())
    }

    /// The file of a blob, fetched unless an earlier attempt did. It has its digest in any case.
    fn blob(&mut self, descriptor: &Descriptor) -> Result<PathBuf> {
        let digest = &descriptor.digest;
        ensure!(
            sha256(digest).is_some(),
            "{digest:?} is not a digest of SHA-256"
        );
        let file = self.blobs.join(digest.trim_start_matches("sha256:"));
        if !has_digest(&file, digest)? {
            self.within()?;
            self.client
                .blob(&mut self.repository, descriptor, &file, &|_| ())?;
        }
        Ok(file)
    }
}

fn has_digest(file: &Path, digest: &str) -> Result<bool> {
    let mut content = match File::open(file) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match content.read(&mut buffer)? {
            0 => break,
            length => hash.update(&buffer[..length]),
        }
    }
    Ok(digest == format!("sha256:{}", HEXLOWER.encode(&hash.finalize())))
}

/// How a layer is packed, by its media type.
fn compression(layer: &Descriptor) -> Result<&'static str> {
    let kind = layer.media_type.as_str();
    match kind.rsplit_once(['.', '+']).map_or(kind, |(_, last)| last) {
        "tar" => Ok("tar"),
        "gzip" => Ok("gzip"),
        _ => bail!("a layer has the type {kind:?}, expected tar or tar+gzip"),
    }
}

fn stream(file: &Path, compression: &str) -> Result<Box<dyn Read>> {
    let content = File::open(file).with_context(|| format!("reading {}", file.display()))?;
    let content = BufReader::with_capacity(1 << 16, content);
    Ok(match compression {
        "gzip" => Box::new(flate2::bufread::MultiGzDecoder::new(content)),
        _ => Box::new(content),
    })
}

/// Checks that the container has its program and everything that is mounted into it or leads there: it is read-only, so the
/// runtime can make nothing.
fn examine(root: &Path) -> Result<()> {
    let mut wrong = container_lint::image(|path| is_file(root, path));
    let program = root.join(PROGRAM.trim_start_matches('/'));
    let executable = |found: fs::Metadata| found.permissions().mode() & 0o111 != 0;
    if fs::symlink_metadata(program).is_ok_and(|found| !executable(found)) {
        wrong.push(format!("{PROGRAM} is not executable"));
    }
    for (link, target) in LINKS.iter().chain(VAR_LINKS) {
        let found = fs::read_link(root.join(link.trim_start_matches('/')));
        if !found.is_ok_and(|found| found == Path::new(target)) {
            wrong.push(format!("{link} is not a link to {target}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "it is not a container of a kubelet: {}",
        wrong.join("; ")
    );
    Ok(())
}

/// Whether a path of the container is a file, else it is a folder. A link is neither: the runtime would follow it.
fn is_file(root: &Path, path: &str) -> io::Result<bool> {
    let mut at = root.to_owned();
    let mut found = fs::symlink_metadata(&at)?;
    for part in Path::new(path).components() {
        if let Component::Normal(part) = part {
            at.push(part);
            found = fs::symlink_metadata(&at)?;
            if found.is_symlink() {
                return Err(io::Error::other(format!(
                    "{} is a link",
                    Path::new("/")
                        .join(at.strip_prefix(root).unwrap_or(&at))
                        .display()
                )));
            }
        }
    }
    Ok(found.is_file())
}
