//! The minor release of etcd that a volume's data needs: an older program refuses it, so that a slot with such a one must not start.
//!
//! A member of 3.6 raises the version of a cluster whose members are all of 3.6, a single one at once, and etcd 3.5 ends with such
//! data in a loop. The backend is a bbolt file (<https://github.com/etcd-io/bbolt>, `internal/common`: `meta.go`, `page.go`,
//! `bucket.go`), which may have gigabytes: only the pages on the way to a key are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use image::kubelet::{ETCD_IMAGE, ETCD_POD, STATIC_PODS};

/// The backend in etcd's data folder.
pub const BACKEND: &str = "member/snap/db";

/// Where etcd writes versions: the bucket, and the key in it (etcd's `server/storage/schema`). The second is there from 3.6 on.
const PLACES: [(&str, &str); 2] = [("cluster", "clusterVersion"), ("meta", "storageVersion")];

/// `meta.magic` and `meta.version`.
const MAGIC: [u8; 8] = [0xED, 0xDA, 0x0C, 0xED, 2, 0, 0, 0];
/// Bytes of a page's header, and of an element of a branch or a leaf.
const HEADER: usize = 16;
/// Flags of a page.
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// The largest page that is read, with those that it overflows to.
const LARGEST: u64 = 64 << 20;
/// More levels than a file of any size has.
const LEVELS: usize = 64;

/// A release of etcd up to its minor: `3.6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(u32, u32);

impl std::fmt::Display for Minor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Minor {
    /// The minor of a version as `3.6.8-0` or `3.6.0`.
    #[must_use]
    pub fn parse(version: &str) -> Option<Self> {
        let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
        Some(Self(
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
        ))
    }

    /// The minor of an image by its tag, as `slipway.local/etcd:3.5.16-0`; none if the tag is not a version.
    #[must_use]
    pub fn of_image(reference: &str) -> Option<Self> {
        let name = reference.split('@').next().unwrap_or_default();
        Self::parse(name.rsplit('/').next()?.split_once(':')?.1)
    }
}

/// Why the etcd of an image must not start with the data in `folder`; none if it may, or if another image's is what the node runs:
/// the static pod below `root` is of the boot before.
#[must_use]
pub fn refusal(root: &Path, folder: &Path, image: Option<&str>) -> Option<String> {
    let image = image?;
    let program = Minor::of_image(image)?;
    let needed = match needed(folder) {
        Ok(needed) => needed?,
        // etcd itself says what is wrong with it.
        Err(error) => {
            tracing::warn!("the release of etcd's data is not known: {error:#}");
            return None;
        }
    };
    if needed <= program {
        return None;
    }
    let pod = Path::new(STATIC_PODS).join(ETCD_POD);
    let pod = root.join(pod.strip_prefix("/").unwrap_or(&pod));
    let pod = std::fs::read_to_string(pod).unwrap_or_default();
    let name = image.split('@').next().unwrap_or(image);
    let repository = name.rsplit_once(':').map_or(name, |(name, _)| name);
    if !pod.is_empty() && !pod.contains(&format!("{repository}:")) && !pod.contains(ETCD_IMAGE) {
        return None;
    }
    Some(format!(
        "the data is of etcd {needed}, this image has {image}; expected an image with etcd {needed} or later: boot that slot, or update"
    ))
}

/// The release that etcd's data in `folder` needs; none where there is no data, or none that says so yet.
///
/// # Errors
/// If the backend cannot be read.
pub fn needed(folder: &Path) -> Result<Option<Minor>> {
    let path = folder.join(BACKEND);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let about = || format!("reading {}", path.display());
    let backend = Backend::open(file).with_context(about)?;
    let mut needed = None;
    for (bucket, key) in PLACES {
        let value = backend.value(bucket, key).with_context(about)?;
        let text = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        needed = needed.max(text.and_then(|text| Minor::parse(&text)));
    }
    Ok(needed)
}

/// A bbolt file.
struct Backend {
    file: File,
    page_size: u64,
    /// The page of the root bucket.
    root: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().context("a page is cut off")
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<usize> {
    Ok(usize::try_from(u32::from_le_bytes(number(bytes, at)?))?)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

impl Backend {
    /// Reads both meta pages: of the valid ones that of the later transaction counts.
    fn open(file: File) -> Result<Self> {
        let mut best: Option<(u64, u64, u64)> = None;
        // The second is behind the first, whose page may be of any power of two.
        for at in std::iter::once(0).chain((9..=16).map(|power| 1_u64 << power)) {
            let mut bytes = [0; HEADER + 64];
            if file.read_exact_at(&mut bytes, at).is_err() {
                break;
            }
            let meta = &bytes[HEADER..];
            let page_size = u64::from(u32::from_le_bytes(number(meta, 8)?));
            let sum = u64_at(meta, 56)?;
            if meta[..8] != MAGIC || checksum(&meta[..56]) != sum || ![0, page_size].contains(&at) {
                continue;
            }
            let (root, transaction) = (u64_at(meta, 16)?, u64_at(meta, 48)?);
            if best.is_none_or(|(known, ..)| known < transaction) {
                best = Some((transaction, page_size, root));
            }
        }
        let (_, page_size, root) =
            best.context("it is not a bbolt file, or both meta pages are damaged")?;
        Ok(Self {
            file,
            page_size,
            root,
        })
    }

    fn page(&self, id: u64) -> Result<Vec<u8>> {
        let at = id.checked_mul(self.page_size).context("a page's number")?;
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, at)?;
        let pages = u64::from(u32::from_le_bytes(number(&header, 12)?)) + 1;
        let size = pages.saturating_mul(self.page_size);
        ensure!(size <= LARGEST, "page {id} has {size} bytes");
        let mut bytes = vec![0; usize::try_from(size)?];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// The value of a key in a bucket of the top.
    fn value(&self, bucket: &str, key: &str) -> Result<Option<Vec<u8>>> {
        let Some(header) = self.find(self.page(self.root)?, bucket.as_bytes())? else {
            return Ok(None);
        };
        // A bucket is its root page, or that page itself behind the header if it is small.
        let top = match u64_at(&header, 0)? {
            0 => header.get(HEADER..).unwrap_or_default().to_vec(),
            root => self.page(root)?,
        };
        self.find(top, key.as_bytes())
    }

    /// The value of a key below a page.
    fn find(&self, mut page: Vec<u8>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for _ in 0..LEVELS {
            let bytes = &page;
            let (flags, count) = (u16_at(bytes, 8)?, usize::from(u16_at(bytes, 10)?));
            let mut below = None;
            for index in 0..count {
                let element = HEADER + index * HEADER;
                let (pos, size) = match flags {
                    BRANCH => (u32_at(bytes, element)?, u32_at(bytes, element + 4)?),
                    LEAF => (u32_at(bytes, element + 4)?, u32_at(bytes, element + 8)?),
                    _ => bail!("a page has the flags {flags:#x}"),
                };
                let from = element + pos;
                let found = bytes.get(from..from + size).context("a key is cut off")?;
                if flags == LEAF && found == key {
                    let length = u32_at(bytes, element + 12)?;
                    let value = bytes.get(from + size..from + size + length);
                    return Ok(Some(value.context("a value is cut off")?.to_vec()));
                }
                // A branch's key is the first one of its page; what is before all is in the first page.
                if flags == BRANCH && (index == 0 || found <= key) {
                    below = Some(u64_at(bytes, element + 8)?);
                }
            }
            match below {
                Some(id) => page = self.page(id)?,
                None => return Ok(None),
            }
        }
        bail!("its pages are a circle")
    }
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests;
