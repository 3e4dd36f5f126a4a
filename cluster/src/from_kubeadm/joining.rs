//! `JoinConfiguration`: by what a node trusts the cluster that it joins, and what of it is an `InitConfiguration`'s.

use serde_json::Value;

use crate::discovery::{AUTHORITY, PIN_FORM, Pin, TOKEN_FORM, Token};
use crate::documents::Documents;
use crate::fields::JOIN;
use crate::object::{Image, Join, Role};
use crate::release::RELEASES;
use crate::report::{Position, Report};
use crate::schema::{Rules, decode};
use crate::shared_keys::{CertificateKey, FORM};
use crate::yaml::{Content, Node};

/// Fields.
const DISCOVERY: &str = "discovery";
const BOOTSTRAP_TOKEN: &str = "discovery.bootstrapToken";
const KEY: &str = "controlPlane.certificateKey";

/// How a node joins.
pub(super) struct Joining {
    pub(super) join: Join,
    /// Of a control plane: the key of the shared keys, where it fetches them.
    pub(super) control_plane: Option<Option<CertificateKey>>,
}

impl Joining {
    pub(super) const fn is_worker(&self) -> bool {
        self.control_plane.is_none()
    }
}

/// Reads the document, and puts into the others what they have of a node. Nothing where it is refused.
pub(super) fn take(
    documents: &mut Documents,
    node: &Node,
    image: &Image,
    role: Role,
    report: &mut Report,
) -> Option<Joining> {
    if let Some(init) = &documents.init {
        let message = "InitConfiguration beside JoinConfiguration; expected one of them";
        report.refuse_at("kind", init.at, message);
    }
    let newest = RELEASES.iter().map(|release| release.minor).max();
    let before = report.mistakes.len();
    // For the types and for what kubeadm does not know; the values are read with their positions.
    let newest = newest.unwrap_or_default();
    let read = decode(JOIN, Some(node), newest, Rules::Components, report);
    if report.mistakes.len() > before {
        return None;
    }
    others(&read, node, report);
    let plane = field(node, "controlPlane");
    if plane.is_none() && role == Role::ControlPlane {
        let message = "expected controlPlane: the role of this node is control-plane";
        report.refuse_at("", node.at, message);
    }
    let key = plane.and_then(|plane| field(plane, "certificateKey"));
    let key = key.filter(|key| key.text() != Some("")).map(|node| {
        let key = node.text().and_then(CertificateKey::parse);
        if key.is_none() {
            report.refuse_at(KEY, node.at, FORM);
        }
        key
    });
    let (endpoint, token, pins) = discovery(node, report)?;
    cluster(documents, node, &endpoint, plane.is_some(), report);
    documents.init = Some(init(node, plane));
    zeros(documents.kubelet.as_mut(), image);
    Some(Joining {
        join: Join {
            token,
            pins,
            kubelet: serde_json::Map::new(),
            system: image.kubelet.clone(),
        },
        control_plane: plane.map(|_| key.flatten()),
    })
}

/// A field that is there and not null.
fn field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    node.get(name).filter(|node| node.content != Content::Null)
}

/// Refuses what else the document asks for and is not done.
fn others(read: &serde_json::Map<String, Value>, node: &Node, report: &mut Report) {
    if let Some(file) = field(node, "caCertPath").filter(|file| file.text() != Some(AUTHORITY))
        && read["caCertPath"] != ""
    {
        let message =
            format!("Slipway writes the cluster's authority to {AUTHORITY}; expected that");
        report.refuse_at("caCertPath", file.at, message);
    }
    let Some(discovery) = field(node, DISCOVERY) else {
        return;
    };
    if let Some(file) = field(discovery, "file") {
        let message = "discovery by a kubeconfig is not done; expected discovery.bootstrapToken";
        report.refuse_at("discovery.file", file.at, message);
    }
    let own = field(discovery, "bootstrapToken").and_then(|table| table.get("token"));
    let other = field(discovery, "tlsBootstrapToken").filter(|node| node.text() != Some(""));
    if let Some(other) = other.filter(|other| own.is_none_or(|own| own.text() != other.text())) {
        let message = "another token for the kubelet's certificate is not used; expected none, or that of discovery.bootstrapToken";
        report.refuse_at("discovery.tlsBootstrapToken", other.at, message);
    }
}

/// The endpoint with its position, the token and the pins. No pins where the document trusts whoever signs with the token.
fn discovery(node: &Node, report: &mut Report) -> Option<(Node, Token, Vec<Pin>)> {
    let around = field(node, DISCOVERY);
    let Some(table) = around.and_then(|discovery| field(discovery, "bootstrapToken")) else {
        let at = around.map_or(node.at, |discovery| discovery.at);
        // What is there in its place is refused already.
        if report.mistakes.is_empty() {
            let message = "expected token, apiServerEndpoint and caCertHashes";
            report.refuse_at(BOOTSTRAP_TOKEN, at, message);
        }
        return None;
    };
    let path = |name: &str| format!("{BOOTSTRAP_TOKEN}.{name}");
    let given = |name: &str| field(table, name).filter(|node| node.text() != Some(""));
    let token = match given("token") {
        Some(node) => {
            let token = node.text().and_then(Token::parse);
            if token.is_none() {
                report.refuse_at(&path("token"), node.at, TOKEN_FORM);
            }
            token
        }
        None => {
            report.refuse_at(&path("token"), table.at, "expected a bootstrap token");
            None
        }
    };
    let endpoint = given("apiServerEndpoint").cloned();
    if endpoint.is_none() {
        let message = "expected HOST:PORT of the control plane";
        report.refuse_at(&path("apiServerEndpoint"), table.at, message);
    }
    let pins = pins(table, &path("caCertHashes"), report);
    Some((endpoint?, token?, pins?))
}

fn pins(table: &Node, path: &str, report: &mut Report) -> Option<Vec<Pin>> {
    let skips = field(table, "unsafeSkipCAVerification");
    let skips = skips.is_some_and(|node| node.content == Content::Bool(true));
    let items = match field(table, "caCertHashes").map(|node| &node.content) {
        Some(Content::List(items)) if !items.is_empty() => items,
        _ if skips => return Some(Vec::new()),
        _ => {
            let message = format!(
                "expected a list of {PIN_FORM}, or unsafeSkipCAVerification: true, with which whoever knows the token is trusted"
            );
            report.refuse_at(path, table.at, message);
            return None;
        }
    };
    let mut pins = Vec::new();
    for item in items {
        match item.text().and_then(Pin::parse) {
            Some(pin) => pins.push(pin),
            None => report.refuse_at(path, item.at, format!("expected {PIN_FORM}")),
        }
    }
    (pins.len() == items.len()).then_some(pins)
}

/// The cluster's document: the cluster's own if it is there. A worker needs no more of it than where its control plane is.
fn cluster(
    documents: &mut Documents,
    node: &Node,
    endpoint: &Node,
    is_control_plane: bool,
    report: &mut Report,
) {
    const NAME: &str = "controlPlaneEndpoint";
    let has_own = documents.cluster.is_some();
    let cluster = documents
        .cluster
        .get_or_insert_with(|| table(node.at, Vec::new()));
    let Content::Map(entries) = &mut cluster.content else {
        return;
    };
    let named = entries
        .iter()
        .any(|(name, node)| name == NAME && node.text().is_some_and(|text| !text.is_empty()));
    if is_control_plane && has_own && !named {
        let message =
            "the cluster has no controlPlaneEndpoint; expected one before control planes join it";
        report.refuse_at(NAME, cluster.at, message);
    } else if !is_control_plane || !has_own {
        entries.retain(|(name, _)| name != NAME);
        entries.push((NAME.to_owned(), endpoint.clone()));
    }
}

/// What the document has of an `InitConfiguration`.
fn init(node: &Node, plane: Option<&Node>) -> Node {
    let of = |node: Option<&Node>, name: &str| {
        let node = field(node?, name)?;
        Some((name.to_owned(), node.clone()))
    };
    let entries = [
        of(Some(node), "nodeRegistration"),
        of(Some(node), "timeouts"),
        of(Some(node), "patches"),
        of(Some(node), "dryRun"),
        of(Some(node), "skipPhases"),
        of(plane, "localAPIEndpoint"),
        // A worker has no server: its address is the kubelet's, where an argument names it.
        own_address(node).filter(|_| plane.is_none()),
    ];
    table(node.at, entries.into_iter().flatten().collect())
}

/// `localAPIEndpoint` by the argument `node-ip` of the kubelet.
fn own_address(node: &Node) -> Option<(String, Node)> {
    let arguments = field(node, "nodeRegistration")?.get("kubeletExtraArgs")?;
    let Content::List(arguments) = &arguments.content else {
        return None;
    };
    let mut found = arguments.iter().filter(|argument| {
        let name = argument.get("name").and_then(Node::text);
        name == Some("node-ip")
    });
    let value = found.next_back()?.get("value")?;
    let first = Node {
        at: value.at,
        content: Content::Text(value.text()?.split(',').next()?.to_owned()),
    };
    let endpoint = table(value.at, vec![("advertiseAddress".to_owned(), first)]);
    Some(("localAPIEndpoint".to_owned(), endpoint))
}

const fn table(at: Position, entries: Vec<(String, Node)>) -> Node {
    let content = Content::Map(entries);
    Node { at, content }
}

/// Takes out of the cluster's configuration of kubelets what nobody set, as kubeadm writes it, where this system has a value.
fn zeros(kubelet: Option<&mut Node>, image: &Image) {
    if let Some(Content::Map(entries)) = kubelet.map(|node| &mut node.content) {
        entries.retain(|(name, node)| {
            let open =
                matches!(&node.content, Content::Text(text) if text.is_empty() || text == "0s");
            !(open || node.content == Content::Null) || !image.kubelet.contains_key(name)
        });
    }
}
