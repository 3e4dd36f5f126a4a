//! Reads the initramfs of a unified kernel image: its archives unpacked, and the image's manifest among their entries.

use std::io::Read as _;

use anyhow::{Context, Error, Result};
use image::manifest::Manifest;
use image::paths::INITRD_MANIFEST;

use super::cpio::{self, Entry};

/// Size limit of an unpacked initramfs in bytes; a larger one is damaged.
const LIMIT: u64 = 512 << 20;

/// Unpacks the section `.initrd` of a UKI, without the microcode in front: the result is for [`cpio::read`]. It ends after 512 MiB,
/// where the archive of a damaged one is cut off.
///
/// # Errors
/// If the archive of the microcode ends early, or the rest is not Zstandard.
pub fn unpack(initrd: &[u8]) -> Result<Vec<u8>> {
    let compressed =
        cpio::behind(initrd).context("reading the microcode in front of the initramfs")?;
    let mut archive = Vec::new();
    zstd::stream::read::Decoder::new(compressed)
        .context("unpacking the initramfs")?
        .take(LIMIT)
        .read_to_end(&mut archive)
        .context("unpacking the initramfs")?;
    Ok(archive)
}

/// The image's manifest among the entries of an initramfs; of several the last one, which is left when the kernel has unpacked all.
/// `None` if there is none.
///
/// # Errors
/// If it is not UTF-8, of an unknown contract version, or does not parse.
pub fn manifest(entries: &[Entry<'_>]) -> Result<Option<Manifest>> {
    let is_manifest = |entry: &&Entry<'_>| INITRD_MANIFEST.strip_prefix('/') == Some(entry.name);
    let Some(found) = entries.iter().rfind(is_manifest) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(found.content).context("reading the manifest")?;
    Ok(Some(Manifest::parse(text).map_err(Error::msg)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use image::layout::{Architecture, Sizes};
    use image::manifest::{CONTRACT, ImageId, Kubernetes};
    use image::node::NodeSettings;

    use super::*;

    /// A manifest of an image with a kubelet that brings this image of etcd.
    pub(crate) fn sample(etcd: &str) -> Manifest {
        Manifest {
            contract: CONTRACT,
            image: ImageId {
                name: "a".to_owned(),
                version: "1".to_owned(),
            },
            architecture: Architecture::X86_64,
            kernel: "6.12".to_owned(),
            epoch: 1,
            sizes: Sizes::default(),
            kubernetes: Some(Kubernetes {
                version: "v1.36.3".to_owned(),
                kubelet_sha256: String::new(),
                images: BTreeMap::from([("etcd".to_owned(), etcd.to_owned())]),
            }),
            platforms: Vec::new(),
            node: NodeSettings::default(),
        }
    }

    /// An initramfs with a manifest alone, as in a UKI.
    pub(crate) fn with_manifest(text: &str) -> Vec<u8> {
        let mut archive = cpio::Archive::new();
        archive
            .file(INITRD_MANIFEST, 0o644, text.as_bytes())
            .unwrap();
        let archive = archive.finish().unwrap();
        zstd::stream::encode_all(&archive[..], 1).unwrap()
    }

    fn read(initrd: &[u8]) -> Result<Option<Manifest>> {
        manifest(&cpio::read(&unpack(initrd)?)?)
    }

    #[test]
    fn the_manifest_is_found_behind_microcode_and_of_several_the_last_counts() {
        let (one, two) = (sample("etcd:1"), sample("etcd:2"));
        let mut microcode = cpio::Archive::new();
        microcode.file("/kernel/x", 0o644, b"x").unwrap();
        let mut initrd = microcode.finish_for_another().unwrap();
        initrd.extend(with_manifest(&one.to_text()));
        assert_eq!(read(&initrd).unwrap(), Some(one));
        initrd.extend(with_manifest(&two.to_text()));
        assert_eq!(read(&initrd).unwrap(), Some(two));
    }

    #[test]
    fn an_initramfs_may_have_no_manifest_and_a_damaged_one_is_an_error() {
        let mut archive = cpio::Archive::new();
        archive.file("/init", 0o755, b"x").unwrap();
        let archive = archive.finish().unwrap();
        let initrd = zstd::stream::encode_all(&archive[..], 1).unwrap();
        assert_eq!(read(&initrd).unwrap(), None);
        for (initrd, expected) in [
            (with_manifest("{}"), "the manifest does not parse"),
            (
                with_manifest(r#"{"contract": 999}"#),
                "contract version 999",
            ),
            (b"(not compressed)".to_vec(), "unpacking the initramfs"),
        ] {
            let error = format!("{:#}", read(&initrd).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
