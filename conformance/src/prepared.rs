//! The tests, prepared: their programs, their userland, the names of their specs; and a whole run against nodes or a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use namespace_tests::lab::Lab;
use slipway::format::time::rfc3339;
use slipway::host::session::Session;

use crate::images::{self, Images};
use crate::nodes::{DESCRIPTION, Nodes};
use crate::page::About;
use crate::registry::Installed;
use crate::report::Outcome;
use crate::run::{Options, Runner};
use crate::selection;
use crate::suite::{Suite, workspace};
use crate::userland::Userland;

/// The prepared tests.
#[derive(Debug)]
pub struct Prepared<'a> {
    session: &'a Session,
    suite: Suite,
    userland: Userland,
    folder: PathBuf,
}

/// How much runs at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Specs that run at once.
    pub processes: usize,
    /// Time for all.
    pub time: Duration,
}

/// What is in the network of nodes that are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The nodes have the images, and ask nobody.
    Nothing,
    /// A registry with the images, which nodes of [`crate::nodes::RECIPE`] ask.
    Registry,
}

impl<'a> Prepared<'a> {
    /// Compiles and installs what the cache does not have.
    ///
    /// # Errors
    /// If a module or a package cannot be fetched, compiled or installed.
    pub fn new(session: &'a Session) -> Result<Self> {
        let folder = workspace()?.join("target/conformance");
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self {
            suite: Suite::obtain(session)?,
            userland: Userland::obtain(session, &folder)?,
            session,
            folder,
        })
    }

    /// Makes the tests' images.
    ///
    /// # Errors
    /// The same as [`images::make`].
    pub fn images(&self) -> Result<Images> {
        images::make(self.session, &self.suite, &self.userland)
    }

    /// The folder of reports and logs.
    #[must_use]
    pub fn reports(&self) -> PathBuf {
        self.folder.join("reports")
    }

    /// All specs of the programme, and those of `list`, or all.
    ///
    /// # Errors
    /// If the tests do not start, or the list has other names.
    pub fn specs(&self, list: Option<&[String]>) -> Result<Specs> {
        let known = self.runner()?.known()?;
        let chosen = selection::choose(&known, list)?;
        Ok(Specs { known, chosen })
    }

    /// Starts nodes, gives them the images and runs the specs.
    ///
    /// # Errors
    /// If a node does not become Ready, or the tests end without a report.
    pub fn test_nodes(
        &self,
        lab: &mut Lab,
        beside: Beside,
        specs: &Specs,
        limits: Limits,
    ) -> Result<Tested> {
        let images = self.images()?;
        let installed = match beside {
            Beside::Nothing => None,
            Beside::Registry => Some(Installed::obtain(self.session, &self.folder)?),
        };
        let step = self.session.progress.step("nodes");
        let nodes = Nodes::start(lab)?;
        nodes.import(&images)?;
        let kubeconfig = nodes.kubeconfig(&self.folder)?;
        nodes.within(|| {
            // In the network of the nodes, and of this thread, with which it would end.
            let registry =
                installed.map(|installed| installed.serve(self.session, images.layout()));
            let registry = registry.transpose()?;
            step.done(false, None);
            let tested = self.test(&kubeconfig, DESCRIPTION, specs, limits);
            drop(registry);
            tested
        })
    }

    /// Runs the specs against a cluster whose nodes have the images.
    ///
    /// # Errors
    /// If the tests end without a report.
    pub fn test(
        &self,
        kubeconfig: &Path,
        cluster: &str,
        specs: &Specs,
        limits: Limits,
    ) -> Result<Tested> {
        let options = Options {
            kubeconfig: kubeconfig.to_owned(),
            reports: self.reports(),
            processes: limits.processes,
            seconds: limits.time.as_secs(),
        };
        let began = Instant::now();
        let outcomes = self.runner()?.run(&specs.known, &specs.chosen, &options)?;
        let about = About {
            release: self.suite.obtained.release.clone(),
            cluster: cluster.to_owned(),
            machine: machine(),
            date: today()?,
            known: specs.known.len(),
            processes: limits.processes,
            took: began.elapsed(),
        };
        Ok(Tested { about, outcomes })
    }

    fn runner(&self) -> Result<Runner<'a>> {
        Runner::new(self.session, &self.suite, &self.userland)
    }
}

/// Names of specs.
#[derive(Clone, Debug)]
pub struct Specs {
    /// All of the programme.
    pub known: Vec<String>,
    /// Those to run.
    pub chosen: Vec<String>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Tested {
    /// What ran where.
    pub about: About,
    /// How each spec ended.
    pub outcomes: Vec<Outcome>,
}

/// Processors and kernel of this host.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = info
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = models
        .next()
        .map_or("unknown processor", |(_, model)| model);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Without the host's own suffix.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!("{cpus} × {model}, kernel {kernel}")
}

fn today() -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let text = rfc3339(
        now.context("this machine's clock is before 1970")?
            .as_secs(),
    );
    Ok(text.split('T').next().unwrap_or(&text).to_owned())
}
