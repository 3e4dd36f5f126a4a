//! The container images of the tests, made of Debian packages and of programs of the suite, under the names that the tests
//! use: an OCI layout, and one archive of it for `ctr images import`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use slipway::host::cache::Key;
use slipway::host::session::Session;
use slipway::layer::Entry;
use slipway::oci::{self, Blob, Image};

use crate::contents::{Base, Content, E2E_IMAGES, agnhost, content};
use crate::suite::Suite;
use crate::userland::Userland;

/// Their architecture, that of the host.
const ARCHITECTURE: &str = "amd64";
/// Version of this file's recipes, a part of the layout's key.
const VERSION: u32 = 5;

/// The layout's name in its step's folder.
const LAYOUT: &str = "layout";

/// The images of a suite.
#[derive(Clone, Debug)]
pub struct Images {
    /// Their names.
    pub names: Vec<String>,
    layout: PathBuf,
}

/// Makes all images that the suite names and that can be made here.
///
/// # Errors
/// If the suite does not name its images, a file is missing, or the layout cannot be written.
pub fn make(session: &Session, suite: &Suite, userland: &Userland) -> Result<Images> {
    let names = wanted(suite, userland)?;
    let mut key = Key::of_data("test images", VERSION)
        .key("userland", &userland.rootfs().key)
        .text("release", &suite.obtained.release);
    for (package, path) in &suite.obtained.programs {
        key = key.big_file(&session.cache, package, path)?;
    }
    let key = key.text("names", &names.join(" ")).finish();
    let step = session.progress.step("test images");
    let made = session.cache.step("test-images", &key, |folder| {
        let scratch = session.cache.scratch()?;
        let bases = bases(suite, userland, scratch.path())?;
        let images = names.iter().enumerate().map(|(number, name)| {
            let content = content(repository(name), suite, userland)?
                .with_context(|| format!("no recipe for {name}"))?;
            image(
                number,
                name,
                content,
                &bases,
                userland.epoch(),
                scratch.path(),
            )
            .with_context(|| format!("making {name}"))
        });
        let images = images.collect::<Result<Vec<_>>>()?;
        let layout = folder.join(LAYOUT);
        fs::create_dir(&layout)?;
        oci::write_layout(&layout, &images, userland.epoch())
    })?;
    step.done(made.hit, None);
    let layout = made.path.join(LAYOUT);
    Ok(Images { names, layout })
}

impl Images {
    /// The folder of their OCI layout.
    #[must_use]
    pub fn layout(&self) -> &Path {
        &self.layout
    }

    /// Writes them as one archive.
    ///
    /// # Errors
    /// If they cannot be read or the file cannot be written.
    pub fn export(&self, dest: &Path) -> Result<()> {
        oci::write_archive(&self.layout, dest)
    }
}

/// The names of the images that the tests of this release use and that we make.
fn wanted(suite: &Suite, userland: &Userland) -> Result<Vec<String>> {
    let sandbox = (userland.sandbox())
        .bind_read_only(suite.program(crate::suite::E2E)?, "/conformance/e2e.test");
    let list = sandbox
        .command("/conformance/e2e.test")
        .arg("--list-images");
    let list = String::from_utf8(list.run().context("asking the tests for their images")?)?;
    let names = known(&list);
    ensure!(
        !names.is_empty(),
        "the tests name no image that Slipway can make; they named:\n{list}"
    );
    Ok(names)
}

/// Those of a list of names that [`content`] makes.
fn known(list: &str) -> Vec<String> {
    const KNOWN: &[&str] = &[
        "agnhost",
        "busybox",
        "glibc-dns-testing",
        "kitten",
        "nautilus",
        "nginx",
        "nonewprivs",
        "nonroot",
        "sample-apiserver",
    ];
    let ours = |name: &&str| {
        let repository = repository(name);
        let test = repository.strip_prefix(E2E_IMAGES);
        test.is_some_and(|test| KNOWN.contains(&test))
            || ["registry.k8s.io/etcd", "registry.k8s.io/pause"].contains(&repository)
    };
    let mut names: Vec<String> = list
        .lines()
        .map(str::trim)
        .filter(ours)
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// A name without its tag.
fn repository(name: &str) -> &str {
    name.rsplit_once(':')
        .map_or(name, |(repository, _)| repository)
}

/// The layers that several images have.
fn bases(suite: &Suite, userland: &Userland, folder: &Path) -> Result<BTreeMap<Base, Blob>> {
    let packages = oci::layer_of_tar(&userland.rootfs().tar, &folder.join("packages.tar"))?;
    let applets: Vec<Entry> = (userland.missing())
        .map(|applet| Entry::symlink(format!("/usr/bin/{applet}"), "busybox"))
        .collect();
    let layer = |entries, name: &str| layer(entries, userland.epoch(), &folder.join(name));
    Ok(BTreeMap::from([
        (Base::Packages, packages),
        (Base::Applets, layer(applets, "applets.tar")?),
        (
            Base::Agnhost,
            layer(agnhost(suite, userland)?, "agnhost.tar")?,
        ),
    ]))
}

/// A layer of entries in any order.
fn layer(mut entries: Vec<Entry>, epoch: u64, dest: &Path) -> Result<Blob> {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    oci::layer(&entries, epoch, dest)
}

fn image(
    number: usize,
    name: &str,
    content: Content,
    bases: &BTreeMap<Base, Blob>,
    epoch: u64,
    folder: &Path,
) -> Result<Image> {
    let base = content.base.iter().map(|base| bases[base].clone());
    let mut layers: Vec<Blob> = base.collect();
    if !content.files.is_empty() {
        layers.push(layer(
            content.files,
            epoch,
            &folder.join(format!("{number}.tar")),
        )?);
    }
    Ok(Image {
        name: name.to_owned(),
        architecture: ARCHITECTURE.to_owned(),
        run: content.run,
        layers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_taken_from_the_list_of_the_tests() {
        let list = "gcr.io/authenticated-image-pulling/agnhost:2.6\nregistry.k8s.io/e2e-test-images/agnhost:2.63.0\n\
                    registry.k8s.io/e2e-test-images/agnhost:2.55\nregistry.k8s.io/e2e-test-images/volume/nfs:1.6.0\n\
                    registry.k8s.io/pause:3.10.2\ninvalid.registry.k8s.io/invalid/alpine:3.1\n\n\
                    registry.k8s.io/e2e-test-images/agnhost:2.55\n";
        assert_eq!(
            known(list),
            [
                "registry.k8s.io/e2e-test-images/agnhost:2.55",
                "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
                "registry.k8s.io/pause:3.10.2",
            ]
        );
    }
}
