//! Artifact: the forms in which an image leaves the house, and the list of their hashes.

pub mod aws;
pub mod gce;
pub mod gzip;
pub mod pxe;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use image::layout::{Architecture, GIB, MIB, Sizes};
use image::manifest::ImageId;
use sha2::{Digest, Sha256};

use crate::format::sparse;
use crate::host::cache::hex;
use crate::host::progress::Progress;
use crate::install::tools::Tools;
use crate::recipe::ArtifactKind;
use crate::steps::bootable::Bootable;
use crate::steps::disk::Disk;
use crate::steps::root::Root;

/// The raw disk in the output folder.
pub const DISK: &str = "disk.raw";
/// The disk in QEMU's format.
pub const QCOW2: &str = "disk.qcow2";
/// The archive for Google Compute Engine.
pub const GCE: &str = "gce.tar.gz";
/// The request that registers [`DISK`] at AWS.
pub const AWS: &str = "aws-register-image.json";
/// The list of hashes, as `sha256sum --check` reads it.
pub const SUMS: &str = "SHA256SUMS";
/// What [`SUMS`] leaves out: it holds times.
pub const REPORT: &str = "build-report.json";
/// Where the output folder is inside qemu-img's namespace.
const INSIDE: &str = "/work";

/// What artifacts are made of.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Name and version of the image.
    pub image: &'a ImageId,
    /// What machines it is for.
    pub architecture: Architecture,
    /// The raw disk.
    pub disk: &'a Disk,
    /// Kernel, initramfs and command line.
    pub bootable: &'a Bootable,
    /// The root.
    pub root: &'a Root,
    /// Sizes of a node's partitions.
    pub sizes: &'a Sizes,
    /// Times inside archives, seconds since 1970.
    pub epoch: u64,
}

/// What the raw disk's size must be a multiple of, in bytes, so that all these artifacts can be made of it.
#[must_use]
pub fn whole(kinds: &[ArtifactKind]) -> u64 {
    let clouds = [ArtifactKind::Aws, ArtifactKind::Gce];
    if kinds.iter().any(|kind| clouds.contains(kind)) {
        GIB
    } else {
        MIB
    }
}

/// Writes one artifact into the folder `output`. Gives its files, relative to that.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    kind: ArtifactKind,
    inputs: &Inputs,
    tools: &Tools,
    output: &Path,
    progress: &Progress,
) -> Result<Vec<PathBuf>> {
    let step = progress.step(kind.name());
    let naming = || format!("making the artifact {}", kind.name());
    let files = match kind {
        ArtifactKind::Qcow2 => qcow2(inputs.disk, tools, output).with_context(naming)?,
        ArtifactKind::Gce => {
            gce::write(&inputs.disk.path, &output.join(GCE), inputs.epoch).with_context(naming)?;
            vec![PathBuf::from(GCE)]
        }
        ArtifactKind::Aws => {
            let Inputs {
                image,
                architecture,
                disk,
                sizes,
                ..
            } = *inputs;
            let text = aws::request(image, architecture, disk.size, sizes).with_context(naming)?;
            fs::write(output.join(AWS), text).with_context(naming)?;
            vec![PathBuf::from(AWS)]
        }
        ArtifactKind::Pxe => {
            pxe::write(inputs.bootable, inputs.root, output).with_context(naming)?
        }
    };
    let bytes = files
        .iter()
        .map(|file| fs::metadata(output.join(file)).map_or(0, |meta| meta.len()))
        .sum();
    step.made(Some(bytes));
    Ok(files)
}

fn qcow2(disk: &Disk, tools: &Tools, output: &Path) -> Result<Vec<PathBuf>> {
    let folder = disk.path.parent().context("a disk lies in a folder")?;
    let name = disk
        .path
        .file_name()
        .and_then(|name| name.to_str())
        .context("a disk has a name")?;
    // Refcounts and tables of the third version; nothing in the file depends on the clock or on names.
    tools
        .sandbox()
        .bind_read_only(folder, "/disk")
        .bind(output, INSIDE)
        .command("/usr/bin/qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2", "-o", "compat=1.1"])
        .args([format!("/disk/{name}"), format!("{INSIDE}/{QCOW2}")])
        .run()?;
    Ok(vec![PathBuf::from(QCOW2)])
}

/// Hashes every file below `output`, on all cores, but those that are `known` by path, and writes the list beside
/// them. Gives its lines as (path, hash).
///
/// # Errors
/// When a file cannot be read or the list not written.
pub fn sums(
    output: &Path,
    known: Vec<(String, String)>,
    progress: &Progress,
) -> Result<Vec<(String, String)>> {
    let step = progress.step("hashes");
    let mut files = Vec::new();
    list(output, "", &mut files)?;
    files.retain(|(name, _)| known.iter().all(|(known, _)| known != name));
    // The largest first: nobody then waits for one that was begun last.
    let mut order: Vec<&(String, u64)> = files.iter().collect();
    order.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    step.total(files.iter().map(|(_, size)| size).sum());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((name, size)) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hash = sha256(&output.join(name));
                    step.advance(*size);
                    if let Ok(mut done) = done.lock() {
                        done.push((name.clone(), hash));
                    }
                }
            });
        }
    });
    let mut out = known;
    for (name, hash) in done.into_inner().unwrap_or_default() {
        out.push((name, hash?));
    }
    out.sort();
    let text: String = out
        .iter()
        .map(|(name, hash)| format!("{hash}  {name}\n"))
        .collect();
    fs::write(output.join(SUMS), text).with_context(|| format!("writing {SUMS}"))?;
    step.made(None);
    Ok(out)
}

/// Files below a folder with their sizes, by path; the list itself and the report are not among them.
fn list(folder: &Path, prefix: &str, out: &mut Vec<(String, u64)>) -> Result<()> {
    let naming = || format!("reading {}", folder.display());
    for entry in fs::read_dir(folder).with_context(naming)? {
        let entry = entry.with_context(naming)?;
        let name = entry.file_name();
        let name = format!("{prefix}{}", name.to_string_lossy());
        let kind = entry.file_type().with_context(naming)?;
        if kind.is_dir() {
            list(&entry.path(), &format!("{name}/"), out)?;
        } else if kind.is_file() && name != SUMS && name != REPORT {
            out.push((name, entry.metadata().with_context(naming)?.len()));
        }
    }
    Ok(())
}

/// SHA-256 of a file in hexadecimal digits. Holes are hashed, not read.
///
/// # Errors
/// When the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let naming = || format!("hashing {}", path.display());
    let file = File::open(path).with_context(naming)?;
    let size = file.metadata().with_context(naming)?.len();
    let mut hash = Sha256::new();
    let mut at = 0;
    for (start, length) in sparse::data(&file).with_context(naming)? {
        skip(&mut hash, at, start);
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        std::io::Seek::seek(&mut reader, std::io::SeekFrom::Start(start)).with_context(naming)?;
        let mut reader = std::io::Read::take(reader, length);
        loop {
            let read = reader.fill_buf().with_context(naming)?;
            if read.is_empty() {
                break;
            }
            hash.update(read);
            let count = read.len();
            reader.consume(count);
        }
        at = start + length;
    }
    skip(&mut hash, at, size);
    Ok(hex(&hash.finalize()))
}

/// Hashes the zeros of a hole.
fn skip(hash: &mut Sha256, from: u64, to: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut left = to.saturating_sub(from);
    while left > 0 {
        let part = left.min(ZEROS.len() as u64);
        hash.update(&ZEROS[..usize::try_from(part).unwrap_or(ZEROS.len())]);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::progress::Kind;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_hash_as_the_zeros_that_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len((5 << 20) + 17).unwrap();
        file.write_all_at(b"one", 4096).unwrap();
        file.write_all_at(b"two", 3 << 20).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(sha256(&path).unwrap(), hex(&Sha256::digest(&whole)));
    }

    #[test]
    fn the_list_holds_every_file_but_itself_and_the_report() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pxe")).unwrap();
        for name in ["b", "a", "pxe/root", SUMS, REPORT] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let known = vec![("b".to_owned(), hex(&Sha256::digest(b"b")))];
        sums(folder.path(), known, &Progress::new(Kind::Quiet)).unwrap();
        let text = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        let names: Vec<&str> = text.lines().map(|line| &line[66..]).collect();
        assert_eq!(names, ["a", "b", "pxe/root"]);
        assert!(text.starts_with(&hex(&Sha256::digest(b"a"))));
    }
}
