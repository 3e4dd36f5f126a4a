//! `[balancer]`: the node-local balancer of the cluster's API servers.

use std::fmt;

use crate::address;
use crate::config::Config;
use crate::report::Report;
use crate::validate::ports;
use crate::yaml::{Content, Node};

/// The name by which a client of the balancer verifies the API server behind it: kubeadm's certificates have it on each control
/// plane, and the balancer's own address is in none.
pub const SERVER_NAME: &str = "kubernetes.default.svc";
/// The address that the balancer listens on.
pub const LISTEN: &str = "127.0.0.1";
/// The port of an endpoint that names none, as kubeadm has it.
const API_PORT: u16 = 6443;
/// The balancer's port. Below the ports of Services (30000 to 32767) and of the kernel's own choice (32768 to 60999).
const PORT: u16 = 7443;
/// The table's fields.
const ENABLED: &str = "balancer.enabled";
const LISTEN_PORT: &str = "balancer.port";
const SERVERS: &str = "balancer.servers";

/// The settings of the balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Whether this node runs it, and its kubelet reaches the API servers by it.
    pub enabled: bool,
    /// The port on [`LISTEN`].
    pub port: u16,
    /// API servers that are known before the cluster was asked, beside the endpoint.
    pub servers: Vec<Server>,
}

/// A host with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&address::join(&self.host, self.port))
    }
}

impl Server {
    /// Reads `HOST` or `HOST:PORT`; without a port it is kubeadm's.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = address::host_and_port(text)?;
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().unwrap_or(API_PORT),
        })
    }
}

impl Balancer {
    /// The URL at which the balancer answers on this node.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{LISTEN}:{}", self.port)
    }
}

/// Reads the table; `default` is whether a node without the field `enabled` runs the balancer.
pub(super) fn read(root: &Node, default: bool, report: &mut Report) -> Balancer {
    let table = root.get("balancer");
    let field = |name: &str| table.and_then(|table| table.get(name));
    let mut balancer = Balancer {
        enabled: default,
        port: PORT,
        servers: Vec::new(),
    };
    if let Some(node) = field("enabled") {
        match node.content {
            Content::Bool(enabled) => balancer.enabled = enabled,
            _ => report.refuse_at(ENABLED, node.at, "expected true or false"),
        }
    }
    if let Some(node) = field("port") {
        match port(node) {
            Some(port) => balancer.port = port,
            None => report.refuse_at(LISTEN_PORT, node.at, "expected a port, 1024 to 65535"),
        }
    }
    if let Some(node) = field("servers") {
        balancer.servers = servers(node, report);
    }
    balancer
}

/// Refuses a port that another program of the node listens on: the balancer could not, and the kubelet would reach no API server.
pub(super) fn check(
    balancer: &Balancer,
    root: &Node,
    is_control_plane: bool,
    config: &Config,
    report: &mut Report,
) {
    let table = root.get("balancer");
    let field = |name: &str| table.and_then(|table| table.get(name));
    if !balancer.enabled && field("enabled").is_some() {
        return;
    }
    let has_proxy = !config.cluster.proxy.disabled && !config.skips("addon/kube-proxy");
    let proxy = has_proxy.then_some(&config.kube_proxy.value);
    let mut taken = ports::of_every_node(&config.kubelet.value, proxy);
    // The object of a control plane that does not enable it is the one of workers too, which have it.
    if is_control_plane && balancer.enabled {
        taken.extend(ports::of_control_plane(&config.init, &config.cluster));
    }
    let own = i64::from(balancer.port);
    if let Some((port, whose)) = taken.iter().find(|(port, _)| *port == own) {
        let at = field("port").or(table).map_or(root.at, |node| node.at);
        let message = format!(
            "{port} is the port of {whose} on the same node; expected one that nothing else has"
        );
        report.refuse_at(LISTEN_PORT, at, message);
    }
}

/// The balancer has no privilege, which a lower port would ask for.
fn port(node: &Node) -> Option<u16> {
    match node.content {
        Content::Int(number) => u16::try_from(number).ok().filter(|port| *port >= 1024),
        _ => None,
    }
}

fn servers(node: &Node, report: &mut Report) -> Vec<Server> {
    let Content::List(items) = &node.content else {
        report.refuse_at(SERVERS, node.at, "expected a list of HOST:PORT");
        return Vec::new();
    };
    let mut servers = Vec::new();
    for item in items {
        let read = item.text().ok_or("expected HOST:PORT".to_owned());
        match read.and_then(Server::parse) {
            Ok(server) => servers.push(server),
            Err(message) => report.refuse_at(SERVERS, item.at, message),
        }
    }
    servers
}
