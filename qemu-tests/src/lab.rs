//! The lab: the built image, the tools, and one machine at a time.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use slipway::host::cache::Scratch;
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::Mode;
use slipway::pipeline::{self, Built, Request};
use slipway::recipe::{Choice, SET_ETCD, SET_TOOLS_BUILD};
use slipway::vm::accel;
use slipway::vm::agent::{PORT, Secret, Start};
use slipway::vm::channel::Channel;
use slipway::vm::disks::Node;
use slipway::vm::machine::disk::{Bus, Disk};
use slipway::vm::machine::{Accel, Machine, OnReset, files};
use slipway::vm::process::Vm;
use slipway::vm::run::{self, Image, Options};

use crate::running::Running;
use crate::timeouts;

#[cfg(test)]
mod tests;

/// The state that all promises share.
#[derive(Debug)]
pub struct Lab {
    /// The image of the demo's recipe, or of the one that the lab was opened with.
    pub image: Image,
    /// QEMU and its companion programs.
    pub tools: Tools,
    /// The programs that make and examine images.
    pub build_tools: Tools,
    /// The packages of the demo's container images, etcd among them.
    pub etcd: Tools,
    accel: Accel,
    session: Session,
    scratch: Scratch,
    folder: PathBuf,
    nodes: usize,
    consoles: Vec<Channel>,
    shared: Option<Running>,
}

/// How a machine is booted.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// The config, given by fw_cfg; the agent is merged into it.
    pub config: Option<Value>,
    /// Kernel and initrd are loaded directly, without firmware.
    pub direct: bool,
    /// Whether there is an etcd disk.
    pub etcd: bool,
    /// The disks' controller.
    pub bus: Bus,
    /// Whether the network's packets are captured.
    pub capture: bool,
    /// The effect of a reset.
    pub on_reset: OnReset,
    /// Additional disks.
    pub more: Vec<Disk>,
    /// Whether the machine has a TPM 2.
    pub tpm: bool,
    /// The image that the node was made from, if it is not the demo's.
    pub image: Option<Image>,
}

impl Default for BootOptions {
    fn default() -> Self {
        Self {
            config: None,
            direct: true,
            etcd: true,
            bus: Bus::Virtio,
            capture: false,
            on_reset: OnReset::Restart,
            more: Vec::new(),
            tpm: false,
            image: None,
        }
    }
}

impl Lab {
    /// Builds the image of `recipes/demo.toml`, unless it is built already, and the tools that run it.
    ///
    /// # Errors
    /// If a build step fails.
    pub fn open() -> Result<Self> {
        Self::of("recipes/demo")
    }

    /// The same with the image of another recipe that has etcd, named by its path in the repository without its ending.
    ///
    /// # Errors
    /// If a build step fails.
    pub fn of(recipe: &str) -> Result<Self> {
        let folder = workspace()?.join("target/qemu-tests");
        fs::create_dir_all(&folder)?;
        let session = Session::open(Kind::Quiet)?;
        let built = build(recipe, &folder)?;
        let tools = pipeline::tools_run(&session, &built.locked)?;
        let debs = built.locked.fetch(&session, SET_TOOLS_BUILD)?;
        let build_tools = tools::install(&session, "tools", &debs)?;
        let debs = built.locked.fetch(&session, SET_ETCD)?;
        let etcd = tools::install(&session, "etcd", &debs)?;
        let (accel, _) = accel::choose(&tools, accel::Choice::Auto)?;
        Ok(Self {
            image: Image::open(&built.out)?,
            tools,
            build_tools,
            etcd,
            accel,
            scratch: session.cache.scratch()?,
            session,
            folder,
            nodes: 0,
            consoles: Vec::new(),
            shared: None,
        })
    }

    /// A builder for the repository's other recipes, which also works while a machine runs.
    #[must_use]
    pub fn builder(&self) -> Builder {
        Builder {
            folder: self.folder.clone(),
        }
    }

    /// The session of this run: its cache, and a progress display that prints nothing.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The folder that is kept between runs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the repository's recipes.
    #[must_use]
    pub fn recipes(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes")
    }

    /// Begins a new promise: from now on the consoles are those of its machines, and of the shared node if it still
    /// runs. The disks of all other nodes are removed; together they would need tens of gigabytes.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn begin(&mut self) -> Result<()> {
        let shared = self.shared.as_ref().map(|running| running.node.folder());
        remove_nodes(self.scratch.path(), shared)?;
        self.consoles = self
            .shared
            .iter()
            .map(|running| running.vm.console().clone())
            .collect();
        Ok(())
    }

    /// The text of the consoles of the current promise.
    #[must_use]
    pub fn consoles(&self) -> Vec<String> {
        self.consoles.iter().map(Channel::text).collect()
    }

    /// What QEMU said of itself in the machines of the current promise.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.path()).into_iter().flatten();
        entries
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join(files::STDERR)).ok())
            .collect()
    }

    /// Drops the shared node after a failed promise, which may have left it in any condition.
    pub(crate) fn abandon(&mut self) {
        self.shared = None;
    }

    /// The files of a new node with a copy of the image's disk.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn node(&mut self) -> Result<Node> {
        let disk = self.image.disk.clone();
        self.node_of(&disk)
    }

    /// The files of a new node with a copy of another image's disk.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn node_of(&mut self, disk: &Path) -> Result<Node> {
        self.nodes += 1;
        let folder = self.scratch.path().join(format!("{NODE}{}", self.nodes));
        Node::prepare(&folder, disk, &self.tools)
    }

    /// Boots a node. The shared node, if it runs, is ended first: only one machine runs at a time.
    ///
    /// # Errors
    /// If the machine does not start.
    pub fn boot(&mut self, node: &Node, plan: &BootOptions) -> Result<Running> {
        let machine = self.machine(node, plan)?;
        self.start(node, machine, plan.config.clone())
    }

    /// The machine for these options, which a promise may change before its start.
    ///
    /// # Errors
    /// If a file of it cannot be made.
    pub fn machine(&self, node: &Node, plan: &BootOptions) -> Result<Machine> {
        let options = Options {
            direct: plan.direct,
            etcd: plan.etcd,
            bus: plan.bus,
            tpm: plan.tpm,
            ..Options::default()
        };
        let image = plan.image.as_ref().unwrap_or(&self.image);
        let mut machine = run::machine(image, node, &options, self.accel)?;
        machine.capture = plan.capture;
        machine.on_reset = plan.on_reset;
        machine.disks.extend(plan.more.iter().cloned());
        Ok(machine)
    }

    /// Starts a machine with the agent's config, merged under the given one, which it gets by fw_cfg.
    ///
    /// # Errors
    /// If the machine does not start.
    pub fn start(
        &mut self,
        node: &Node,
        mut machine: Machine,
        config: Option<Value>,
    ) -> Result<Running> {
        let path = node.folder().join("config.ign");
        let config = with_agent(node, config)?;
        fs::write(&path, config.to_string()).context("writing the node's config")?;
        machine.config = Some(path);
        self.launch(node, machine)
    }

    /// Starts a machine whose config, which has the agent ([`with_agent`]), is in the machine already or comes from its disks.
    ///
    /// # Errors
    /// If the machine does not start.
    pub fn launch(&mut self, node: &Node, mut machine: Machine) -> Result<Running> {
        self.shared = None;
        machine.ports.push(PORT.to_owned());
        let folder = node.folder().to_owned();
        let vm = Vm::start(&self.tools, &machine, &folder, None)?;
        self.consoles.push(vm.console().clone());
        Ok(Running {
            vm,
            node: node.clone(),
            secret: node_secret(node)?,
            folder,
        })
    }

    /// A control plane that was booted by UEFI with the probes in `config`, and has become healthy. The first call
    /// boots the node; promises about a running node share it.
    ///
    /// # Errors
    /// If it does not become healthy.
    pub fn healthy(&mut self, config: &Value) -> Result<&Running> {
        let running = match self.shared.take() {
            Some(running) => running,
            None => {
                let node = self.node()?;
                let plan = BootOptions {
                    config: Some(config.clone()),
                    direct: false,
                    ..BootOptions::default()
                };
                let running = self.boot(&node, &plan)?;
                running.wait_handoff(timeouts::HANDOFF)?;
                running.wait_services()?;
                running.wait_healthy()?;
                running
            }
        };
        Ok(self.shared.insert(running))
    }

    /// Takes the shared node out, for a promise that changes it.
    ///
    /// # Errors
    /// The same as [`Lab::healthy`].
    pub fn take_healthy(&mut self, config: &Value) -> Result<Running> {
        self.healthy(config)?;
        self.shared.take().context("taking the shared node")
    }

    /// Shares a node with the following promises. Its state must be that of a node from [`Lab::healthy`].
    pub fn share(&mut self, running: Running) {
        self.shared = Some(running);
    }
}

/// Builds recipes of the repository.
#[derive(Clone, Debug)]
pub struct Builder {
    folder: PathBuf,
}

impl Builder {
    /// Builds a recipe, named by its path in the repository without its ending.
    ///
    /// # Errors
    /// If a build step fails.
    pub fn build(&self, recipe: &str) -> Result<Image> {
        let built = build(recipe, &self.folder);
        Image::open(
            &built
                .with_context(|| format!("building {recipe}.toml"))?
                .out,
        )
    }
}

/// What the names of nodes' folders begin with.
const NODE: &str = "node-";

/// Removes the folders of all nodes in `scratch` but one.
fn remove_nodes(scratch: &Path, except: Option<&Path>) -> Result<()> {
    for entry in fs::read_dir(scratch).context("listing the nodes")? {
        let entry = entry.context("listing the nodes")?;
        let is_node = entry.file_name().to_string_lossy().starts_with(NODE);
        if is_node && Some(entry.path().as_path()) != except {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}

fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("finding the workspace")
}

fn build(recipe: &str, folder: &Path) -> Result<Built> {
    let request = Request {
        recipe: workspace()?.join(format!("{recipe}.toml")),
        output: folder.to_owned(),
        choice: Choice::default(),
        lock: Mode::Make,
    };
    pipeline::build(&Session::open(Kind::Quiet)?, &request)
}

/// The secret of a node, kept in its folder: the config, which contains it, is applied at the first boot only.
fn node_secret(node: &Node) -> Result<Secret> {
    Secret::keep(&node.folder().join("secret"))
}

/// The given config with the files and units of the node's agent.
///
/// # Errors
/// If the agent's secret cannot be read or written.
pub fn with_agent(node: &Node, config: Option<Value>) -> Result<Value> {
    Ok(merged(node_secret(node)?.config(Start::Early), config))
}

/// The given config with the agent's files and units added.
fn merged(agent: Value, config: Option<Value>) -> Value {
    let Some(mut config) = config else {
        return agent;
    };
    for pointer in ["/storage/files", "/systemd/units"] {
        let more = agent.pointer(pointer).and_then(Value::as_array);
        let (outer, inner) = pointer[1..].split_once('/').unwrap_or_default();
        if let Some(list) = config[outer][inner].as_array_mut() {
            list.extend(more.into_iter().flatten().cloned());
        } else {
            config[outer][inner] = more.cloned().into();
        }
    }
    config
}
