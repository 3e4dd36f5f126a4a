//! The lab: the image, the hub, and the nodes of one test at a time.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::host::cache::Scratch;
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::install::tools;
use slipway::lock::Mode;
use slipway::pipeline::{self, Request};
use slipway::recipe::{Choice, SET_TOOLS_BUILD};

use crate::host_settings::HostSettings;
use crate::hub::{Hub, Network};
use crate::image_root::ImageRoot;
use crate::mounts::own_mounts;
use crate::node::{Node, NodeOptions, Services};

/// What the kubelet and kube-proxy need in namespaces: control groups without systemd, of version 1 too, and no settings of the
/// whole kernel.
const IN_NAMESPACES: &str = r#"
[proxy]
config = { conntrack = { maxPerCore = 0, min = 0, tcpCloseWaitTimeout = "0s", tcpEstablishedTimeout = "0s" } }
[kubelet]
config = { cgroupDriver = "cgroupfs", failCgroupV1 = false, kubeletCgroups = "", enforceNodeAllocatable = [], evictionHard = { "memory.available" = "1Mi", "nodefs.available" = "1Mi", "nodefs.inodesFree" = "1%", "imagefs.available" = "1Mi" }, imageGCHighThresholdPercent = 100, shutdownGracePeriod = "0s", shutdownGracePeriodCriticalPods = "0s" }
"#;

/// The same as documents beside a configuration of `kubeadm init`.
pub const KUBEADM_DOCUMENTS: &str = r"
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
conntrack: { maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s }
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
enforceNodeAllocatable: []
evictionHard: { memory.available: 1Mi, nodefs.available: 1Mi, nodefs.inodesFree: 1%, imagefs.available: 1Mi }
imageGCHighThresholdPercent: 100
volumePluginDir: /var/lib/kubelet/volumeplugins
resolvConf: /run/systemd/resolve/resolv.conf
";

/// The lab.
#[derive(Debug)]
pub struct Lab {
    /// The image's root.
    pub image: ImageRoot,
    /// The network between the nodes.
    pub hub: Hub,
    logs: PathBuf,
    scratch: Scratch,
    session: Session,
    nodes: usize,
    _settings: Option<HostSettings>,
}

impl Lab {
    /// Builds the image of `recipe`, a path in the repository, unless it is built already. This process must have one thread.
    ///
    /// # Errors
    /// If a build step fails, or this host cannot run nodes in namespaces.
    pub fn open(recipe: &str) -> Result<Self> {
        Self::with(recipe, "logs", Some(HostSettings::keep()?))
    }

    /// The same in one of several processes that have labs: the one that started them puts the settings of this host back. Its nodes'
    /// logs are in the folder `name` of all logs.
    pub(crate) fn beside_others(recipe: &str, name: &str) -> Result<Self> {
        Self::with(recipe, &format!("logs/{name}"), None)
    }

    fn with(recipe: &str, logs: &str, settings: Option<HostSettings>) -> Result<Self> {
        own_mounts()?;
        let folder = output()?;
        fs::create_dir_all(&folder)?;
        let session = Session::open(Kind::Quiet)?;
        let image = build(&session, recipe, Choice::default())?;
        let scratch = session.cache.scratch()?;
        let mount = scratch.path().join("hub");
        fs::create_dir(&mount).context("making the hub's folder")?;
        let values = settings.as_ref().map(HostSettings::values);
        Ok(Self {
            hub: Hub::new(&image.tree, &mount, values.unwrap_or_default())?,
            image,
            logs: folder.join(logs),
            scratch,
            session,
            nodes: 0,
            _settings: settings,
        })
    }

    /// Another image, which a node of this lab can boot too: that of `recipe`, a path in the repository, with settings (`KEY=VALUE`)
    /// laid over it. It is built unless it is built already.
    ///
    /// # Errors
    /// If a build step fails.
    pub fn another_image(&self, recipe: &str, settings: Vec<String>) -> Result<ImageRoot> {
        let choice = Choice {
            settings,
            ..Choice::default()
        };
        build(&self.session, recipe, choice)
    }

    /// The session of this run.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// A control plane that is off, with the given cluster object and what this host needs added to it.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn control_plane(&mut self, name: &str, address: u8, object: &str) -> Result<Node> {
        self.node_of(self.control_plane_options(name, address, object))
    }

    /// What makes a control plane.
    #[must_use]
    pub fn control_plane_options(&self, name: &str, address: u8, object: &str) -> NodeOptions {
        NodeOptions {
            control_plane: true,
            ..self.worker_options(name, address, object)
        }
    }

    /// What makes a worker.
    #[must_use]
    pub fn worker_options(&self, name: &str, address: u8, object: &str) -> NodeOptions {
        NodeOptions {
            name: name.to_owned(),
            hostname: None,
            network: Network::Near,
            address,
            control_plane: false,
            object: Some(format!("{object}{IN_NAMESPACES}")),
            metadata: None,
            services: Services::All,
            var: None,
        }
    }

    /// A worker that is off.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn worker(&mut self, name: &str, address: u8, object: &str) -> Result<Node> {
        self.node_of(self.worker_options(name, address, object))
    }

    /// A node without a cluster object that is off: containerd is all that it starts.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn runtime(&mut self, name: &str, address: u8, control_plane: bool) -> Result<Node> {
        self.node_of(NodeOptions {
            control_plane,
            object: None,
            services: Services::Runtime,
            ..self.worker_options(name, address, "")
        })
    }

    /// A node that is off.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn node_of(&mut self, options: NodeOptions) -> Result<Node> {
        self.nodes += 1;
        let logs = self.logs.join(&options.name);
        let folder = self
            .scratch
            .path()
            .join(format!("{}-{}", options.name, self.nodes));
        Node::new(&self.image, options, &folder, &logs)
    }

    /// Where the nodes' files are, until the lab is dropped.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }
}

/// Builds an image and unpacks its root.
fn build(session: &Session, recipe: &str, choice: Choice) -> Result<ImageRoot> {
    let request = Request {
        recipe: workspace()?.join(recipe),
        output: output()?,
        choice,
        lock: Mode::Make,
    };
    let built = pipeline::build(session, &request)?;
    let debs = built.locked.fetch(session, SET_TOOLS_BUILD)?;
    let tools = tools::install(session, "tools", &debs)?;
    ImageRoot::unpack(session, &tools, &built.out)
}

/// Where images and logs are.
fn output() -> Result<PathBuf> {
    Ok(workspace()?.join("target/namespace-tests"))
}

fn workspace() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.map(Path::to_owned).context("finding the workspace")
}
