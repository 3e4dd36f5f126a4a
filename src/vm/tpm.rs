//! The TPM of a machine: `swtpm` from the tools tree, with its state in a folder of the node.

use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::machine::files;
use super::machine::line::INSIDE;
use super::reap;
use crate::install::tools::Tools;

/// The emulator's program in the tools tree.
const PROGRAM: &str = "swtpm";
/// Path of the TPM's state inside the sandbox.
const STATE: &str = "/run/tpm";
/// Timeout for the TPM's socket; usually it listens within a second.
const LISTENS: Duration = Duration::from_secs(60);

/// A running TPM. Dropping it ends it; it also ends when QEMU closes the connection.
#[derive(Debug)]
pub(super) struct Tpm(Child);

impl Tpm {
    /// Starts a TPM whose state is in the folder `state`, initialised if empty; its socket is in `place`.
    pub(super) fn start(tools: &Tools, state: &Path, place: &Path) -> Result<Self> {
        fs::create_dir_all(state).with_context(|| format!("making {}", state.display()))?;
        let said = place.join(files::TPM_STDERR);
        let stderr = File::create(&said).context("making the TPM's error file")?;
        let child = tools
            .sandbox()
            .bind(place, format!("{INSIDE}/0"))
            .bind(state, STATE)
            .command(PROGRAM)
            .args(["socket", "--tpm2", "--terminate"])
            .args(["--tpmstate", &format!("dir={STATE}")])
            .arg("--ctrl")
            .arg(format!("type=unixio,path={INSIDE}/0/{}", files::TPM))
            .stderr(stderr)
            .spawn()
            .context("starting swtpm")?;
        let mut tpm = Self(child);
        let until = Instant::now() + LISTENS;
        while !place.join(files::TPM).exists() {
            let ended = tpm.0.try_wait().context("waiting for swtpm")?;
            if ended.is_some() || Instant::now() >= until {
                let said = fs::read_to_string(&said).unwrap_or_default();
                bail!("swtpm does not listen: {}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(tpm)
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        reap::end(&mut self.0);
    }
}
