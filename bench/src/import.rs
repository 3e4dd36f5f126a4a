//! Container images made known to containerd: those of the root, which are only named to it, beside the import of an archive with the
//! same files. Natively, on a node in a namespace.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use image::container_images::{ContainerImage, ContainerImages, IMAGES_COMMAND, INDEX};
use image::paths::NODE_PROGRAM;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;
use slipway::oci::{self, Image, RunConfig};

use crate::table::{Row, Table, Unit};

const PATIENCE: Duration = Duration::from_secs(300);
/// Where the archive is on a node.
const ARCHIVE: &str = "/var/tmp/images.tar";
/// Names the images to a containerd that has no data yet, in place of the running one's.
const NAMED: &str =
    "mkdir -p /var/tmp/containerd && mount --bind /var/tmp/containerd /var/lib/containerd";
/// The other way.
const PEER: &str = "ctr images import";

/// Measures both in turns, each time on a new node.
///
/// # Errors
/// If a node does not start, or one of the programs fails.
pub(crate) fn measure(lab: &mut Lab, repeats: usize, table: &mut Table) -> Result<()> {
    let archive = lab.folder().join("images.tar");
    let images = pack(lab, &archive)?;
    let size = fs::metadata(&archive)?.len() >> 20;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let mut node = lab.runtime("import", 11, false)?;
        node.start(&lab.hub)?;
        node.run("bash /run/wait-containerd")?;
        fs::create_dir_all(node.below_var("/var/tmp"))?;
        fs::copy(&archive, node.below_var(ARCHIVE)).context("giving a node the archive")?;
        theirs.push(timed(
            &node,
            "true",
            &format!("ctr -n bench images import {ARCHIVE}"),
        )?);
        ours.push(timed(
            &node,
            NAMED,
            &format!("{NODE_PROGRAM} {IMAGES_COMMAND}"),
        )?);
    }
    table.rows.push(Row {
        group: "clusters",
        what: format!("{images} images of {size} MiB known to containerd"),
        unit: Unit::Seconds,
        ours,
        peer: Some((PEER, theirs)),
        goals: Vec::new(),
    });
    Ok(())
}

/// The seconds of a command behind another one, in mounts of their own.
fn timed(node: &Node, before: &str, command: &str) -> Result<f64> {
    let script = format!(
        "unshare -m bash -ec '{before}; begin=$EPOCHREALTIME; {command} >&2; echo $begin $EPOCHREALTIME' 2> /run/timed.log || {{ cat /run/timed.log; exit 1; }}"
    );
    let said = node.run_within(&script, PATIENCE)?;
    let times = said.trim().split_once(' ');
    let times = times.and_then(|(begin, end)| Some((begin.parse().ok()?, end.parse().ok()?)));
    let (begin, end): (f64, f64) = times.with_context(|| format!("{command} says {said}"))?;
    Ok(end - begin)
}

/// Writes the images of the root as an archive, each as one layer; gives their number.
fn pack(lab: &Lab, dest: &Path) -> Result<usize> {
    let root = &lab.image.tree;
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let text = fs::read(inside(INDEX)).with_context(|| format!("reading {INDEX}"))?;
    let list: ContainerImages = serde_json::from_slice(&text)?;
    let folder = lab.folder().join("packed");
    let layout = folder.join("layout");
    fs::create_dir_all(&layout)?;
    let packed = |(number, image): (usize, &ContainerImage)| -> Result<Image> {
        let (tar, layer) = (
            folder.join(format!("{number}.tar")),
            folder.join(format!("{number}")),
        );
        let mut builder = tar::Builder::new(BufWriter::new(File::create(&tar)?));
        builder.follow_symlinks(false);
        builder.append_dir_all(".", inside(&image.folder))?;
        builder.into_inner()?.into_inner()?;
        let name = image.names.first().context("an image has no name")?;
        Ok(Image {
            name: name.clone(),
            architecture: "amd64".to_owned(),
            run: RunConfig::default(),
            layers: vec![oci::layer_of_tar(&tar, &layer)?],
        })
    };
    let images = list.images.iter().enumerate().map(packed);
    let images = images.collect::<Result<Vec<_>>>()?;
    oci::write_layout(&layout, &images, 0)?;
    oci::write_archive(&layout, dest)?;
    Ok(images.len())
}
