//! Identity: the image's `os-release` and manifest.

use anyhow::{Context as _, Result};
use image::manifest::{CONTRACT, ImageId, Kubernetes, Manifest};

use super::kernel::Kernel;
use super::kubelet::Kubelet;
use crate::install::Rootfs;
use crate::lock::LockedRecipe;
use crate::recipe::Recipe;

/// The image's `os-release` and manifest.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Text of its `os-release`.
    pub os_release: String,
    /// The manifest that goes into the initramfs.
    pub manifest: Manifest,
}

/// Writes os-release and manifest of an image.
///
/// # Errors
/// If the root has no `os-release`, or it is not UTF-8.
pub fn describe(
    locked: &LockedRecipe,
    rootfs: &Rootfs,
    kernel: &Kernel,
    kubelet: &Kubelet,
) -> Result<Identity> {
    Ok(Identity {
        os_release: os_release(&locked.recipe, rootfs)?,
        manifest: manifest(locked, kernel, kubelet),
    })
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

fn manifest(locked: &LockedRecipe, kernel: &Kernel, kubelet: &Kubelet) -> Manifest {
    let recipe = &locked.recipe;
    Manifest {
        contract: CONTRACT,
        image: image_id(recipe),
        architecture: recipe.image.architecture,
        kernel: kernel.release.clone(),
        epoch: locked.lock.epoch,
        sizes: recipe.sizes,
        kubernetes: kubelet.program().map(|program| Kubernetes {
            version: program.version.clone(),
            kubelet_sha256: program.sha256.clone(),
            images: kubelet.images.clone(),
        }),
        platforms: recipe
            .kernel
            .platforms
            .iter()
            .map(|platform| platform.id())
            .collect(),
        node: recipe.node.clone(),
    }
}

fn image_id(recipe: &Recipe) -> ImageId {
    ImageId {
        name: recipe.image.name.clone(),
        version: recipe.image.version.clone(),
    }
}
