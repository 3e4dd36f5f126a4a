//! The build line: one function of named steps, from a recipe to the folder that holds its image.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::manifest::{self, CONTRACT, ImageId, Manifest};

use crate::INIT_PROGRAM;
use crate::artifact::{self, Inputs};
use crate::host::cache::{self, Cache, Key};
use crate::host::progress::Progress;
use crate::install::tools::{self, Tools};
use crate::install::{self, Rootfs};
use crate::layer::{Entry, Layer};
use crate::lock::kubelet::Program;
use crate::lock::{self, Lock, Mode};
use crate::publish::Output;
use crate::publish::sbom;
use crate::recipe::{
    self, Recipe, SET_ETCD, SET_KERNEL, SET_KUBELET, SET_ROOT, SET_TOOLS_BUILD, SET_TOOLS_RUN,
};
use crate::steps::bootable::{self, Bootable};
use crate::steps::initramfs::{self, Contents};
use crate::steps::root::{self, Root};
use crate::steps::{disk, kernel, kubelet};

/// What is asked of a build.
#[derive(Clone, Debug)]
pub struct Request {
    /// The recipe's file.
    pub recipe: PathBuf,
    /// Below which folder the image's folder is made.
    pub output: PathBuf,
    /// What may happen to the lock.
    pub lock: Mode,
}

/// A finished build.
#[derive(Debug)]
pub struct Built {
    /// The folder `<output>/<name>-<version>`.
    pub out: PathBuf,
    /// The recipe that was built.
    pub recipe: Recipe,
    /// Its lock.
    pub lock: Lock,
}

/// Builds a recipe. Nothing is done again whose inputs are unchanged.
///
/// # Errors
/// The recipe's mistakes (as [`recipe::Mistakes`]), or the step that failed.
pub fn build(request: &Request, progress: &Progress) -> Result<Built> {
    build_in(&Cache::open()?, request, progress)
}

/// [`build`] with a cache of the caller's choice.
///
/// # Errors
/// As there.
pub fn build_in(cache: &Cache, request: &Request, progress: &Progress) -> Result<Built> {
    let recipe = recipe::load(&request.recipe)?;
    let lock = lock::pin(&recipe, cache, progress, request.lock)?;
    let fetch = |set: &str| lock::fetch_set(&recipe, cache, &lock, set, progress);
    let tools = tools::install(cache, &fetch(SET_TOOLS_BUILD)?, "tools", progress)?;
    let rootfs = install::install(
        cache,
        &fetch(SET_ROOT)?,
        &rootfs_options(&recipe, &lock),
        progress,
    )?;
    let kernel = kernel::unpack(cache, &tools, &fetch(SET_KERNEL)?, progress)?;
    let kubelet = Kubelet::install(&recipe, cache, &lock, progress)?;
    let os_release = os_release(&recipe, &rootfs)?;
    let mut layers = vec![kernel.layer.clone(), own_files(cache, &os_release)?];
    layers.push(kubelet::node_layer(cache, &recipe, INIT_PROGRAM)?);
    if let Some(kubelet) = &kubelet {
        layers.extend(kubelet.layers.iter().cloned());
    }
    layers.push(Layer::from_recipe(cache, &recipe, &rootfs, &layers)?);
    let root = root::seal(
        cache,
        &tools,
        &rootfs,
        &layers,
        &recipe.root,
        lock.epoch,
        progress,
    )?;
    let manifest = manifest(&recipe, &lock, &kernel.release, kubelet.as_ref());
    let contents = Contents {
        init: INIT_PROGRAM,
        manifest: &manifest,
        base_config: recipe
            .ignition
            .as_ref()
            .map(|config| config.text.as_slice()),
        ca_bundle: None,
        platforms: &recipe.kernel.platforms,
        modules: &recipe.kernel.modules,
    };
    let initramfs = initramfs::pack(cache, &kernel, &contents, progress)?;
    let options = bootable::Options {
        cmdline: &cmdline(&recipe, &root),
        os_release: &os_release,
        architecture: recipe.image.architecture,
    };
    let bootable = bootable::link(cache, &tools, &kernel, &initramfs, &options, progress)?;
    let product = Product {
        recipe: &recipe,
        lock: &lock,
        tools: &tools,
        root: &root,
        bootable: &bootable,
        manifest: &manifest,
        kubelet: kubelet.as_ref(),
    };
    let out = product.publish(&request.output, progress)?;
    cache.settle()?;
    Ok(Built { out, recipe, lock })
}

/// The tools tree with QEMU, for what runs a built image.
///
/// # Errors
/// If its packages cannot be fetched or unpacked.
pub fn tools_run(built: &Built, progress: &Progress) -> Result<Tools> {
    let cache = Cache::open()?;
    let debs = lock::fetch_set(&built.recipe, &cache, &built.lock, SET_TOOLS_RUN, progress)?;
    tools::install(&cache, &debs, "tools-run", progress)
}

/// The kubelet, with what it brings to the root.
struct Kubelet {
    program: Program,
    /// Its container, and the images of the static pods.
    layers: Vec<Layer>,
    /// Its container as an OCI layout.
    layout: PathBuf,
}

impl Kubelet {
    fn install(
        recipe: &Recipe,
        cache: &Cache,
        lock: &Lock,
        progress: &Progress,
    ) -> Result<Option<Self>> {
        let Some(locked) = &lock.kubelet else {
            return Ok(None);
        };
        let fetch = |set: &str| lock::fetch_set(recipe, cache, lock, set, progress);
        let program = lock::kubelet::obtain(recipe, cache, lock, locked, progress)?;
        let options = install::Options {
            purpose: install::Purpose::Container,
            ..rootfs_options(recipe, lock)
        };
        let rootfs = install::install(cache, &fetch(SET_KUBELET)?, &options, progress)?;
        let mut layers = vec![kubelet::container_layer(&rootfs, &program)?];
        if lock.sets.contains_key(SET_ETCD) {
            layers.push(kubelet::containers_layer(
                cache,
                recipe,
                &fetch(SET_ETCD)?,
                lock.epoch,
                progress,
            )?);
        }
        let architecture = recipe.image.architecture.debian();
        let layout =
            kubelet::container_image(cache, &rootfs, &program, architecture, lock.epoch, progress)?;
        Ok(Some(Self {
            program,
            layers,
            layout,
        }))
    }
}

fn rootfs_options(recipe: &Recipe, lock: &Lock) -> install::Options {
    install::Options {
        epoch: lock.epoch,
        docs: recipe.debian.docs,
        locales: recipe.debian.locales.clone(),
        package_manager: recipe.debian.package_manager,
        ..install::Options::default()
    }
}

/// Debian's `os-release` with the image's name and version, by which systemd-boot orders its entries.
fn os_release(recipe: &Recipe, rootfs: &Rootfs) -> Result<String> {
    let text =
        String::from_utf8(rootfs.read("/usr/lib/os-release")?).context("reading os-release")?;
    let ImageId { name, version } = image_id(recipe);
    Ok(format!(
        "{}\nIMAGE_ID={name}\nIMAGE_VERSION=\"{version}\"\n",
        text.trim_end()
    ))
}

/// The files of the root that are Slipway's own.
fn own_files(cache: &Cache, os_release: &str) -> Result<Layer> {
    let entries = vec![Entry::file("/usr/lib/os-release", 0o644, os_release)];
    Layer::new(cache, entries)
}

fn image_id(recipe: &Recipe) -> ImageId {
    ImageId {
        name: recipe.image.name.clone(),
        version: recipe.image.version.clone(),
    }
}

fn manifest(recipe: &Recipe, lock: &Lock, release: &str, kubelet: Option<&Kubelet>) -> Manifest {
    Manifest {
        contract: CONTRACT,
        image: image_id(recipe),
        architecture: recipe.image.architecture,
        kernel: release.to_owned(),
        epoch: lock.epoch,
        sizes: recipe.sizes,
        kubernetes: kubelet.map(|kubelet| manifest::Kubernetes {
            version: kubelet.program.version.clone(),
            kubelet_sha256: kubelet.program.sha256.clone(),
        }),
        platforms: recipe
            .kernel
            .platforms
            .iter()
            .map(|platform| platform.machine())
            .collect(),
        node: recipe.node.clone(),
    }
}

fn cmdline(recipe: &Recipe, root: &Root) -> Vec<String> {
    let own = image::cmdline::Cmdline {
        roothash: Some(root.hash),
        ..Default::default()
    };
    [own.to_words(), recipe.kernel.cmdline.clone()].concat()
}

/// Everything that the files of the output folder are made of.
struct Product<'a> {
    recipe: &'a Recipe,
    lock: &'a Lock,
    tools: &'a Tools,
    root: &'a Root,
    bootable: &'a Bootable,
    manifest: &'a Manifest,
    kubelet: Option<&'a Kubelet>,
}

impl Product<'_> {
    fn key(&self) -> Key {
        let artifacts: Vec<&str> = self
            .recipe
            .artifacts
            .iter()
            .map(|kind| kind.name())
            .collect();
        Key::of("output", 1)
            .text("slipway", env!("CARGO_PKG_VERSION"))
            .key("root", &self.root.key)
            .key("bootable", &self.bootable.key)
            .key("tools", &self.tools.key)
            .text("manifest", &self.manifest.to_text())
            .text("artifacts", &artifacts.join(" "))
            .text("lock", &self.lock.recipe_digest)
            .finish()
    }

    fn publish(&self, output: &Path, progress: &Progress) -> Result<PathBuf> {
        let ImageId { name, version } = &self.manifest.image;
        let out = output.join(format!("{name}-{version}"));
        let (folder, key) = (Output::take(&out)?, self.key());
        if folder.holds(&key) {
            progress.step("output").hit(None);
        } else {
            folder.replace(&key, progress, |fresh| self.write(fresh, progress))?;
        }
        Ok(out)
    }

    /// The bill of materials: every package in the image, and the kubelet.
    fn bill(&self) -> Result<String> {
        let suite = &self.recipe.debian.suite;
        let components = [SET_ROOT, SET_KERNEL, SET_KUBELET, SET_ETCD]
            .into_iter()
            .flat_map(|set| {
                let packages = self.lock.sets.get(set).into_iter().flatten();
                packages.map(move |package| sbom::Component::package(package, set, suite))
            });
        let kubelet = self.kubelet.map(|kubelet| {
            let Program {
                version, sha256, ..
            } = &kubelet.program;
            let purl = format!("pkg:golang/k8s.io/kubernetes@{version}#cmd/kubelet");
            sbom::Component::program("kubelet", version, &purl, sha256)
        });
        let components = components.chain(kubelet);
        sbom::text(&self.manifest.image, self.lock.epoch, components)
    }

    /// Writes the folder's files; gives the hash of the largest, which is taken while the others are made of it
    /// and all of them go to the disk.
    fn write(&self, fresh: &Path, progress: &Progress) -> Result<Vec<(String, String)>> {
        let recipe = self.recipe;
        let bill = self.bill()?;
        let options = disk::Options {
            image: &self.manifest.image,
            architecture: recipe.image.architecture,
            sizes: &recipe.sizes,
            epoch: self.lock.epoch,
            sbom: &bill,
            whole: artifact::whole(&recipe.artifacts),
        };
        let path = fresh.join(artifact::DISK);
        let disk = disk::write(
            &path,
            self.bootable,
            self.root,
            self.tools,
            &options,
            progress,
        )?;
        let inputs = Inputs {
            image: &self.manifest.image,
            architecture: recipe.image.architecture,
            disk: &disk,
            bootable: self.bootable,
            root: self.root,
            sizes: &recipe.sizes,
            epoch: self.lock.epoch,
        };
        let hash = std::thread::scope(|scope| -> Result<String> {
            let hash = scope.spawn(|| artifact::sha256(&path));
            for kind in &recipe.artifacts {
                artifact::write(*kind, &inputs, self.tools, fresh, progress)?;
            }
            self.write_others(fresh, &bill)?;
            // The disk takes what was written while the processor hashes.
            cache::sync(fresh)?;
            hash.join()
                .unwrap_or_else(|_| anyhow::bail!("hashing the disk"))
        })?;
        Ok(vec![(artifact::DISK.to_owned(), hash)])
    }

    /// The files beside the disk and its artifacts.
    fn write_others(&self, fresh: &Path, bill: &str) -> Result<()> {
        let about = || format!("writing {}", fresh.display());
        let uki = fresh.join(format!("{}.efi", self.recipe.image.name));
        fs::copy(&self.bootable.uki, uki).with_context(about)?;
        if let Some(kubelet) = self.kubelet {
            copy_folder(&kubelet.layout, &fresh.join("kubelet.oci")).with_context(about)?;
        }
        fs::write(fresh.join("manifest.json"), self.manifest.to_text()).with_context(about)?;
        fs::write(fresh.join("sbom.cdx.json"), bill).with_context(about)
    }
}

/// Copies plain files and folders.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
