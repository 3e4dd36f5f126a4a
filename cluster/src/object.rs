//! The cluster object: one file of TOML or JSON that describes a cluster and this node of it.
//!
//! Its fields are copied with their positions into kubeadm's four documents, so that everything behind them,
//! defaults, rules and rendering, is kubeadm's. A mistake that is found there is reported by the object's own field.

pub mod balancer;
mod cloud;
mod dns;
pub(crate) mod documented;
mod from_image;
mod image;
mod join;
pub mod json_schema;
mod known;
mod kubelet_image;
mod metrics_server;
mod translate;
mod words;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use crate::address::{self, IpVersion, Subnet};
use crate::config::{self, Arg, Config, Reported};
use crate::discovery::{Pin, Token};
use crate::host::Host;
use crate::release::{EtcdFlags, Kubeadm, RELEASES};
use crate::report::{Mistake, Report};
use crate::shared_keys::CertificateKey;
use crate::source;
use crate::types::argument;
use crate::validate::of_node;
use crate::yaml::{Content, Node};
use balancer::{Balancer, Server};
use from_image::FLANNEL;
pub use image::Image;
pub use kubelet_image::{KubeletImage, own_skew, skew};
use translate::{Translation, translate};
use words::{CNI, Document, Shape, WORDS};

/// The fields and tables of a control plane alone. What else a worker does not need describes the whole cluster.
pub const OF_CONTROL_PLANES: [&str; 6] = [
    "tokens",
    "certificate-key",
    "api-server",
    "controller-manager",
    "scheduler",
    "etcd",
];

/// The kubelet's argument with the addresses of its node.
const NODE_IP: &str = "node-ip";
/// The field of the node's name.
const NODE_NAME: &str = "node.name";

/// The network of pods that the node sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cni {
    /// A bridge on each node, and routes between them, for nodes on one network.
    Bridge,
    /// flannel: a bridge on each node, and packets to other nodes by VXLAN, for nodes that reach each other over routers.
    Flannel,
    /// None: an addon brings it.
    None,
}

impl Cni {
    /// Whether each node has subnets for its pods.
    #[must_use]
    pub const fn has_subnets(self) -> bool {
        matches!(self, Self::Bridge | Self::Flannel)
    }
}

/// What a node is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs a control plane.
    ControlPlane,
    /// It joins a cluster, and runs pods.
    Worker,
}

/// How a worker joins its cluster: `[join]`.
#[derive(Clone, Debug)]
pub struct Join {
    /// The bootstrap token.
    pub token: Token,
    /// The public keys of which the cluster's authorities must have one.
    pub pins: Vec<Pin>,
    /// Fields of the kubelet's configuration that count more than the cluster's: `[kubelet.config]`.
    pub kubelet: Map<String, Value>,
    /// Fields of the kubelet's configuration that this system needs where the cluster has none.
    pub system: Map<String, Value>,
}

/// How a control plane joins its cluster: `[join]`.
#[derive(Clone, Debug)]
pub struct Further {
    /// How it gets the keys of the cluster's authorities from the cluster; without this its config brings them.
    pub fetched: Option<(Join, CertificateKey)>,
}

/// The controller of the cloud, which is one of the cluster's own objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudController {
    /// The reference of its image; empty where the node's image is not known.
    pub image: String,
    /// Lines of its own configuration beside the cluster's name.
    pub config: String,
}

/// A cluster object, complete and valid.
#[derive(Clone, Debug)]
pub struct Object {
    /// What kubeadm would have been given.
    pub config: Config,
    /// The network of pods.
    pub cni: Cni,
    /// The image of flannel that the node's image brings; empty if it has none.
    pub flannel_image: String,
    /// The image of metrics-server, if the cluster has it.
    pub metrics_server: Option<String>,
    /// Amazon's controller, if a control plane of this cluster has it.
    pub cloud_controller: Option<CloudController>,
    /// Labels of this node beside those of a control plane.
    pub labels: BTreeMap<String, String>,
    /// The kubelet's container in place of the image's own: `[kubelet] image`.
    pub kubelet_image: Option<KubeletImage>,
    /// Whether Cluster API waits for the sentinel file of this node.
    pub sentinel: bool,
    /// How it joins a cluster, if it is a worker.
    pub join: Option<Join>,
    /// How it joins a cluster, if it is a further control plane.
    pub further: Option<Further>,
    /// The node-local balancer of the API servers.
    pub balancer: Balancer,
    /// What is left out, and why.
    pub notes: Vec<String>,
    /// The node's address, if the cluster's pods have addresses of both IP versions and the machine has none of the other one on the
    /// interface with this address.
    pub lacks_second: Option<String>,
    /// The IP version of the cluster's first subnet of services, which the node's address has to have. None where it does not matter: the
    /// text of a node that joins does not name the subnets, or it gives a worker's kubelet its addresses.
    pub service_version: Option<IpVersion>,
}

/// Reads the cluster object of a node with this role on this host.
///
/// # Errors
/// All mistakes, each with the object's field and its position.
pub fn read(text: &str, image: &Image, host: &Host, role: Role) -> Result<Object, Report> {
    let mut report = Report::default();
    let Some(root) = source::read(text, &mut report) else {
        return Err(report);
    };
    let mut translation = translate(&root, image, &mut report);
    let (join, further) = match role {
        Role::Worker => (join::worker(&root, image, &mut report), None),
        Role::ControlPlane => (None, join::control_plane(&root, image, &mut report)),
    };
    // A kubelet must not be newer than its API server: that of a control plane stays with its own one, as kubeadm has it
    // (ControlPlaneKubeletLocalMode), unless the object says otherwise.
    let balancer = balancer::read(&root, role == Role::Worker, &mut report);
    let kubeadm = followed(&mut translation, &root, image, &mut report);
    from_image::flannel(&translation, &root, image, &mut report);
    let metrics_server =
        metrics_server::image(translation.metrics_server, &root, image, &mut report);
    let words = (
        translation.cloud_provider,
        translation.cloud_config.as_deref(),
    );
    let cloud_controller = cloud::controller(words, &root, image, role, &mut report);
    let mut notes = from_image::complete(&mut translation, &kubeadm, image);
    let read = config::complete(
        &translation.documents,
        &kubeadm,
        host,
        Reported::AtOnce,
        &mut report,
    );
    if let Some(config) = &read {
        let services = &config.cluster.networking.service_subnet;
        dns::check(&translation.dns, services, &mut report);
        of_node(&config.init, &config.cluster, &mut report);
        let is_served = role == Role::ControlPlane;
        balancer::check(&balancer, &root, is_served, config, &mut report);
    }
    let own_name = root.get("node").and_then(|node| node.get("name"));
    // Empty text is no name.
    let own_name = own_name.filter(|name| name.text() != Some(""));
    own_words(&mut report, &root);
    if own_name.is_none() {
        name_host(&mut report.mistakes, host);
    }
    let Some(mut config) = read.filter(|_| report.mistakes.is_empty()) else {
        return Err(report);
    };
    of_this_node(&mut config, &translation, image, host);
    // kubeadm makes a token if it is given none.
    if !translation.has_tokens {
        config.init.bootstrap_tokens.clear();
    }
    let is_known = join.is_none() || names_services(&translation);
    let service_version = service_version(&config, join.is_some()).filter(|_| is_known);
    let lacks_second = name_address(&mut config, host);
    if join.is_some() {
        let own_taints = root.get("node").and_then(|node| node.get("taints"));
        join::register(&mut config, own_taints.is_some(), &translation.labels);
        // They are of the addons, which a worker has from its cluster.
        notes.clear();
    }
    let name = &config.init.node_registration.name;
    notes.extend(
        own_name
            .and_then(Node::text)
            .and_then(|text| lowered(NODE_NAME, text, name)),
    );
    Ok(Object {
        config,
        cni: translation.cni,
        flannel_image: image.own_reference(FLANNEL).unwrap_or_default(),
        metrics_server,
        cloud_controller,
        labels: translation.labels,
        kubelet_image: translation.kubelet_image,
        sentinel: translation.sentinel,
        join,
        further,
        balancer,
        lacks_second,
        service_version,
        notes,
    })
}

/// The version of kubeadm that is followed, with arguments and feature gates held against it. Without one that is known, they are held
/// against all, and the rest against the newest one, which has all fields of the others.
fn followed(
    translation: &mut Translation,
    root: &Node,
    image: &Image,
    report: &mut Report,
) -> Kubeadm {
    let known = from_image::kubeadm(translation, root, image, report);
    let etcd = known::etcd(root, image, known.as_ref());
    let minors = match &known {
        Some(kubeadm) => vec![kubeadm.version.minor()],
        None => RELEASES.iter().map(|release| release.minor).collect(),
    };
    known::check(root, &minors, etcd.as_ref(), report);
    known.unwrap_or_else(|| {
        let newest = Kubeadm::newest();
        let version = newest.version.to_string();
        translation.replace(Document::Cluster, "kubernetesVersion", version.into());
        newest
    })
}

/// Brings what was found by kubeadm's rules into the object's words. kubeadm ignores unknown fields of the kubelet's and
/// kube-proxy's configuration; here they are mistakes.
fn own_words(report: &mut Report, root: &Node) {
    let unknown = std::mem::take(&mut report.warnings);
    report
        .mistakes
        .extend(unknown.into_iter().map(|warning| Mistake {
            message: warning.message.replace(": it is ignored", ""),
            ..warning
        }));
    rename(&mut report.mistakes, root);
}

/// Gives the kubelet the node's address, unless the object does. Otherwise it asks name servers for the node's name, again
/// for each static pod until the node is registered: 10 s each where none answers. In a cluster whose pods have addresses of both IP
/// versions the node has to have both too: its pods of the host's network have the node's, and the pods of each version are behind the
/// address of that version. Gives the address whose other version the machine lacks.
fn name_address(config: &mut Config, host: &Host) -> Option<String> {
    let mut value = config.init.local_api_endpoint.advertise_address.clone();
    let has_both = is_dual_stack(config);
    let arguments = &mut config.init.node_registration.kubelet_extra_args;
    if argument(arguments, NODE_IP).is_some() {
        return None;
    }
    let second = address::parse(&value).and_then(|own| host.second(own));
    let lacks = (has_both && second.is_none()).then(|| value.clone());
    if let Some(second) = second.filter(|_| has_both) {
        value = format!("{value},{second}");
    }
    arguments.push(Arg {
        name: NODE_IP.to_owned(),
        value,
    });
    lacks
}

/// The IP version of the first subnet of services, unless this is a worker whose kubelet is given its addresses.
fn service_version(config: &Config, is_worker: bool) -> Option<IpVersion> {
    let arguments = &config.init.node_registration.kubelet_extra_args;
    let is_given = is_worker && argument(arguments, NODE_IP).is_some();
    let subnets = Subnet::parse_list(&config.cluster.networking.service_subnet);
    let first = subnets.first().filter(|_| !is_given)?;
    Some(IpVersion::of(first.first))
}

/// Whether the subnets of services are in the text. Those of a cluster that is joined are in no other place.
fn names_services(translation: &Translation) -> bool {
    let cluster = translation.documents.cluster.as_ref();
    let networking = cluster.and_then(|cluster| cluster.get("networking"));
    let subnets = networking.and_then(|networking| networking.get("serviceSubnet"));
    let text = subnets.and_then(Node::text);
    text.is_some_and(|text| !text.is_empty())
}

/// Whether pods have addresses of both IP versions.
fn is_dual_stack(config: &Config) -> bool {
    let all = Subnet::parse_list(&config.cluster.networking.pod_subnet);
    let has = |is_ipv4: bool| all.iter().any(|subnet| subnet.first.is_ipv4() == is_ipv4);
    has(true) && has(false)
}

/// Sets what no document of kubeadm has: what is of this node, its image and its cloud.
fn of_this_node(config: &mut Config, translation: &Translation, image: &Image, host: &Host) {
    // The image's etcd may be older than the one that this kubeadm knows.
    config.etcd_flags = EtcdFlags::ByTag;
    config.proxy_image = from_image::proxy_image(translation, image);
    let provider = translation.cloud_provider.as_ref();
    config.provider_id = provider.and(host.provider_id.clone());
    let dns = translation.dns.iter();
    config.dns_addresses = dns.map(|placed| placed.address).collect();
}

/// Names the mistakes by the fields of the object.
fn rename(mistakes: &mut [Mistake], root: &Node) {
    for mistake in mistakes {
        let name = own_name(&mistake.field).or_else(|| name_within(&mistake.field, root));
        mistake.field = name.unwrap_or_else(|| mistake.field.clone());
    }
}

/// Says where a name came from that the object does not have.
fn name_host(mistakes: &mut [Mistake], host: &Host) {
    for mistake in mistakes.iter_mut().filter(|one| one.field == NODE_NAME) {
        mistake.message = format!(
            "the host name {:?} is not a name of lower-case letters, digits, '-' and '.'; expected another host name, or {NODE_NAME}",
            host.name
        );
    }
}

/// What to say of a name that is another one in lower case: kubeadm and the kubelet write the names of nodes so. `from` is what has
/// the name as it was given.
#[must_use]
pub fn lowered(from: &str, given: &str, name: &str) -> Option<String> {
    let given = given.trim();
    (given != name).then(|| {
        format!("{from} {given:?} is taken in lower case, {name}: names of nodes have no capital letters")
    })
}

/// The object's field of a field of kubeadm's.
fn own_name(field: &str) -> Option<String> {
    let below = |path: &str| {
        let rest = field.strip_prefix(path).filter(|_| !path.is_empty())?;
        (rest.is_empty() || rest.starts_with('.')).then(|| rest.to_owned())
    };
    let found = WORDS.iter().filter_map(|word| {
        let (_, path) = word.to?;
        Some((path.len(), word.name, below(path)?))
    });
    let (_, name, rest) = found.max_by_key(|(length, ..)| *length)?;
    Some(format!("{name}{rest}"))
}

/// The object's field of a field that is copied with its whole table.
fn name_within(field: &str, root: &Node) -> Option<String> {
    let first = field.split('.').next().filter(|first| !first.is_empty())?;
    let tables = WORDS.iter().filter(|word| word.shape == Shape::Fields);
    let mut names = tables.map(|word| word.name);
    let name = names.find(|name| {
        let table = name.split('.').try_fold(root, |node, key| node.get(key));
        table.is_some_and(|table| table.get(first).is_some())
    })?;
    Some(format!("{name}.{field}"))
}

impl Object {
    /// The subnets of this node's pods, if it is the first node: of each subnet of pods the first part of the size that the
    /// controller manager gives a node.
    #[must_use]
    pub fn first_pod_subnets(&self) -> Vec<Subnet> {
        Subnet::parse_list(&self.config.cluster.networking.pod_subnet)
            .into_iter()
            .map(|subnet| Subnet {
                prefix: subnet
                    .prefix
                    .max(if subnet.first.is_ipv4() { 24 } else { 64 }),
                ..subnet
            })
            .collect()
    }

    /// Whether the controller manager gives nodes those subnets, and no argument says otherwise.
    #[must_use]
    pub fn has_usual_pod_subnets(&self) -> bool {
        let arguments = &self.config.cluster.controller_manager.extra_args;
        [
            "allocate-node-cidrs",
            "node-cidr-mask-size",
            "node-cidr-mask-size-ipv4",
            "node-cidr-mask-size-ipv6",
        ]
        .iter()
        .all(|name| argument(arguments, name).is_none())
    }

    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.cluster.cluster_name
    }

    /// The API servers that are known before the cluster was asked: the endpoint's, and those of `[balancer] servers`.
    #[must_use]
    pub fn known_servers(&self) -> Vec<Server> {
        let endpoint = Server::parse(&self.config.cluster.control_plane_endpoint).ok();
        let mut servers: Vec<Server> = endpoint.into_iter().collect();
        for server in &self.balancer.servers {
            if !servers.contains(server) {
                servers.push(server.clone());
            }
        }
        servers
    }

    /// The version that the node's address should have and does not.
    #[must_use]
    pub fn wanted_version(&self) -> Option<IpVersion> {
        let own = self.address().map(IpVersion::of);
        self.service_version.filter(|wanted| own != Some(*wanted))
    }

    /// The address of the API server on this node.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        address::parse(&self.config.init.local_api_endpoint.advertise_address)
    }
}

/// The network of a word.
fn cni(node: &Node, report: &mut Report) -> Cni {
    match &node.content {
        Content::Text(text) if text == CNI[0] => return Cni::Bridge,
        Content::Text(text) if text == CNI[1] => return Cni::Flannel,
        Content::Text(text) if text == CNI[2] => return Cni::None,
        _ => {}
    }
    let [bridge, flannel, none] = CNI;
    let message = format!("expected {bridge:?}, {flannel:?} or {none:?}");
    report.refuse_at("cni", node.at, message);
    Cni::None
}
