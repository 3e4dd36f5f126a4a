//! Sizes: our initrds, our init, and its peak memory.

use std::fs;

use anyhow::{Context, Result};
use qemu_tests::lab::BootOptions;
use slipway::host;
use slipway::host::progress::Kind;
use slipway::lock::Mode;
use slipway::pipeline::{self, Request};
use slipway::vm::machine::Start;
use slipway::{INIT_PROGRAM, inspect};

use crate::session::Session;
use crate::table::{Goal, Row, Table, Unit, mebibytes};

/// A recipe with the drivers of every platform, and the kernel package that has all of them.
const ALL: &str = r#"
[image]
name = "all-platforms"
version = "1"

[kernel]
package = "linux-image-amd64"
platforms = ["qemu", "aws", "gce", "azure", "vmware", "metal"]
"#;

/// Adds all sizes to the table.
///
/// # Errors
/// If the image cannot be built or its node does not boot.
pub(crate) fn measure(session: &mut Session, table: &mut Table) -> Result<()> {
    let mut row = |what: &str, value: f64, most: f64| {
        table.rows.push(Row {
            group: "sizes",
            what: what.to_owned(),
            unit: Unit::Mebibytes,
            ours: vec![value],
            peer: None,
            goals: vec![Goal::AtMost(most)],
        });
    };
    let (node, peak) = session.provisioned()?;
    let lab = session.lab()?;
    let Start::Direct { initrd, .. } = lab.machine(&node, &BootOptions::default())?.start else {
        anyhow::bail!("the default boot is not direct");
    };
    let qemu = fs::metadata(initrd)?.len();
    row(
        "initrd for QEMU, as the demo ships it",
        mebibytes(qemu),
        4.0,
    );
    row(
        "initrd with the drivers of all platforms",
        mebibytes(all_platforms(session)?),
        10.0,
    );
    let init = u64::try_from(INIT_PROGRAM.len())?;
    row("slipway-init", mebibytes(init), 6.0);
    row(
        "slipway-init, memory at its peak, first boot",
        mebibytes(peak * 1024),
        24.0,
    );
    Ok(())
}

/// Bytes of the initrd in a UKI for every platform.
fn all_platforms(session: &mut Session) -> Result<u64> {
    let folder = session.scratch().join("all-platforms");
    fs::create_dir_all(&folder)?;
    let recipe = folder.join("all.toml");
    fs::write(&recipe, ALL)?;
    session.say("building an image for all platforms");
    let request = Request {
        recipe,
        output: folder.clone(),
        lock: Mode::Make,
    };
    let built = pipeline::build(&host::session::Session::open(Kind::Quiet)?, &request)?;
    let uki = built.out.join("all-platforms.efi");
    let report = inspect::inspect(&uki)?;
    let kernel = report.kernels.first().context("the UKI has no kernel")?;
    let size = u64::try_from(kernel.initrd)?;
    slipway::host::cache::remove(&folder)?;
    Ok(size)
}
