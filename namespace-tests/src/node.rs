//! A node: its files, what the init leaves to it, and the services of its units.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use image::container_images::{IMAGES_COMMAND, INDEX, mark};
use image::kubelet::{
    ADDONS_COMMAND, ADMIN_KUBECONFIG, BALANCER_COMMAND, CERTS_COMMAND, CLUSTER_COMMAND, CONTAINER,
    GATE_COMMAND, PREPARE_COMMAND, REQUESTS_COMMAND, ROUTES_COMMAND, RUNTIME_SOCKET,
};
use image::node::EtcdGate;
use image::paths::{
    BUNDLE_FILE, CLUSTER, ETC_UPPER, ETC_WORK, ETCD, FACTORY, HOSTNAME, NODE_PROGRAM, RUN_CLUSTER,
    RUN_ETCD_GATE, RUN_KUBELET_BUNDLE, RUN_MANIFEST,
};

use nix::sys::resource::{Resource, getrlimit};

use crate::control_groups::ControlGroups;
use crate::hub::{GATEWAY, Hub};
use crate::image_root::ImageRoot;
use crate::namespace::{NodeView, Space, View, memory_disk, remove_memory_disk};
use crate::service::{Restart, Service, Unit, run, tail};

/// How long a short command on a node may take.
const QUESTION: Duration = Duration::from_secs(60);
/// How often a wait looks again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A script of the lab on the node that waits for containerd's socket.
const WAIT: &str = "/run/wait-containerd";
/// One that waits for the kubelet's health check, with which it says READY to systemd.
const WAIT_KUBELET: &str = "/run/wait-kubelet";

/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name, and what its folder and its card on the hub are called: up to 10 letters and digits.
    pub name: String,
    /// Its host name, if it is another one.
    pub hostname: Option<String>,
    /// The last number of its address on the hub.
    pub address: u8,
    /// Whether it has an etcd volume.
    pub control_plane: bool,
    /// The text of its cluster object, if it has one.
    pub object: Option<String>,
    /// The services that `start` starts beside containerd.
    pub services: Services,
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
    folder: PathBuf,
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
        for below in ["mount", "var", "etcd"] {
            let folder = folder.join(below);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        match fs::remove_dir_all(logs) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", logs.display()));
            }
            _ => {}
        }
        fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        // The gate of the kubelet proves that the volume is a file system, and not a folder of one.
        memory_disk(&folder.join("etcd"))?;
        let node = Self {
            options,
            folder: folder.to_owned(),
            logs: logs.to_owned(),
            image: image.clone(),
            running: None,
        };
        node.seed()?;
        Ok(node)
    }

    /// `/var` and the upper layer of `/etc`, as the init and a config leave them.
    fn seed(&self) -> Result<()> {
        let var = self.folder.join("var");
        copy_folders(
            &self
                .image
                .tree
                .join(FACTORY.trim_start_matches('/'))
                .join("var"),
            &var,
        )?;
        for path in [ETC_UPPER, ETC_WORK, ETCD] {
            fs::create_dir_all(self.below_var(path)).with_context(|| format!("making {path}"))?;
        }
        let id: String = fs::read_to_string("/proc/sys/kernel/random/uuid")
            .context("making a machine id")?
            .trim()
            .replace('-', "");
        self.write_etc(HOSTNAME, &format!("{}\n", self.hostname()))?;
        self.write_etc("/etc/machine-id", &format!("{id}\n"))?;
        let hosts = format!(
            "127.0.0.1 localhost\n{} {}\n",
            self.address(),
            self.hostname()
        );
        self.write_etc("/etc/hosts", &hosts)?;
        self.write_etc("/etc/containerd/config.toml", &self.containerd()?)?;
        if let Some(object) = &self.options.object {
            self.write_etc(CLUSTER, object)?;
        }
        Ok(())
    }

    /// The image's configuration of containerd but for two words: there is no systemd that makes control groups, and a host
    /// may have no CAP_SYS_RESOURCE to give a pod's process a lower score.
    fn containerd(&self) -> Result<String> {
        let file = self.image.tree.join("etc/containerd/config.toml");
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let section = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";
        ensure!(
            text.contains(section) && text.contains("SystemdCgroup = true"),
            "{} has another form than this lab knows",
            file.display()
        );
        Ok(text
            .replace("SystemdCgroup = true", "SystemdCgroup = false")
            .replace(
                section,
                &format!("{section}restrict_oom_score_adj = true\n"),
            ))
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
        format!("10.77.0.{}", self.options.address)
    }

    /// The folder of its files and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A path of the node's `/var` on this host.
    #[must_use]
    pub fn below_var(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Writes a file of the node's `/etc`, as a config does before the handoff.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_etc(&self, path: &str, text: &str) -> Result<()> {
        let below = path.trim_start_matches("/etc/");
        let file = self.below_var(ETC_UPPER).join(below);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
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

    /// Turns the node on: namespaces, network, what the init hands over, then its services.
    ///
    /// # Errors
    /// If the host refuses a part of it.
    pub fn start(&mut self, hub: &Hub) -> Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.options.name);
        let groups = ControlGroups::make(&self.options.name)?;
        let etcd = self.options.control_plane.then(|| self.folder.join("etcd"));
        let view = View::Node(Box::new(NodeView {
            root: self.image.tree.clone(),
            mount: self.folder.join("mount"),
            var: self.folder.join("var"),
            etcd,
            etc: (self.below_var(ETC_UPPER), self.below_var(ETC_WORK)),
            hostname: self.hostname().to_owned(),
            hierarchies: groups.hierarchies.clone(),
            joins: groups.joins(),
            joins_inside: groups.joins_inside(),
        }));
        let space = Arc::new(Space::start(&view)?);
        hub.attach(&self.options.name, space.holder)?;
        self.running = Some(Running {
            services: Vec::new(),
            space,
            groups,
            since: Instant::now(),
        });
        self.hand_over()?;
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

    /// What the init leaves below `/run`, the network, the kernel's settings of the recipe.
    fn hand_over(&self) -> Result<()> {
        let manifest = fs::read_to_string(&self.image.manifest).context("reading the manifest")?;
        let (number, required) = (
            device(&self.folder.join("etcd"))?,
            self.options.control_plane,
        );
        let gate = serde_json::to_string(&EtcdGate {
            required,
            device: required.then_some(number),
            filesystem: None,
            reason: None,
        })?;
        let address = self.address();
        self.run(&format!(
            "mkdir -p /run/slipway /run/systemd/resolve /run/systemd/timesync /run/lock
cat > {RUN_MANIFEST} <<'END'\n{manifest}\nEND
cat > {RUN_ETCD_GATE} <<'END'\n{gate}\nEND
echo 'nameserver {GATEWAY}' | tee /run/systemd/resolve/resolv.conf > /run/systemd/resolve/stub-resolv.conf
touch /run/systemd/timesync/synchronized
echo 'for i in {{1..1000}}; do [ ! -S {RUNTIME_SOCKET} ] || exit 0; sleep 0.02; done; exit 1' > {WAIT}
echo 'for i in {{1..3000}}; do 2>/dev/null exec 3<>/dev/tcp/127.0.0.1/10248 && exit 0; sleep 0.02; done; exit 1' > {WAIT_KUBELET}
ip link set lo up
ip addr add {address}/24 dev eth0 || {{ ip -d link; exit 1; }}
ip link set eth0 up
ip route add default via {GATEWAY}
for file in /etc/sysctl.d/50-kubernetes.conf; do grep ^net. $file | tr -d ' ' > /run/sysctl; done
sysctl -q -p /run/sysctl
systemd-tmpfiles --create --prefix=/var 2>/run/tmpfiles || true"
        ))?;
        Ok(())
    }

    fn services(&mut self) -> Result<()> {
        if let Some(mark) = self.images_mark()?
            && !self.below_var(&mark).exists()
        {
            self.run(&format!("{NODE_PROGRAM} {IMAGES_COMMAND}"))?;
        }
        self.serve(Unit {
            name: "containerd",
            before: Vec::new(),
            start: "/usr/bin/containerd".to_owned(),
            after: None,
            restart: Restart::Always(Duration::from_secs(5)),
        });
        if self.options.services == Services::All {
            let second = Restart::OnFailure(Duration::from_secs(1));
            self.serve(own("balancer", BALANCER_COMMAND, second));
            self.start_kubelet()?;
            self.serve(Unit {
                before: vec![format!("/bin/bash {WAIT_KUBELET}")],
                after: Some(format!("-{NODE_PROGRAM} {ROUTES_COMMAND}")),
                ..own(
                    "cluster",
                    CLUSTER_COMMAND,
                    Restart::OnFailure(Duration::from_secs(5)),
                )
            });
            self.serve(own(
                "addons",
                ADDONS_COMMAND,
                Restart::OnFailure(Duration::from_secs(30)),
            ));
            let half_a_minute = Restart::Every(Duration::from_secs(30));
            self.serve(own("routes", ROUTES_COMMAND, half_a_minute));
            self.serve(own("requests", REQUESTS_COMMAND, half_a_minute));
            let daily = Restart::Every(Duration::from_secs(24 * 3600));
            self.serve(own("certs", CERTS_COMMAND, daily));
        }
        Ok(())
    }

    /// Starts the kubelet's unit: its gate, its preparation, its container. containerd's socket is waited for, as systemd waits
    /// for containerd's notification.
    ///
    /// # Errors
    /// If this host's limits cannot be read.
    pub fn start_kubelet(&mut self) -> Result<()> {
        // A host that is itself a container may have neither the limit of open files nor the capability to raise it.
        let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).context("reading a limit")?;
        let files = files.min(1_048_576);
        let lacks = match has_resource_capability()? {
            true => "",
            false => "-e /CAP_SYS_RESOURCE/d",
        };
        self.serve(Unit {
            name: "kubelet",
            before: vec![
                format!("/bin/bash {WAIT}"),
                format!("{NODE_PROGRAM} {GATE_COMMAND}"),
                format!("{NODE_PROGRAM} {PREPARE_COMMAND}"),
                format!("/bin/sed -i -e s/1048576/{files}/ {lacks} {RUN_KUBELET_BUNDLE}/{BUNDLE_FILE}"),
                format!("-/usr/bin/crun delete --force {CONTAINER}"),
            ],
            start: format!(
                "/usr/bin/crun --cgroup-manager=disabled run --bundle {RUN_KUBELET_BUNDLE} {CONTAINER}"
            ),
            after: None,
            restart: Restart::Always(Duration::from_secs(2)),
        });
        Ok(())
    }

    fn serve(&mut self, unit: Unit) {
        if let Some(running) = &mut self.running {
            let name = unit.name;
            let service = Service::start(Arc::clone(&running.space), unit, &self.logs);
            running.services.push((name, service));
        }
    }

    /// The mark of the image's container images, if it brings any.
    fn images_mark(&self) -> Result<Option<String>> {
        let index = self.image.tree.join(INDEX.trim_start_matches('/'));
        if !index.exists() {
            return Ok(None);
        }
        let list: serde_json::Value = serde_json::from_slice(&fs::read(&index)?)
            .with_context(|| format!("reading {}", index.display()))?;
        Ok(list["key"].as_str().map(mark))
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
            let mut services = running.services.iter();
            let bring_up = services.find(|(name, _)| *name == "cluster");
            if bring_up.is_some_and(|(_, service)| service.is_done()) {
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
        files.extend(newest_pod_logs(&self.below_var("/var/log/pods")));
        let mut out = String::new();
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if !text.is_empty() {
                let name = file.strip_prefix(&self.folder).unwrap_or(&file).display();
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

    /// Whether it is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.running.is_some()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let ended = self.cut();
        let ended = ended.and_then(|()| remove_memory_disk(&self.folder.join("etcd")));
        if let Err(error) = ended {
            eprintln!("ending {}: {error:#}", self.options.name);
        }
    }
}

/// A unit that runs a command of `slipway-node`.
fn own(name: &'static str, command: &str, restart: Restart) -> Unit {
    Unit {
        name,
        before: Vec::new(),
        start: format!("{NODE_PROGRAM} {command}"),
        after: None,
        restart,
    }
}

/// Whether this process has CAP_SYS_RESOURCE (capabilities(7)), number 24.
fn has_resource_capability() -> Result<bool> {
    let text = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let all = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let all = all.context("finding the capabilities in /proc/self/status")?;
    Ok(u64::from_str_radix(all.trim(), 16)? & (1 << 24) != 0)
}

/// `major:minor` of the device of a path, as mountinfo has it.
fn device(path: &Path) -> Result<String> {
    let number = fs::metadata(path)?.dev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    Ok(format!("{major}:{minor}"))
}

/// The newest log of each container below the folder of the pods' logs.
fn newest_pod_logs(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let all = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = all.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let pods = entries(folder).into_iter();
    let containers = pods.flat_map(|pod| entries(&pod));
    containers
        .filter_map(|container| entries(&container).pop())
        .collect()
}

/// Copies a tree of folders and files, with their modes.
fn copy_folders(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_folders(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copying {}", entry.path().display()))?;
        }
    }
    Ok(())
}
