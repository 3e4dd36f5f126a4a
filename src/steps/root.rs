//! Root: the tree and its layers sealed as EROFS with a dm-verity hash tree.
//!
//! Base and layers are merged in memory to one sorted and normalised list (parents first, no path through a link, no
//! path below a removed folder) and streamed to `mkfs.erofs --tar=f`: the tree is never written to the disk as files.

mod kubelet;
mod reserved;
mod set_id;

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::guid::Guid;
use image::verity::{RootHash, SALT};
use sha2::{Digest, Sha256};

use crate::code;
use crate::format::verity;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::install::tools::Tools;
use crate::layer::stream::{Form, Stream};
use crate::layer::usage::Usage;
use crate::layer::{Entry, Kind, Layer, Source};
use crate::lock::LockedRecipe;
use crate::recipe::RootOptions;

const EROFS: &str = "root.erofs";
const VERITY: &str = "root.verity";
const HASH: &str = "roothash";
const USAGE: &str = "usage.json";

/// A sealed root file system.
#[derive(Clone, Debug)]
pub struct Root {
    /// The EROFS file, whole blocks of 4096 bytes.
    pub erofs: PathBuf,
    /// Superblock and hash tree.
    pub verity: PathBuf,
    /// The root hash, which the kernel command line carries.
    pub hash: RootHash,
    /// What fills it.
    pub usage: Usage,
    /// Hash of all inputs.
    pub key: Key,
    /// What the programs of the recipe changed in it, a JSON object each.
    pub changes: Vec<serde_json::Value>,
}

/// Lays the layers over the tree, later ones over earlier ones, and seals the result.
///
/// # Errors
/// If two layers conflict, a file changed meanwhile, or `mkfs.erofs` fails.
pub fn seal(
    session: &Session,
    locked: &LockedRecipe,
    tools: &Tools,
    rootfs: &Rootfs,
    layers: &[Layer],
) -> Result<Root> {
    let (options, epoch) = (&locked.recipe.root, locked.lock.epoch);
    let mut key = Key::of("root", code::ROOT)
        .key("tools", &tools.key)
        .key("rootfs", &rootfs.key)
        .value("options", options)?
        .bytes("epoch", &epoch.to_le_bytes());
    for layer in layers {
        key = key.key("layer", &layer.key);
    }
    let key = key.finish();
    let step = session.progress.step("root");
    let made = session.cache.step("root", &key, |folder| {
        let base = set_id::removed(rootfs.entries(), &options.set_uid);
        let entries = reserved::merged(&locked.recipe, &base, layers)?;
        kubelet::check(&entries)?;
        let usage = serde_json::to_vec(&Usage::of(&entries)?)?;
        fs::write(folder.join(USAGE), usage)?;
        let erofs = folder.join(EROFS);
        format(tools, &entries, folder, options, &key, epoch)?;
        step.note("hashing");
        let salt: [u8; SALT] = derived("verity salt", &key);
        let hash = verity::write(
            &erofs,
            &folder.join(VERITY),
            &salt,
            uuid("verity uuid", &key),
        )?;
        Ok(fs::write(folder.join(HASH), hash.to_string())?)
    })?;
    let path = made.path;
    let hash = fs::read_to_string(path.join(HASH)).context("reading the root hash")?;
    let about = || format!("reading {USAGE}");
    let usage = fs::read(path.join(USAGE)).with_context(about)?;
    let root = Root {
        usage: serde_json::from_slice(&usage).with_context(about)?,
        erofs: path.join(EROFS),
        verity: path.join(VERITY),
        hash: hash
            .parse()
            .map_err(|error: String| anyhow::anyhow!(error))?,
        key,
        changes: layers
            .iter()
            .filter_map(|layer| layer.record.clone())
            .collect(),
    };
    let bytes = Some(fs::metadata(&root.erofs)?.len());
    step.done(made.hit, bytes);
    Ok(root)
}

/// Streams the entries into `mkfs.erofs`.
fn format(
    tools: &Tools,
    entries: &[Entry],
    folder: &Path,
    options: &RootOptions,
    key: &Key,
    epoch: u64,
) -> Result<()> {
    let mut arguments = vec![
        "--tar=f".to_owned(),
        "--quiet".to_owned(),
        format!("-T{epoch}"),
        "--all-time".to_owned(),
        format!("-U{}", uuid("erofs uuid", key)),
    ];
    if options.compression != "none" {
        arguments.push(format!("-z{}", options.compression));
        arguments.push(format!("-C{}", options.cluster));
    }
    tools
        .sandbox()
        .epoch(epoch)
        .bind(folder, "/work")
        // mkfs.erofs keeps the stream's contents in a temporary file; the RAM disk at /tmp is too small for them.
        .env("TMPDIR", "/work")
        .command("mkfs.erofs")
        .args(arguments)
        .arg(format!("/work/{EROFS}"))
        .feed(|input| {
            let mut stream = Stream::new(BufWriter::with_capacity(1 << 20, input));
            write(entries, &mut stream, epoch)?;
            stream.end()?;
            stream.into_inner()?;
            Ok(())
        })?;
    // The next data on the disk begins at a block.
    let file = File::options().write(true).open(folder.join(EROFS))?;
    let size = file.metadata()?.len();
    let whole = size.next_multiple_of(image::verity::BLOCK);
    if whole != size {
        file.set_len(whole)?;
    }
    Ok(())
}

/// In place of an offset: the whole file.
const WHOLE: u64 = u64::MAX;

/// Writes the merged entries. Two names of one file of the host, or of one range of the base's stream, become hard links.
fn write<W: Write>(entries: &[Entry], out: &mut Stream<W>, epoch: u64) -> Result<()> {
    let mut links: std::collections::HashMap<(&Path, u64), &Entry> =
        std::collections::HashMap::new();
    // Keep the last file open: most contents come from one file.
    let mut open: Option<(&Path, File)> = None;
    for entry in entries {
        let about = || format!("writing {}", entry.path);
        match &entry.kind {
            Kind::Directory => out.header(entry, Form::Directory, epoch)?,
            Kind::Symlink(target) => out.header(entry, Form::Symlink(target), epoch)?,
            Kind::HardLink(_) | Kind::Remove => {}
            Kind::File(Source::Bytes(bytes)) => {
                out.header(entry, Form::File(bytes.len() as u64), epoch)?;
                out.content(&mut bytes.as_slice(), bytes.len() as u64)?;
            }
            Kind::File(Source::Path(path)) => {
                match links.get(&(path.as_path(), WHOLE)) {
                    Some(first) if same(first, entry) => {
                        out.header(entry, Form::HardLink(&first.path), epoch)?;
                        continue;
                    }
                    _ => links.insert((path, WHOLE), entry),
                };
                let mut file = File::open(path)
                    .with_context(|| format!("reading {} for {}", path.display(), entry.path))?;
                let size = file.metadata()?.len();
                out.header(entry, Form::File(size), epoch)?;
                out.content(&mut file, size).with_context(about)?;
            }
            Kind::File(Source::Range { file, offset, size }) => {
                if *size > 0 {
                    match links.get(&(file.as_path(), *offset)) {
                        Some(first) if same(first, entry) => {
                            out.header(entry, Form::HardLink(&first.path), epoch)?;
                            continue;
                        }
                        _ => links.insert((file, *offset), entry),
                    };
                }
                if open.as_ref().is_none_or(|(path, _)| path != file) {
                    open = Some((file, File::open(file).with_context(about)?));
                }
                let (_, from) = open.as_mut().context("no file is open")?;
                from.seek(SeekFrom::Start(*offset))?;
                out.header(entry, Form::File(*size), epoch)?;
                out.content(from, *size).with_context(about)?;
            }
        }
    }
    Ok(())
}

fn same(one: &Entry, two: &Entry) -> bool {
    (one.mode, one.uid, one.gid, &one.xattrs) == (two.mode, two.uid, two.gid, &two.xattrs)
}

/// Bytes derived from the key, for values that are random in other tools: equal inputs must give equal bytes.
fn derived<const N: usize>(what: &str, key: &Key) -> [u8; N] {
    let digest = Sha256::new()
        .chain_update(what)
        .chain_update(key.as_str())
        .finalize();
    std::array::from_fn(|at| digest[at])
}

fn uuid(what: &str, key: &Key) -> Guid {
    let mut bytes: [u8; 16] = derived(what, key);
    // Version 4, variant 1 (RFC 9562): the format that every tool accepts.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Guid(bytes)
}
