//! A node: its files, what the init leaves to it, and the services of its units.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use image::container_images::{IMAGES_COMMAND, INDEX};
use image::kubelet::ADMIN_KUBECONFIG;
use image::paths::{ETC_UPPER, ETC_WORK, NODE_PROGRAM, RUN_CLUSTER, RUN_METADATA};

use crate::control_groups::ControlGroups;
use crate::disks::Disks;
use crate::handover;
use crate::hub::{Hub, Network};
use crate::image_root::ImageRoot;
use crate::mounts::NodeView;
use crate::namespace::{Space, View};
use crate::service::{Service, Unit, run, tail};
use crate::units;

/// How long a short command on a node may take.
const QUESTION: Duration = Duration::from_secs(60);
/// How often a wait looks again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name, and what its folder and its card on the hub are called: up to 10 letters and digits.
    pub name: String,
    /// Its host name, if it is another one.
    pub hostname: Option<String>,
    /// The network of its card.
    pub network: Network,
    /// The last number of its address there.
    pub address: u8,
    /// Whether it has an etcd volume.
    pub control_plane: bool,
    /// The text of its cluster object, if it has one.
    pub object: Option<String>,
    /// What its cloud says of it, as the init leaves it in `/run/metadata`.
    pub metadata: Option<String>,
    /// The services that `start` starts beside containerd.
    pub services: Services,
    /// The size of a `/var` that can be full, MiB; otherwise it is on this host's disk.
    pub var: Option<u32>,
}

/// Which services of the image run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// The kubelet, the bring-up, the addons and the timers.
    All,
    /// containerd alone: kubeadm does the rest.
    Runtime,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    options: NodeOptions,
    disks: Disks,
    logs: PathBuf,
    image: ImageRoot,
    running: Option<Running>,
}

/// What ends with a power cut.
#[derive(Debug)]
struct Running {
    // Dropped in this order: nothing is started anew, then the processes end, then their groups go.
    services: Vec<(&'static str, Service)>,
    space: Arc<Space>,
    groups: ControlGroups,
    since: Instant,
}

impl Node {
    /// A new node with empty disks; `folder` is its own, `logs` is where the logs of its services stay.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn new(
        image: &ImageRoot,
        options: NodeOptions,
        folder: &Path,
        logs: &Path,
    ) -> Result<Self> {
        match fs::remove_dir_all(logs) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", logs.display()));
            }
            _ => {}
        }
        fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        let disks = Disks::make(folder, options.var)?;
        let node = Self {
            options,
            disks,
            logs: logs.to_owned(),
            image: image.clone(),
            running: None,
        };
        let host = (node.hostname(), &*node.address());
        node.disks
            .seed(image, host, node.options.object.as_deref())?;
        Ok(node)
    }

    /// The host name.
    #[must_use]
    pub fn hostname(&self) -> &str {
        self.options
            .hostname
            .as_deref()
            .unwrap_or(&self.options.name)
    }

    /// The address on the hub.
    #[must_use]
    pub fn address(&self) -> String {
        self.options.network.address(self.options.address)
    }

    /// The address of IPv6 on the hub.
    #[must_use]
    pub fn address_6(&self) -> String {
        self.options.network.address_6(self.options.address)
    }

    /// The folder of its files and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.disks.folder
    }

    /// A path of the node's `/var` on this host.
    #[must_use]
    pub fn below_var(&self, path: &str) -> PathBuf {
        self.disks.below_var(path)
    }

    /// Writes a file of the node's `/etc`, as a config does before the handoff.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_etc(&self, path: &str, text: &str) -> Result<()> {
        self.disks.write_etc(path, text)
    }

    /// Writes a file of the running node.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_running(&self, path: &str, text: &str) -> Result<()> {
        self.run(&format!(
            "mkdir -p $(dirname {path})\ncat > {path} <<'END'\n{text}\nEND"
        ))?;
        Ok(())
    }

    /// Chooses the image of the next starts of a node that is off, as an update and its rollback do: the disks stay.
    ///
    /// # Errors
    /// If it is on, or a file cannot be written.
    pub fn boot_from(&mut self, image: &ImageRoot) -> Result<()> {
        ensure!(!self.is_on(), "{} is on", self.options.name);
        self.disks.configure_containerd(image)?;
        self.image = image.clone();
        Ok(())
    }

    /// Turns the node on: namespaces, network, what the init hands over, then its services.
    ///
    /// # Errors
    /// If the host refuses a part of it.
    pub fn start(&mut self, hub: &Hub) -> Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.options.name);
        let groups = ControlGroups::make(&self.options.name)?;
        let view = View::Node(Box::new(NodeView {
            root: self.image.tree.clone(),
            mount: self.folder().join("mount"),
            var: self.folder().join("var"),
            etcd: self.options.control_plane.then(|| self.disks.etcd()),
            etc: (self.below_var(ETC_UPPER), self.below_var(ETC_WORK)),
            hostname: self.hostname().to_owned(),
            hierarchies: groups.hierarchies.clone(),
            joins: groups.joins(),
            joins_inside: groups.joins_inside(),
        }));
        let space = Arc::new(Space::start(&view)?);
        hub.attach(&self.options.name, self.options.network, space.holder)?;
        self.running = Some(Running {
            services: Vec::new(),
            space,
            groups,
            since: Instant::now(),
        });
        self.run(&handover::script(
            &self.image,
            (&self.address(), &self.options.network.gateway()),
            (&self.address_6(), &self.options.network.address_6(1)),
            self.options.control_plane.then_some(&self.disks),
        )?)?;
        if let Some(text) = &self.options.metadata {
            self.write_running(RUN_METADATA, text)?;
        }
        if let Some(running) = &mut self.running {
            running.since = Instant::now();
        }
        self.services()
    }

    /// The time since the handoff: since the first of its services was started.
    #[must_use]
    pub fn since_handoff(&self) -> Duration {
        let running = self.running.as_ref();
        running.map_or(Duration::ZERO, |running| running.since.elapsed())
    }

    fn services(&mut self) -> Result<()> {
        let index = INDEX.trim_start_matches('/');
        if self.image.tree.join(index).exists() {
            self.run(&format!("{NODE_PROGRAM} {IMAGES_COMMAND}"))?;
        }
        self.serve(units::containerd());
        if self.options.services == Services::All {
            self.serve(units::balancer());
            self.serve(units::election());
            self.start_kubelet()?;
            self.serve(units::cluster());
            for unit in units::upkeep() {
                self.serve(unit);
            }
        }
        Ok(())
    }

    /// Starts the kubelet's unit.
    ///
    /// # Errors
    /// If this host's limits cannot be read.
    pub fn start_kubelet(&mut self) -> Result<()> {
        self.serve(units::kubelet()?);
        Ok(())
    }

    fn serve(&mut self, unit: Unit) {
        if let Some(running) = &mut self.running {
            let name = unit.name;
            let service = Service::start(Arc::clone(&running.space), unit, &self.logs);
            running.services.push((name, service));
        }
    }

    /// Runs a script on the node.
    ///
    /// # Errors
    /// If it fails, with what it printed.
    pub fn run(&self, script: &str) -> Result<String> {
        self.run_within(script, QUESTION)
    }

    /// The same with another limit.
    ///
    /// # Errors
    /// If it fails or takes longer, with what it printed.
    pub fn run_within(&self, script: &str, patience: Duration) -> Result<String> {
        let running = self.running.as_ref();
        let running = running.with_context(|| format!("{} is off", self.options.name))?;
        run(&running.space, script, patience)
            .with_context(|| format!("on the node {}", self.options.name))
    }

    /// Runs kubectl with the administrator's credentials of a control plane.
    ///
    /// # Errors
    /// If it fails, with what it printed.
    pub fn kubectl(&self, arguments: &str) -> Result<String> {
        self.run(&format!(
            "kubectl --kubeconfig {ADMIN_KUBECONFIG} {arguments}"
        ))
    }

    /// Runs a script until it succeeds.
    ///
    /// # Errors
    /// The last failure, once the patience is over, with the logs' ends.
    pub fn wait_for(&self, what: &str, script: &str, patience: Duration) -> Result<String> {
        let until = Instant::now() + patience;
        loop {
            match self.run(script) {
                Ok(text) => return Ok(text),
                Err(error) if Instant::now() >= until => {
                    return Err(error.context(format!(
                        "waiting for {what} on {} for {} s\n{}",
                        self.options.name,
                        patience.as_secs(),
                        self.logs()
                    )));
                }
                Err(_) => sleep(LOOK_EVERY),
            }
        }
    }

    /// Waits until the bring-up has ended, with a Ready node. Gives the time since the handoff.
    ///
    /// # Errors
    /// If it has not after this time, with what it waits for.
    pub fn wait_ready(&self, patience: Duration) -> Result<Duration> {
        let running = self.running.as_ref().context("the node is off")?;
        let until = Instant::now() + patience;
        loop {
            if self.is_ready() {
                return Ok(running.since.elapsed());
            }
            if Instant::now() >= until {
                let line = self.run(&format!("cat {RUN_CLUSTER}")).unwrap_or_default();
                bail!(
                    "{} is not Ready after {} s; it waits for: {}\n{}",
                    self.options.name,
                    patience.as_secs(),
                    line.trim(),
                    self.logs()
                );
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Whether the bring-up has ended, with a Ready node.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let services = self.running.iter().flat_map(|running| &running.services);
        let mut done = services.filter(|(_, service)| service.is_done());
        done.any(|(name, _)| *name == "cluster")
    }

    /// The log of a service of this run.
    #[must_use]
    pub fn log(&self, service: &str) -> String {
        fs::read_to_string(self.logs.join(format!("{service}.log"))).unwrap_or_default()
    }

    /// The ends of the node's logs, and of those of its static pods.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut files: Vec<PathBuf> = ["kubelet", "cluster", "addons", "routes"]
            .map(|name| self.logs.join(format!("{name}.log")))
            .into();
        files.extend(self.disks.newest_pod_logs());
        let mut out = String::new();
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if !text.is_empty() {
                let name = file.strip_prefix(self.folder()).unwrap_or(&file).display();
                out += &format!("--- {name} of {}\n{}\n", self.options.name, tail(&text));
            }
        }
        out
    }

    /// The power is cut: every process ends at once, memory is gone, the disks stay.
    ///
    /// # Errors
    /// If the node's control groups stay busy.
    pub fn cut(&mut self) -> Result<()> {
        // A connection whose other end is gone keeps the network of a dead node for a minute, which would answer beside that of the
        // next one. Without its card it is silent.
        let unplugged = match self.is_on() {
            true => self.run("ip link del eth0").map(drop),
            false => Ok(()),
        };
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        for (_, service) in &running.services {
            service.end();
        }
        running.space.end();
        drop(running.services);
        drop(running.space);
        running.groups.remove()?;
        unplugged
    }

    /// Gives a node that is off an empty etcd volume in place of its own.
    ///
    /// # Errors
    /// If it is on, or the volume cannot be emptied.
    pub fn empty_etcd(&mut self) -> Result<()> {
        ensure!(!self.is_on(), "{} is on", self.options.name);
        self.disks.empty_etcd()
    }

    /// Whether it is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.running.is_some()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.cut() {
            eprintln!("ending {}: {error:#}", self.options.name);
        }
    }
}
