//! Root: the tree and its layers sealed as EROFS with a dm-verity hash tree.
//!
//! Base and layers are merged in memory to one sorted and normalised list (parents first, no path through a link, no
//! path below a removed folder) and written as one file: the tree is never on the disk as files.

mod kubelet;
mod reserved;
mod set_id;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, ensure};
use image::guid::Guid;
use image::var_list;
use image::verity::{RootHash, SALT};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::code;
use crate::format::erofs::{self, Content, Earlier, Kept, Node, Volume};
use crate::format::verity;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::install::Rootfs;
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
/// If two layers conflict, or a file changed since it was hashed for its layer.
pub fn seal(
    session: &Session,
    locked: &LockedRecipe,
    rootfs: &Rootfs,
    layers: &[Layer],
) -> Result<Root> {
    let (options, epoch) = (&locked.recipe.root, locked.lock.epoch);
    let mut key = Key::of("root", code::ROOT)
        .key("rootfs", &rootfs.key)
        .value("options", options)?
        .bytes("epoch", &epoch.to_le_bytes());
    for layer in layers {
        key = key.key("layer", &layer.key);
    }
    let key = key.finish();
    for warning in set_id::warnings(rootfs.entries(), &options.set_uid) {
        session.progress.warn(&warning);
    }
    let step = session.progress.step("root");
    let made = session.cache.step("root", &key, |folder| {
        let base = set_id::removed(rootfs.entries(), &options.set_uid);
        let entries = reserved::merged(&locked.recipe, &base, layers)?;
        kubelet::check(&entries)?;
        check_lists(&entries)?;
        let usage = serde_json::to_vec(&Usage::of(&entries)?)?;
        fs::write(folder.join(USAGE), usage)?;
        let erofs = folder.join(EROFS);
        format(session, rootfs, &entries, folder, options, &key, epoch)?;
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

/// Reads the lists of what goes to `/var` as the init does: it would refuse the whole list for one line, and the image would never boot.
///
/// # Errors
/// The first line that the init refuses, which has part of the file name that a package or the recipe brings.
fn check_lists(entries: &[Entry]) -> Result<()> {
    for list in var_list::LISTS {
        let mut found = entries.iter().filter(|entry| entry.path == list);
        let Some(Kind::File(source)) = found.next().map(|entry| &entry.kind) else {
            continue;
        };
        let about = || format!("checking {list}");
        let text = String::from_utf8(source.read().with_context(about)?).with_context(about)?;
        // At line feeds alone: `lines` takes a carriage return away, which would be the end of a link's target.
        for line in text.split('\n') {
            ensure!(
                !line.contains(char::is_control),
                "{list}: a path with a control character cannot be put into /var: {line:?}"
            );
            var_list::parse(line).map_err(Error::msg).with_context(|| {
                format!("{list}: the init would refuse it; a file name with a line feed makes such a line")
            })?;
        }
    }
    Ok(())
}

/// Writes the merged entries as EROFS. What the packages have is packed once, and copied from then on.
fn format(
    session: &Session,
    rootfs: &Rootfs,
    entries: &[Entry],
    folder: &Path,
    options: &RootOptions,
    key: &Key,
    epoch: u64,
) -> Result<()> {
    let volume = Volume {
        uuid: uuid("erofs uuid", key),
        epoch,
        compression: (options.compression.parse())
            .map_err(|error: String| anyhow::anyhow!(error))?,
        cluster: options.cluster,
    };
    let nodes = nodes(entries)?;
    let packed = Packed::name(rootfs, options)?;
    let earlier = Packed::earlier(session, &packed, rootfs, &nodes);
    let kept = erofs::write(&nodes, &volume, earlier.as_ref(), &folder.join(EROFS))?;
    Packed::of(rootfs, &nodes, kept).write(&folder.join(packed))
}

/// Where a sealed root has the packages' files, so that the next one with the same packages does not pack them again.
#[derive(Serialize, Deserialize)]
struct Packed {
    /// First byte in the packages' stream, size, and how it is stored.
    files: Vec<(u64, u64, Kept)>,
}

impl Packed {
    /// The name of its file, which has the hash of what packed data depends on beside the content.
    fn name(rootfs: &Rootfs, options: &RootOptions) -> Result<String> {
        let key = Key::of("packed", code::ROOT)
            .key("rootfs", &rootfs.key)
            .value("compression", &options.compression)?
            .bytes("cluster", &options.cluster.to_le_bytes())
            .finish();
        Ok(format!("packed-{key}.json"))
    }

    /// The first sealed root of the cache that has the packages' files. One that cannot be read is none.
    fn earlier(
        session: &Session,
        name: &str,
        rootfs: &Rootfs,
        nodes: &[Node<'_>],
    ) -> Option<Earlier> {
        session.cache.results("root").iter().find_map(|folder| {
            let text = fs::read(folder.join(name)).ok()?;
            let file = File::open(folder.join(EROFS)).ok()?;
            let packed: Self = serde_json::from_slice(&text).ok()?;
            let mut known: HashMap<(u64, u64), Kept> = (packed.files.into_iter())
                .map(|(offset, size, kept)| ((offset, size), kept))
                .collect();
            let kept = nodes
                .iter()
                .map(|node| known.remove(&range(rootfs, node)?))
                .collect();
            Some(Earlier { file, kept })
        })
    }

    fn of(rootfs: &Rootfs, nodes: &[Node<'_>], kept: Vec<Option<Kept>>) -> Self {
        let files = nodes.iter().zip(kept).filter_map(|(node, kept)| {
            let (offset, size) = range(rootfs, node)?;
            Some((offset, size, kept?))
        });
        Self {
            files: files.collect(),
        }
    }

    fn write(&self, to: &Path) -> Result<()> {
        fs::write(to, serde_json::to_vec(self)?)
            .with_context(|| format!("writing {}", to.display()))
    }
}

/// Where the packages' stream has a node's content.
fn range(rootfs: &Rootfs, node: &Node<'_>) -> Option<(u64, u64)> {
    match node.kind {
        erofs::Kind::File(Content::Range { file, offset, size }) if file == rootfs.tar => {
            Some((offset, size))
        }
        _ => None,
    }
}

/// The entries as nodes. Two names of one file of the host, or of one range of the base's stream, become hard links.
fn nodes(entries: &[Entry]) -> Result<Vec<Node<'_>>> {
    let mut names: HashMap<(&Path, u64), (usize, &Entry)> = HashMap::new();
    let mut nodes = Vec::with_capacity(entries.len());
    for entry in entries {
        let (content, place) = match &entry.kind {
            Kind::HardLink(_) | Kind::Remove => continue,
            Kind::Directory | Kind::Symlink(_) => (None, None),
            Kind::File(Source::Bytes(bytes)) => (Some(Content::Bytes(bytes)), None),
            Kind::File(Source::Path(file)) => {
                let size = fs::metadata(file)
                    .with_context(|| format!("reading {} for {}", file.display(), entry.path))?
                    .len();
                let offset = 0;
                let content = Content::Range { file, offset, size };
                (Some(content), Some((file.as_path(), WHOLE)))
            }
            Kind::File(Source::Hashed(file)) => (
                Some(Content::Hashed(file)),
                Some((file.path.as_path(), WHOLE)),
            ),
            Kind::File(Source::Range { file, offset, size }) => {
                let (offset, size) = (*offset, *size);
                let content = Content::Range { file, offset, size };
                let place = (size > 0).then_some((file.as_path(), offset));
                (Some(content), place)
            }
        };
        let at = nodes.len();
        let first = place.map(|place| *names.entry(place).or_insert((at, entry)));
        let kind = match (content, first, &entry.kind) {
            (Some(_), Some((of, first)), _) if of < at && same(first, entry) => {
                erofs::Kind::HardLink(of)
            }
            (Some(content), _, _) => erofs::Kind::File(content),
            (None, _, Kind::Symlink(target)) => erofs::Kind::Symlink(target),
            (None, _, _) => erofs::Kind::Directory,
        };
        if let (erofs::Kind::File(_), Some(place)) = (&kind, place) {
            names.insert(place, (at, entry));
        }
        nodes.push(Node {
            path: &entry.path,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            xattrs: &entry.xattrs,
            kind,
        });
    }
    Ok(nodes)
}

/// In place of an offset: the whole file.
const WHOLE: u64 = u64::MAX;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Cache;

    #[test]
    fn lists_that_the_init_refuses_are_not_sealed() {
        for list in var_list::LISTS {
            let check = |text: &str| check_lists(&[Entry::file(list, 0o644, text)]);
            let good = "# Made by the build.\nd /var/a\\x20b 0755 0 0 -\nL /var/run - - - - /run\n";
            check(good).unwrap();
            for (wrong, shown) in [
                // The names `a`, line feed, `b` and `c`, carriage return.
                (
                    "C /var/a\nb 0644 0 0 - /usr/share/factory/var/a\nb\n",
                    r#""C /var/a""#,
                ),
                ("L /var/c - - - - c\r\n", r#""L /var/c - - - - c\r""#),
            ] {
                let error = format!("{:#}", check(&format!("{good}{wrong}")).unwrap_err());
                assert!(error.contains(list) && error.contains(shown), "{error}");
            }
        }
        check_lists(&[Entry::directory("/", 0o755)]).unwrap();
    }

    #[test]
    fn a_file_that_changes_between_its_layer_and_the_root_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let agent = folder.path().join("agent");
        // More than what is packed at once, and the same size afterwards.
        let mut content = vec![7; (5 << 20) + 1];
        fs::write(&agent, &content).unwrap();
        let entries = vec![
            Entry::directory("/", 0o755),
            Entry::copy("/agent", 0o755, &agent),
            Entry::copy("/same", 0o755, &agent),
        ];
        let layer = Layer::new(&cache, entries).unwrap();
        let volume = Volume {
            uuid: uuid("test", &layer.key),
            epoch: 1,
            compression: "lz4".parse().unwrap(),
            cluster: 1 << 16,
        };
        let write = || {
            let nodes = nodes(&layer.entries).unwrap();
            assert!(matches!(nodes[2].kind, erofs::Kind::HardLink(1)));
            erofs::write(&nodes, &volume, None, &folder.path().join(EROFS))
        };
        write().unwrap();
        for at in [0, 5 << 20] {
            content[at] = 8;
            fs::write(&agent, &content).unwrap();
            let error = format!("{:#}", write().unwrap_err());
            assert!(error.contains("agent changed during the build"), "{error}");
            content[at] = 7;
        }
        fs::write(&agent, &content).unwrap();
        write().unwrap();
    }
}
