//! The registry beside the tested nodes: Debian's docker-registry in their network, filled from an OCI layout as any client fills it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fetch::oci::{Descriptor, Document, Index};
use fetch::{Content, Repository, blocking};
use slipway::host::cache::Scratch;
use slipway::host::session::Session;

use crate::packages::Packages;

/// The recipe of its packages, beside this package's manifest.
const RECIPE: &str = "registry.toml";
/// Its port, which the recipe of the nodes names.
const PORT: u16 = 5000;
/// Path of its folder in the sandbox.
const PLACE: &str = "/registry";
/// Time in which it listens.
const STARTS: Duration = Duration::from_secs(30);
/// The annotation with an image's whole name.
const NAME: &str = "io.containerd.image.name";

/// The registry's packages, installed.
#[derive(Debug)]
pub struct Installed(Packages);

impl Installed {
    /// Installs them, unless the cache has them.
    ///
    /// # Errors
    /// If a package cannot be fetched or configured.
    pub fn obtain(session: &Session, folder: &Path) -> Result<Self> {
        Packages::obtain(session, folder, RECIPE).map(Self)
    }

    /// Starts the registry in the network of the calling thread, with which it ends, and gives it every image of an OCI layout.
    ///
    /// # Errors
    /// If it does not listen in time, with what it printed; or if it refuses a blob or a manifest.
    pub fn serve(&self, session: &Session, layout: &Path) -> Result<Registry> {
        let registry = self.start(session)?;
        registry.fill(session, layout)?;
        Ok(registry)
    }

    fn start(&self, session: &Session) -> Result<Registry> {
        let place = session.cache.scratch()?;
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {PLACE}/data\nhttp:\n  addr: :{PORT}\n"
        );
        fs::write(place.path().join("config.yml"), config)?;
        let log = place.path().join("log");
        let child = (self.0.sandbox())
            .network(true)
            .bind(place.path(), PLACE)
            .command("/usr/bin/docker-registry")
            .args(["serve", &format!("{PLACE}/config.yml")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .context("starting docker-registry")?;
        let mut registry = Registry {
            child,
            _place: place,
        };
        registry.wait(&log).context("starting docker-registry")?;
        Ok(registry)
    }
}

/// A running registry; it ends with this value.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    _place: Scratch,
}

impl Registry {
    fn wait(&mut self, log: &Path) -> Result<()> {
        let until = Instant::now() + STARTS;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", fs::read_to_string(log)?);
            }
            if Instant::now() > until {
                bail!("it does not listen at port {PORT}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Gives it every image, under its name without the registry's. The calling thread is in its network.
    fn fill(&self, session: &Session, layout: &Path) -> Result<()> {
        let client = blocking::Client::new(&session.fetch_options())?;
        let index = fs::read(layout.join("index.json")).context("reading the layout's index")?;
        let index: Index = serde_json::from_slice(&index).context("reading the layout's index")?;
        for image in &index.manifests {
            let name = image.annotations.get(NAME);
            let name = name.context("an image of the layout has no name")?;
            push(&client, layout, name, image)
                .with_context(|| format!("giving the registry {name}"))?;
        }
        Ok(())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It has ended already, or is killed; there is nothing to do about either.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn push(client: &blocking::Client, layout: &Path, name: &str, image: &Descriptor) -> Result<()> {
    let (repository, tag) = place(name).context("it is no name of a registry with a tag")?;
    let mut repository = Repository::new(&format!("127.0.0.1:{PORT}"), repository);
    let blob = |digest: &str| layout.join("blobs").join(digest.replace(':', "/"));
    let text = fs::read(blob(&image.digest))?;
    let Document::Manifest(manifest) = Document::read(&text)? else {
        bail!("it is an index of images");
    };
    client.run(async |client| {
        for part in manifest.layers.iter().chain([&manifest.config]) {
            let path = blob(&part.digest);
            let content = Content::File(&path, part.size);
            repository.push_blob(client, &part.digest, content).await?;
        }
        repository.push_manifest(client, tag, &text).await
    })?;
    Ok(())
}

/// The repository and the tag of an image's whole name.
fn place(name: &str) -> Option<(&str, &str)> {
    let (_, path) = name.split_once('/')?;
    path.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_place_in_the_registry() {
        assert_eq!(
            place("registry.k8s.io/e2e-test-images/agnhost:2.63"),
            Some(("e2e-test-images/agnhost", "2.63"))
        );
        assert_eq!(
            place("registry.k8s.io/pause:3.10.2"),
            Some(("pause", "3.10.2"))
        );
        assert_eq!(place("pause:3.10.2"), None);
        assert_eq!(place("registry.k8s.io/pause"), None);
    }

    #[test]
    fn the_nodes_ask_where_it_listens() {
        let recipe = include_str!("../nodes.toml");
        let address = namespace_tests::hub::Network::Near.gateway();
        assert!(recipe.contains(&format!("\"http://{address}:{PORT}\"")));
    }
}
