//! Debian's docker-registry on loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use slipway::install::tools::Tools;

/// Path of its data inside the sandbox.
const PLACE: &str = "/registry";
/// Time in which it listens.
const STARTS: Duration = Duration::from_secs(30);

/// A running registry, which ends with this value.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) host: String,
    child: Child,
    _place: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start(tools: &Tools) -> Result<Self> {
        let place = tempfile::tempdir()?;
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let host = format!("127.0.0.1:{port}");
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {PLACE}/data\nhttp:\n  addr: {host}\n"
        );
        fs::write(place.path().join("config.yml"), config)?;
        let child = tools
            .sandbox()
            .network(true)
            .bind(place.path(), PLACE)
            .command("/usr/bin/docker-registry")
            .args(["serve", &format!("{PLACE}/config.yml")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(place.path().join("log"))?)
            .spawn()?;
        let mut registry = Self {
            host,
            child,
            _place: place,
        };
        registry.wait().context("starting docker-registry")?;
        Ok(registry)
    }

    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + STARTS;
        while TcpStream::connect(&self.host).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self._place.path().join("log"))?;
                bail!("it ended with {status}: {log}");
            }
            if Instant::now() > until {
                bail!("it does not listen at {}", self.host);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
