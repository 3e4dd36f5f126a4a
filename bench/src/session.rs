//! The state of one run: cache, folders, and the products that several measurements share.

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
use slipway::steps::kernel::{self, Kernel};
use slipway::vm::disks::Node;

use crate::dracut;
use crate::mkosi::Mkosi;
use crate::ours::Ours;
use crate::peers::Peers;

/// The state of a run.
pub(crate) struct Session {
    // Fields are dropped in this order: the first ones work in the scratch folder.
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
    /// Begins a run. Locks and consoles are kept in `target/bench`.
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

    /// The folder that is kept after the run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder that is removed after the run.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, text: &str) {
        self.tool.progress.say(text);
    }

    /// Our builds, prepared on the first call.
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

    /// mkosi, after its first build.
    pub(crate) fn mkosi(&mut self) -> Result<Rc<Mkosi>> {
        if self.mkosi.is_none() {
            let (peers, ours, work) = (self.peers()?, self.ours()?, self.work()?);
            self.say("mkosi's first build, which fetches its packages");
            self.mkosi = Some(Rc::new(Mkosi::prepare(&peers, &work, &ours.locked.recipe)?));
        }
        self.mkosi.clone().context("preparing mkosi")
    }

    /// dracut's initrd for our kernel.
    pub(crate) fn dracut_initrd(&mut self) -> Result<PathBuf> {
        if self.dracut.is_none() {
            let (peers, ours, work) = (self.peers()?, self.ours()?, self.work()?);
            let session = &self.tool;
            let fetch = |set| ours.locked.fetch(session, set);
            let tools = tools::install(session, "tools", &fetch(SET_TOOLS_BUILD)?)?;
            let kernel = kernel::unpack(session, &tools, &fetch(SET_KERNEL)?)?;
            self.say("making dracut's initrd");
            self.dracut = Some(dracut::make(&peers, &work, &kernel)?);
        }
        self.dracut.clone().context("making dracut's initrd")
    }

    /// The initrds that dracut and mkosi make for a kernel for all machines, of this package and unpacked: each peer's name
    /// and its file.
    pub(crate) fn generic_initrds(
        &mut self,
        package: &str,
        kernel: &Kernel,
    ) -> Result<[(&'static str, PathBuf); 2]> {
        let (peers, ours) = (self.peers()?, self.ours()?);
        let work = self.scratch.path().join("generic");
        fs::create_dir_all(&work)?;
        self.say("making dracut's initrd with all drivers");
        let dracut = dracut::make(&peers, &work, kernel)?;
        let mut recipe = ours.locked.recipe.clone();
        package.clone_into(&mut recipe.kernel.package);
        self.say("building with mkosi for its initrd with all drivers");
        let mkosi = Mkosi::prepare(&peers, &work, &recipe)?.initrd()?;
        Ok([("dracut", dracut), ("mkosi", mkosi)])
    }

    /// The lab with the demo's image.
    pub(crate) fn lab(&mut self) -> Result<&mut Lab> {
        if self.lab.is_none() {
            self.say("building the demo");
            self.lab = Some(Lab::open()?);
        }
        self.lab.as_mut().context("opening the lab")
    }

    /// A node of the demo after its first boot and a clean shutdown, and the peak memory of its init, KiB.
    pub(crate) fn provisioned(&mut self) -> Result<(Node, u64)> {
        if self.provisioned.is_none() {
            self.lab()?;
            self.say("first boot of a node");
            let lab = self.lab()?;
            let node = lab.node()?;
            let running = lab.boot(&node, &BootOptions::default())?;
            running.wait_handoff(timeouts::HANDOFF)?;
            running.wait_services()?;
            let handoff = Handoff::find(&running.vm.console().text());
            let peak = handoff
                .and_then(|handoff| handoff.peak_kib)
                .context("the handoff line has no peak memory")?;
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
