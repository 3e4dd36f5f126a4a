//! Sizes: our initrds, beside the peers' where they have the same drivers; our init, and its peak memory.

use std::fs;

use anyhow::{Context, Result};
use qemu_tests::lab::BootOptions;
use slipway::host;
use slipway::host::progress::Kind;
use slipway::install::tools;
use slipway::lock::{LockedRecipe, Mode};
use slipway::pipeline::{self, Request};
use slipway::recipe::{Choice, Platform, SET_KERNEL, SET_TOOLS_BUILD};
use slipway::steps::kernel::{self, Kernel};
use slipway::vm::machine::Start;
use slipway::{INIT_PROGRAM, inspect};

use crate::session::Session;
use crate::table::{Goal, Row, Table, Unit, mebibytes};

/// The kernel package that has the drivers of every platform.
const KERNEL: &str = "linux-image-amd64";
/// What the row of the initrds with all drivers is called.
const ALL_DRIVERS: &str = "initrd with all drivers, Debian's kernel for all machines";

/// Adds all sizes to the table.
///
/// # Errors
/// If the image cannot be built or its node does not boot.
pub(crate) fn measure(session: &mut Session, table: &mut Table) -> Result<()> {
    let mut row = |what: &str, value: f64, peer, goals| {
        table.rows.push(Row {
            group: "sizes",
            what: what.to_owned(),
            unit: Unit::Mebibytes,
            ours: vec![value],
            peer,
            goals,
        });
    };
    let at_most = |most| vec![Goal::AtMost(most)];
    let (node, peak) = session.provisioned()?;
    let lab = session.lab()?;
    let Start::Direct { initrd, .. } = lab.machine(&node, &BootOptions::default())?.start else {
        anyhow::bail!("the default boot is not direct");
    };
    let qemu = fs::metadata(initrd)?.len();
    row(
        "initrd for QEMU, as the demo ships it",
        mebibytes(qemu),
        None,
        at_most(4.0),
    );
    let (ours, locked) = all_platforms(session)?;
    let kernel = unpacked(session, &locked)?;
    let peers = session.generic_initrds(KERNEL, &kernel)?;
    for (name, path) in &peers {
        let theirs = mebibytes(fs::metadata(path)?.len());
        let peer = Some((*name, vec![theirs]));
        row(ALL_DRIVERS, mebibytes(ours), peer, at_most(10.0));
    }
    let init = u64::try_from(INIT_PROGRAM.len())?;
    row("slipway-init", mebibytes(init), None, at_most(6.0));
    row(
        "slipway-init, memory at its peak, first boot",
        mebibytes(peak * 1024),
        None,
        at_most(24.0),
    );
    table.notes.push(format!(
        "initrds with all drivers, of {} {}: ours for every platform ({}); dracut's with --no-hostonly; mkosi's default initrd",
        KERNEL,
        kernel.release,
        names().join(", ")
    ));
    Ok(())
}

/// The names of all platforms.
fn names() -> Vec<&'static str> {
    Platform::all().map(|platform| platform.name()).collect()
}

/// A recipe with the drivers of every platform.
fn recipe() -> String {
    let kernel = toml::Table::from_iter([
        ("package".to_owned(), KERNEL.into()),
        ("platforms".to_owned(), names().into()),
    ]);
    let image = toml::Table::from_iter([
        ("name".to_owned(), "all-platforms".into()),
        ("version".to_owned(), "1".into()),
    ]);
    toml::Table::from_iter([
        ("image".to_owned(), image.into()),
        ("kernel".to_owned(), kernel.into()),
    ])
    .to_string()
}

/// The kernel of a lock.
fn unpacked(session: &Session, locked: &LockedRecipe) -> Result<Kernel> {
    let tool = session.tool();
    let tools = tools::install(tool, "tools", &locked.fetch(tool, SET_TOOLS_BUILD)?)?;
    kernel::unpack(tool, &tools, &locked.fetch(tool, SET_KERNEL)?)
}

/// Bytes of the initrd in a UKI for every platform, and the lock of its recipe.
fn all_platforms(session: &mut Session) -> Result<(u64, LockedRecipe)> {
    let folder = session.scratch().join("all-platforms");
    fs::create_dir_all(&folder)?;
    let recipe = folder.join("all.toml");
    fs::write(&recipe, self::recipe())?;
    session.say("building an image for all platforms");
    let request = Request {
        recipe,
        output: folder.clone(),
        choice: Choice::default(),
        lock: Mode::Make,
    };
    let built = pipeline::build(&host::session::Session::open(Kind::Quiet)?, &request)?;
    let uki = built.out.join("all-platforms.efi");
    let report = inspect::inspect(&uki)?;
    let kernel = report.kernels.first().context("the UKI has no kernel")?;
    let size = u64::try_from(kernel.initrd)?;
    slipway::host::cache::remove(&folder)?;
    Ok((size, built.locked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_of_equal_breadth_names_every_platform() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.toml");
        fs::write(&path, recipe()).unwrap();
        let recipe = slipway::recipe::load(&path).unwrap();
        assert_eq!(recipe.kernel.package, KERNEL);
        assert!(Platform::all().all(|platform| recipe.kernel.platforms.contains(&platform)));
    }
}
