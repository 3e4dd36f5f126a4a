//! A server of another project on loopback, in a sandbox.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use slipway::host::sandbox::Cmd;
use tempfile::TempDir;

/// Time in which it listens.
const STARTS: Duration = Duration::from_secs(30);
/// What it says, below its folder.
const LOG: &str = "log";

/// A running server, which ends with this value.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address and port.
    pub(crate) host: String,
    child: Child,
    place: TempDir,
}

impl Server {
    /// Starts what `command` makes of an address and the server's folder, and waits until it listens.
    pub(crate) fn start(
        place: TempDir,
        command: impl FnOnce(&str, &Path) -> Result<Cmd>,
    ) -> Result<Self> {
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let host = format!("127.0.0.1:{port}");
        let command = command(&host, place.path())?;
        let about = format!("starting {command}");
        let log = File::create(place.path().join(LOG))?;
        let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut server = Self { host, child, place };
        server.wait().context(about)?;
        Ok(server)
    }

    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + STARTS;
        while TcpStream::connect(&self.host).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", self.log()?);
            }
            if Instant::now() > until {
                bail!("it does not listen at {}: {}", self.host, self.log()?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Its folder on the host.
    pub(crate) fn folder(&self) -> &Path {
        self.place.path()
    }

    /// What it has said.
    pub(crate) fn log(&self) -> Result<String> {
        fs::read_to_string(self.folder().join(LOG)).context("reading the server's log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
