//! Cmdline: the kernel command line. The log starts here, since `slipway.debug` sets its level.

use std::fs;

use anyhow::{Context, Result};
use image::cmdline::Cmdline;
use image::fault::Fault;
use linux::log;

use crate::context::Early;

/// Reads the command line, starts the log, and configures the network by its keys.
///
/// # Errors
/// A [`Fault`] with every malformed word.
pub(crate) fn read(early: &Early) -> Result<Cmdline> {
    let path = early.world.proc.join("cmdline");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let parsed = Cmdline::parse(&text);
    log::start(
        &early.world,
        parsed.as_ref().is_ok_and(|cmdline| cmdline.debug),
    )?;
    let cmdline = parsed.map_err(|wrong| {
        Fault::new("the kernel command line is wrong")
            .found(wrong.join("; "))
            .fix("correct these words in the boot loader's entry or the PXE script")
    })?;
    early.network.set_cmdline(&cmdline.network);
    Ok(cmdline)
}
