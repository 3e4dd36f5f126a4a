//! What the measurements share: one cache, one folder for this run, and what is made for several of them once.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use image::report::Handoff;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::host::cache::Scratch;
use slipway::host::progress::Kind;
use slipway::host::session;
use slipway::install::tools;
use slipway::recipe::{SET_KERNEL, SET_TOOLS_BUILD};
use slipway::steps::kernel;
use slipway::vm::disks::Node;

use crate::dracut;
use crate::mkosi::Mkosi;
use crate::ours::Ours;
use crate::peers::Peers;

/// The state of a run.
pub(crate) struct Session {
    // Before the scratch folder that they work in: fields are dropped in this order.
    lab: Option<Lab>,
    ours: Option<Rc<Ours>>,
    peers: Option<Rc<Peers>>,
    mkosi: Option<Rc<Mkosi>>,
    dracut: Option<PathBuf>,
    provisioned: Option<(Node, u64)>,
    tool: session::Session,
    folder: PathBuf,
    scratch: Scratch,
}

impl Session {
    /// Begins a run. What must survive it (locks, consoles) goes to `target/bench`.
    ///
    /// # Errors
    /// If the cache cannot be opened.
    pub(crate) fn open() -> Result<Self> {
        let folder = workspace()?.join("target/bench");
        fs::create_dir_all(&folder)?;
        let tool = session::Session::open(Kind::Plain)?;
        let scratch = tool.cache.scratch()?;
        Ok(Self {
            lab: None,
            ours: None,
            peers: None,
            mkosi: None,
            dracut: None,
            provisioned: None,
            tool,
            folder,
            scratch,
        })
    }

    /// The tool's session for everything but the measured builds.
    pub(crate) fn tool(&self) -> &session::Session {
        &self.tool
    }

    /// What is kept after the run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is removed after the run.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Tells the person how far it is.
    pub(crate) fn say(&self, text: &str) {
        self.tool.progress.say(text);
    }

    /// Our builds.
    ///
    /// # Errors
    /// If their packages cannot be had.
    pub(crate) fn ours(&mut self) -> Result<Rc<Ours>> {
        if self.ours.is_none() {
            let recipes = workspace()?.join("recipes");
            let folder = self.scratch.path().join("ours");
            let ours = Ours::prepare(&self.tool, &folder, &recipes)?;
            self.ours = Some(Rc::new(ours));
        }
        self.ours.clone().context("preparing our builds")
    }

    /// The folder that the peers work in.
    fn work(&self) -> Result<PathBuf> {
        let work = self.scratch.path().join("peers");
        fs::create_dir_all(&work)?;
        Ok(work)
    }

    fn peers(&mut self) -> Result<Rc<Peers>> {
        if self.peers.is_none() {
            let peers = Peers::open(&self.tool, &self.folder)?;
            self.peers = Some(Rc::new(peers));
        }
        self.peers.clone().context("installing the peers")
    }

    /// mkosi, which has built once.
    ///
    /// # Errors
    /// If it does not.
    pub(crate) fn mkosi(&mut self) -> Result<Rc<Mkosi>> {
        if self.mkosi.is_none() {
            let (peers, ours, work) = (self.peers()?, self.ours()?, self.work()?);
            self.say("mkosi builds once, to have its packages");
            self.mkosi = Some(Rc::new(Mkosi::prepare(&peers, &work, &ours.locked.recipe)?));
        }
        self.mkosi.clone().context("preparing mkosi")
    }

    /// dracut's initrd for the kernel that we build with.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn dracut_initrd(&mut self) -> Result<PathBuf> {
        if self.dracut.is_none() {
            let (peers, ours, work) = (self.peers()?, self.ours()?, self.work()?);
            let session = &self.tool;
            let fetch = |set| ours.locked.fetch(session, set);
            let tools = tools::install(session, "tools", &fetch(SET_TOOLS_BUILD)?)?;
            let kernel = kernel::unpack(session, &tools, &fetch(SET_KERNEL)?)?;
            self.say("dracut makes its initrd");
            self.dracut = Some(dracut::make(&peers, &work, &kernel)?);
        }
        self.dracut.clone().context("making dracut's initrd")
    }

    /// The laboratory with the demo's image.
    ///
    /// # Errors
    /// If the demo cannot be built.
    pub(crate) fn lab(&mut self) -> Result<&mut Lab> {
        if self.lab.is_none() {
            self.say("the demo is built, or found built");
            self.lab = Some(Lab::open()?);
        }
        self.lab.as_mut().context("opening the laboratory")
    }

    /// A node of the demo that was booted once and switched itself off, and the most memory that its init took, KiB.
    ///
    /// # Errors
    /// If the boot fails.
    pub(crate) fn provisioned(&mut self) -> Result<(Node, u64)> {
        if self.provisioned.is_none() {
            self.lab()?;
            self.say("a node boots for the first time");
            let lab = self.lab()?;
            let node = lab.node()?;
            let running = lab.boot(&node, &BootOptions::default())?;
            running.wait_handoff(timeouts::HANDOFF)?;
            running.wait_services()?;
            let handoff = Handoff::find(&running.vm.console().text());
            let peak = handoff
                .and_then(|handoff| handoff.peak_kib)
                .context("the init did not say its memory")?;
            running.power_off()?;
            self.provisioned = Some((node, peak));
        }
        self.provisioned.clone().context("provisioning a node")
    }
}

fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("finding the workspace")
}
