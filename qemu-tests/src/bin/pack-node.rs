//! Packs the disks of a node, as `slipway run --node` keeps them, for the promise of disks of earlier builds: the partition
//! tables, `state` and `var` of the system disk, and the etcd disk. No slot and no ESP: an update writes those.
//!
//!     pack-node NODE TO

use std::env::args_os;
use std::path::PathBuf;

use anyhow::{Context, Result};
use image::layout::{LABEL_STATE, LABEL_VAR, MIB};
use qemu_tests::packed_disk::pack;
use slipway::vm::disks::partition;

fn main() -> Result<()> {
    let mut words = args_os().skip(1).map(PathBuf::from);
    let (node, to) = (words.next(), words.next());
    let (node, to) = node.zip(to).context("usage: pack-node NODE TO")?;
    let system = node.join("system.raw");
    let end = system.metadata()?.len();
    let mut ranges = vec![0..MIB, end - MIB..end];
    for label in [LABEL_STATE, LABEL_VAR] {
        let (start, size) = partition(&system, label)?;
        ranges.push(start..start + size);
    }
    pack(&system, &ranges, &to.join("system.gz"))?;
    let etcd = node.join("etcd.raw");
    let size = etcd.metadata()?.len();
    pack(&etcd, std::slice::from_ref(&(0..size)), &to.join("etcd.gz"))
}
