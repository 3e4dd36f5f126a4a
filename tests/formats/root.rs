//! The root's file system, read by erofs-utils.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use image::guid::Guid;
use slipway::format::erofs::{self, Content, Earlier, Kind, Node, Volume};

use super::{Bench, EPOCH};

/// Each compression with the sizes of its clusters.
const WAYS: &[(&str, u32)] = &[
    ("none", 65_536),
    ("lz4", 4096),
    ("lz4", 65_536),
    ("lz4", 1 << 20),
    ("lz4hc,9", 16_384),
    ("zstd,3", 4096),
    ("zstd,3", 131_072),
];

/// A path of the tree and what it is.
enum Thing {
    Folder,
    Link(String),
    File(Vec<u8>),
    /// A part of one large file of this host: its first byte and its size.
    Part(u64, u64),
    Same(&'static str),
}

impl Bench {
    pub(super) fn root_file_system(&self) -> Result<()> {
        let noise = noise(12 << 20);
        let large = self.place.path().join("large");
        fs::write(&large, &noise)?;
        let things = things(&noise);
        let paths: Vec<&String> = things.keys().collect();
        let attributes = vec![
            ("security.capability".to_owned(), vec![1, 0, 0, 2, 10, 0]),
            ("user.with a\nline".to_owned(), vec![b'v'; 300]),
        ];
        let nodes: Vec<Node<'_>> = (things.iter().enumerate())
            .map(|(at, (path, thing))| Node {
                path,
                mode: mode(at, thing),
                uid: if at % 7 == 3 { 70_000 } else { 0 },
                gid: 0,
                xattrs: if at % 5 == 2 { &attributes } else { &[] },
                kind: match thing {
                    Thing::Folder => Kind::Directory,
                    Thing::Link(target) => Kind::Symlink(target),
                    Thing::File(bytes) => Kind::File(Content::Bytes(bytes)),
                    Thing::Part(offset, size) => Kind::File(Content::Range {
                        file: &large,
                        offset: *offset,
                        size: *size,
                    }),
                    Thing::Same(of) => {
                        Kind::HardLink(paths.iter().position(|path| path == of).unwrap_or_default())
                    }
                },
            })
            .collect();
        for (compression, cluster) in WAYS {
            let volume = Volume {
                uuid: Guid([0x44; 16]),
                epoch: EPOCH,
                compression: compression.parse().map_err(anyhow::Error::msg)?,
                cluster: *cluster,
            };
            let image = self.place.path().join("made.erofs");
            let kept = erofs::write(&nodes, &volume, None, &image)?;
            let about = || format!("{compression} in clusters of {cluster}");
            self.read_back(&nodes, &things, &noise)
                .with_context(about)?;
            // The same bytes again, and also of what this one has packed.
            let first = fs::read(&image)?;
            let again = self.place.path().join("again.erofs");
            erofs::write(&nodes, &volume, None, &again)?;
            ensure!(first == fs::read(&again)?, "{}: other bytes", about());
            let copied = kept.iter().flatten().count();
            let earlier = Earlier {
                file: File::open(&image)?,
                kept,
            };
            let again = erofs::write(&nodes, &volume, Some(&earlier), &again)
                .map(|_| again)
                .with_context(about)?;
            ensure!(
                first == fs::read(again)?,
                "{}: other bytes by a copy",
                about()
            );
            ensure!(
                (*compression == "none") == (copied == 0),
                "{}: {copied} files can be copied",
                about()
            );
        }
        Ok(())
    }

    fn read_back(
        &self,
        nodes: &[Node<'_>],
        things: &BTreeMap<String, Thing>,
        noise: &[u8],
    ) -> Result<()> {
        let out = self.place.path().join("extracted");
        self.shell("fsck.erofs --extract=extracted --preserve-perms made.erofs")?;
        let mut found = 0;
        for ((path, thing), node) in things.iter().zip(nodes) {
            let at = out.join(path.trim_start_matches('/'));
            let meta = fs::symlink_metadata(&at).with_context(|| format!("{path} is missing"))?;
            found += 1;
            match thing {
                Thing::Folder => ensure!(meta.is_dir(), "{path} is no folder"),
                Thing::Link(target) => {
                    ensure!(fs::read_link(&at)? == Path::new(target), "{path} differs");
                }
                Thing::File(bytes) => ensure!(fs::read(&at)? == *bytes, "{path} differs"),
                Thing::Part(offset, size) => {
                    let (from, size) = (usize::try_from(*offset)?, usize::try_from(*size)?);
                    ensure!(fs::read(&at)? == noise[from..from + size], "{path} differs");
                }
                Thing::Same(of) => {
                    let first = fs::metadata(out.join(of.trim_start_matches('/')))?;
                    ensure!(first.ino() == meta.ino(), "{path} is not {of}");
                }
            }
            if !matches!(thing, Thing::Link(_) | Thing::Same(_)) {
                let mode = meta.permissions().mode() & 0o7777;
                ensure!(mode == node.mode, "{path} has mode {mode:o}");
            }
        }
        ensure!(count(&out)? == found, "there is more than was packed");
        fs::remove_dir_all(&out)?;
        // Owners, attributes and times are in the image, whoever reads it.
        let (path, node) = (things.keys().zip(nodes))
            .find(|(_, node)| node.uid > 0 && !node.xattrs.is_empty())
            .context("no node has an owner and attributes")?;
        let shown = self.shell(&format!(
            "dump.erofs --path={path} made.erofs; cat made.erofs | wc -c"
        ))?;
        for part in ["Uid: 70000", "Xattr size: 348", "2026-05-"] {
            ensure!(
                shown.contains(part),
                "{path}: no {part:?} of {}:\n{shown}",
                node.uid
            );
        }
        Ok(())
    }
}

fn mode(at: usize, thing: &Thing) -> u32 {
    match thing {
        Thing::Folder => 0o755,
        Thing::Link(_) => 0o777,
        _ => [0o644, 0o755, 0o4755, 0o600][at % 4],
    }
}

fn count(folder: &Path) -> Result<usize> {
    let mut all = 1;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        all += if entry.file_type()?.is_dir() {
            count(&entry.path())?
        } else {
            1
        };
    }
    Ok(all)
}

/// Files of all sizes around the bounds of the format, folders of one block and of many, links.
fn things(noise: &[u8]) -> BTreeMap<String, Thing> {
    let mut things = BTreeMap::new();
    let mut add = |path: &str, thing| things.insert(path.to_owned(), thing);
    for folder in [
        "/",
        "/empty",
        "/many",
        "/sizes",
        "/.hidden",
        "/!before the dot",
    ] {
        add(folder, Thing::Folder);
    }
    for (kind, repeats) in [("text", 0), ("noise", 1), ("mixed", 2)] {
        for size in [
            0, 1, 31, 4000, 4032, 4064, 4095, 4096, 4097, 8191, 8192, 8193, 12_288, 65_535, 65_536,
            65_537, 131_071, 262_144, 300_001, 1_048_577, 4_194_304, 4_194_305, 9_000_000,
        ] {
            let bytes = (0..size)
                .map(|at| match repeats {
                    0 => {
                        b"[Unit]\nDescription=The node of the image\n"
                            [(at % 40) ^ usize::from(at % 1009 == 7)]
                    }
                    1 => noise[at],
                    // Blocks that compress beside blocks that do not.
                    _ if at / 3000 % 3 == 0 => noise[at],
                    _ => b'x',
                })
                .collect();
            add(&format!("/sizes/{kind}-{size}"), Thing::File(bytes));
        }
    }
    add("/sizes/zeros", Thing::File(vec![0; 5 << 20]));
    add("/sizes/part", Thing::Part(12_345, 7_000_001));
    add("/sizes/part-small", Thing::Part(1, 4097));
    for number in 0..3000 {
        let name = format!("/many/{number}-{}", "n".repeat(number % 200));
        add(&name, Thing::File(name.clone().into_bytes()));
    }
    add(&format!("/many/{}", "ü".repeat(127)), Thing::Folder);
    for size in [1, 60, 4000, 4063, 4064, 4065, 4094] {
        add(&format!("/links-{size}"), Thing::Link("t".repeat(size)));
    }
    add("/same", Thing::Same("/many/7-nnnnnnn"));
    add("/sizes/zz-same", Thing::Same("/sizes/text-300001"));
    things
}

/// Bytes that do not compress, always the same.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_le_bytes()[3]
        })
        .collect()
}
