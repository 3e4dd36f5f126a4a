//! Image: the inputs of all files in the output folder.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use image::manifest::ImageId;

use super::{removed, sbom};
use crate::artifact::{self, Inputs};
use crate::code;
use crate::host::cache::Key;
use crate::host::tree;
use crate::install::Report;
use crate::install::tools::Tools;
use crate::lock::LockedRecipe;
use crate::steps::bootable::Bootable;
use crate::steps::disk::{Disk, Parts};
use crate::steps::identity::Identity;
use crate::steps::kubelet::Kubelet;
use crate::steps::root::Root;

/// What the programs of `[[build.run]]` changed.
const CHANGES: &str = "changes.json";

/// A built image, before it is written as a disk.
#[derive(Debug)]
pub struct Image {
    /// The recipe with its lock.
    pub locked: LockedRecipe,
    /// The programs for writing it.
    pub tools: Tools,
    /// The root.
    pub root: Root,
    /// Kernel, initramfs and command line.
    pub bootable: Bootable,
    /// Its `os-release` and manifest.
    pub identity: Identity,
    /// Its kubelet.
    pub kubelet: Kubelet,
    /// Its bill of materials.
    pub sbom: String,
    /// What it lacks of its packages.
    pub removed: Report,
}

impl Image {
    /// Name of its output folder: `<name>-<version>`.
    #[must_use]
    pub fn folder(&self) -> String {
        let ImageId { name, version } = &self.identity.manifest.image;
        format!("{name}-{version}")
    }

    /// Hash of all inputs of its files.
    ///
    /// # Errors
    /// If the recipe cannot be serialised.
    pub fn key(&self) -> Result<Key> {
        let key = Key::of("output", code::OUTPUT)
            .text("slipway", env!("CARGO_PKG_VERSION"))
            .key("root", &self.root.key)
            .key("bootable", &self.bootable.key)
            .key("tools", &self.tools.key)
            .text("manifest", &self.identity.manifest.to_text())
            .value("recipe", &self.locked.recipe)?
            .text("lock", &self.locked.lock.recipe_digest)
            .code("disk", code::DISK)
            .text("sbom", &self.sbom)
            .text(
                "removed",
                &removed::text(&self.removed, &self.kubelet.reports),
            )
            .text("epoch", &self.locked.lock.epoch.to_string())
            .finish();
        Ok(key)
    }

    /// The artifacts that the recipe asks for.
    #[must_use]
    pub fn artifacts(&self) -> &[artifact::Kind] {
        &self.locked.recipe.artifacts
    }

    /// The inputs of its disk.
    #[must_use]
    pub fn parts(&self) -> Parts<'_> {
        let recipe = &self.locked.recipe;
        Parts {
            tools: &self.tools,
            bootable: &self.bootable,
            root: &self.root,
            image: &self.identity.manifest.image,
            architecture: recipe.image.architecture,
            sizes: &recipe.sizes,
            sector: recipe.sector,
            epoch: self.locked.lock.epoch,
            sbom: &self.sbom,
            size_multiple: artifact::size_multiple(&recipe.artifacts),
        }
    }

    /// The inputs of its artifacts.
    #[must_use]
    pub fn inputs<'a>(&'a self, disk: &'a Disk) -> Inputs<'a> {
        let recipe = &self.locked.recipe;
        Inputs {
            tools: &self.tools.root,
            image: &self.identity.manifest.image,
            architecture: recipe.image.architecture,
            disk: &disk.path,
            disk_size: disk.size,
            vmlinuz: &self.bootable.vmlinuz,
            initrd: &self.bootable.initrd,
            cmdline: &self.bootable.cmdline,
            erofs: &self.root.erofs,
            verity: &self.root.verity,
            sizes: &recipe.sizes,
            epoch: self.locked.lock.epoch,
        }
    }

    /// Writes the files beside the disk and its artifacts.
    pub(super) fn write_files(&self, folder: &Path) -> Result<()> {
        let about = || format!("writing {}", folder.display());
        let uki = folder.join(format!("{}.efi", self.locked.recipe.image.name));
        fs::copy(&self.bootable.uki, uki).with_context(about)?;
        if let Some(layout) = &self.kubelet.layout {
            copy_folder(layout, &folder.join("kubelet.oci")).with_context(about)?;
        }
        let manifest = self.identity.manifest.to_text();
        fs::write(folder.join("manifest.json"), manifest).with_context(about)?;
        let removed = removed::text(&self.removed, &self.kubelet.reports);
        fs::write(folder.join(removed::FILE), removed).with_context(about)?;
        if !self.root.changes.is_empty() {
            let text = serde_json::to_string_pretty(&self.root.changes)? + "\n";
            fs::write(folder.join(CHANGES), text).with_context(about)?;
        }
        fs::write(folder.join(sbom::FILE), &self.sbom).with_context(about)
    }
}

/// Copies plain files and folders.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for item in tree::walk(from)? {
        let to = to.join(&item.inside[1..]);
        if item.meta.is_dir() {
            fs::create_dir(to)?;
        } else {
            fs::copy(item.path, to)?;
        }
    }
    Ok(())
}
