//! Output formats: one module each, and one row each of `TABLE`, the only access of the rest of the program to them.
//!
//! The module is below the recipe, because a recipe's valid words, its schema and its messages come from the table.

mod aws;
mod gce;
mod pxe;
mod qcow2;

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout::{Architecture, MIB, SectorSize, Sizes};
use image::manifest::ImageId;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::host::session::Session;

/// The raw disk in the output folder, which every build writes.
pub const DISK: &str = "disk.raw";

/// The formats, in the order in which the recipe's reference shows them.
static TABLE: &[&Artifact] = &[&qcow2::ROW, &gce::ROW, &aws::ROW, &pxe::ROW];

/// An output format.
#[derive(Debug)]
struct Artifact {
    /// The name in recipes, the same as that of its module.
    name: &'static str,
    /// One sentence for the schema and the reference of recipes.
    help: &'static str,
    /// The raw disk's size must be a multiple of this, in bytes; at least a MiB, to which partitions are aligned.
    size_multiple: u64,
    /// Whether its machines may have disks with sectors of other than 512 bytes.
    any_sectors: bool,
    /// Writes the artifact into an output folder. Gives its files, relative to the folder.
    write: fn(&Inputs, &Path) -> Result<Vec<PathBuf>>,
}

/// A row of `TABLE`, as a recipe names it.
#[derive(Clone, Copy, Debug)]
pub struct Kind(&'static Artifact);

/// The inputs of the artifacts.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The tree of tools, which has `qemu-img`.
    pub tools: &'a Path,
    /// Name and version of the image.
    pub image: &'a ImageId,
    /// The machines that the image is for.
    pub architecture: Architecture,
    /// The raw disk.
    pub disk: &'a Path,
    /// Its size in bytes, holes included.
    pub disk_size: u64,
    /// The kernel.
    pub vmlinuz: &'a Path,
    /// The initramfs.
    pub initrd: &'a Path,
    /// The kernel's command line.
    pub cmdline: &'a str,
    /// The root's EROFS.
    pub erofs: &'a Path,
    /// The root's hash tree.
    pub verity: &'a Path,
    /// Sizes of a node's partitions.
    pub sizes: &'a Sizes,
    /// Times inside archives, seconds since 1970.
    pub epoch: u64,
}

impl Kind {
    /// All kinds, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| Self(row))
    }

    /// The kind with this name, if any.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.name() == name)
    }

    /// The name that the recipe uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether its machines may have disks with such sectors.
    #[must_use]
    pub const fn fits(self, sector: SectorSize) -> bool {
        self.0.any_sectors || matches!(sector, SectorSize::B512)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kind {}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name)
            .ok_or_else(|| D::Error::custom(format!("expected {}, found {name:?}", names())))
    }
}

impl schemars::JsonSchema for Kind {
    fn schema_name() -> Cow<'static, str> {
        "ArtifactKind".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let row = |row: &&Artifact| serde_json::json!({ "type": "string", "const": row.name, "description": row.help });
        schemars::json_schema!({
            "description": "Forms of the disk beside the raw one.",
            "oneOf": TABLE.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// All names for a message, as `"a", "b" or "c"`.
#[must_use]
pub fn names() -> String {
    let quoted: Vec<String> = TABLE.iter().map(|row| format!("{:?}", row.name)).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The raw disk's size must be a multiple of this, in bytes, so that all these artifacts can be made from it.
#[must_use]
pub fn size_multiple(kinds: &[Kind]) -> u64 {
    // The largest is a multiple of the others: a test checks that they are powers of two.
    let multiples = kinds.iter().map(|kind| kind.0.size_multiple);
    multiples.max().unwrap_or(MIB)
}

/// Writes the artifacts of these kinds into the folder `output`.
///
/// # Errors
/// As [`write()`].
pub fn write_all(session: &Session, kinds: &[Kind], inputs: &Inputs, output: &Path) -> Result<()> {
    for kind in kinds {
        write(session, *kind, inputs, output)?;
    }
    Ok(())
}

/// Writes one artifact into the folder `output`. Gives its files, relative to the folder.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    session: &Session,
    kind: Kind,
    inputs: &Inputs,
    output: &Path,
) -> Result<Vec<PathBuf>> {
    let step = session.progress.step(kind.name());
    let files = (kind.0.write)(inputs, output)
        .with_context(|| format!("making the artifact {}", kind.name()))?;
    let bytes = files
        .iter()
        .map(|file| fs::metadata(output.join(file)).map_or(0, |meta| meta.len()))
        .sum();
    step.made(Some(bytes));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_has_a_row_with_its_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/artifact");
        let mut files: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let mut rows: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        rows.sort_unstable();
        assert_eq!(rows, files, "left: TABLE, right: the files of {folder}");
    }

    #[test]
    fn the_largest_multiple_is_a_multiple_of_all() {
        for row in TABLE {
            let multiple = row.size_multiple;
            assert!(
                multiple >= MIB && multiple.is_power_of_two(),
                "{}",
                row.name
            );
        }
        let aws = Kind::named("aws").unwrap();
        let qcow2 = Kind::named("qcow2").unwrap();
        assert_eq!(size_multiple(&[qcow2, aws]), 1 << 30);
        assert_eq!(size_multiple(&[]), MIB);
    }

    #[test]
    fn a_name_is_read_and_written_as_in_the_recipe() {
        for row in TABLE {
            let kind: Kind = serde_json::from_value(row.name.into()).unwrap();
            assert_eq!(serde_json::to_value(kind).unwrap(), row.name);
        }
        let error = serde_json::from_str::<Kind>("\"vhd\"").unwrap_err();
        assert!(error.to_string().contains(&names()), "{error}");
    }
}
