//! Requests of kubelets for their serving certificates (`serverTLSBootstrap`), and which of them is right.
//!
//! The controller manager signs such a request once it is approved, and approves none by itself: it cannot know whose a name is
//! (<https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers>). Here a name is
//! a node's if its Node object has it, no other one has it, and it is not the API server's or a service's: the same authority
//! signs the API server's certificate, every pod trusts it, and a kubelet writes the addresses of its Node itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

use crate::address::{self, Subnet};
use crate::certs::certificates;
use crate::config::Config;
use crate::identity::user;

/// The signer of these requests.
pub const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The prefix of a node's user name.
const USER: &str = "system:node:";
/// The group of nodes.
const NODES: &str = "system:nodes";
/// The label that a kubelet may not give its own node.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The addresses of a node's status that are its names: all types that Kubernetes has.
const TYPES: [&str; 5] = [
    "Hostname",
    "InternalDNS",
    "ExternalDNS",
    "InternalIP",
    "ExternalIP",
];
/// The usages of a request: without the third but for RSA, whose keys may encipher others.
const USAGES: [&str; 2] = ["digital signature", "server auth"];
const RSA_USAGE: &str = "key encipherment";
/// Characters of a name that a message shows: it is whatever the requester sent.
const SHOWN: usize = 80;

/// A name that a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// A DNS name, in lower case.
    Dns(String),
    /// An address.
    Ip(IpAddr),
}

impl Name {
    /// An address if it is one, else a DNS name.
    fn of(text: &str) -> Self {
        match address::parse(text) {
            Some(address) => Self::Ip(address),
            None => Self::Dns(text.to_ascii_lowercase()),
        }
    }
}

impl fmt::Display for Name {
    /// As far as a line can show it: a request may have any text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(&shown(name)),
            Self::Ip(address) => write!(f, "{address}"),
        }
    }
}

/// The nodes of a cluster, by their names, and what no node is called: a kubelet writes the addresses of its Node itself.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, Node>,
    owners: BTreeMap<Name, BTreeSet<String>>,
    /// Names and addresses of the API server; those of a control plane are among them.
    servers: BTreeSet<Name>,
    /// The subnets of services.
    services: Vec<Subnet>,
    /// The ends of services' names.
    suffixes: [String; 2],
}

#[derive(Clone, Debug)]
struct Node {
    names: BTreeSet<Name>,
    control_plane: bool,
}

impl Cluster {
    /// A cluster of this configuration, of which no node is known yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let all = certificates(config);
        let servers = all.iter().filter(|made| made.file == "apiserver");
        let names = servers.flat_map(|made| &made.certificate.names);
        let networking = &config.cluster.networking;
        let subnets = networking.service_subnet.split(',');
        Self {
            servers: names.map(|name| Name::of(name)).collect(),
            services: subnets
                .filter_map(|text| Subnet::parse(text.trim()))
                .collect(),
            suffixes: [".svc".to_owned(), format!(".svc.{}", networking.dns_domain)],
            ..Self::default()
        }
    }

    /// Whether a node may not have this name: one of the API server, of services, or of every machine.
    fn is_reserved(&self, name: &Name, control_plane: bool) -> bool {
        let always = match name {
            Name::Dns(name) => {
                name == "localhost" || self.suffixes.iter().any(|end| name.ends_with(end.as_str()))
            }
            Name::Ip(address) => {
                !address::is_global_unicast(*address)
                    || self.services.iter().any(|subnet| subnet.contains(*address))
            }
        };
        always || (!control_plane && self.servers.contains(name))
    }

    /// Adds a node, as the API server has it.
    pub fn add(&mut self, node: &Value) {
        let Some(name) = node["metadata"]["name"].as_str() else {
            return;
        };
        let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        let known = |address: &&Value| TYPES.iter().any(|kind| address["type"] == *kind);
        let names = addresses
            .filter(known)
            .filter_map(|address| address["address"].as_str());
        let names: BTreeSet<Name> = names.map(Name::of).collect();
        for own in &names {
            let owners = self.owners.entry(own.clone()).or_default();
            owners.insert(name.to_owned());
        }
        let control_plane = !node["metadata"]["labels"][CONTROL_PLANE].is_null();
        let node = Node {
            names,
            control_plane,
        };
        self.nodes.insert(name.to_owned(), node);
    }
}

/// A request that is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The node.
    pub node: String,
    /// The names that its certificate is for.
    pub names: BTreeSet<Name>,
}

/// Why a request is not right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is for another signer.
    Signer(String),
    /// Its requester is not a node.
    Requester(String),
    /// It is not one request in PEM that the requester's key signed.
    Unreadable(&'static str),
    /// Its subject is another than the requester, whose user name stands second.
    Subject(String, String),
    /// Its usages.
    Usages(String),
    /// It asks for something else than names.
    Extension(&'static str),
    /// It has no name.
    NoName,
    /// It has a name that is neither a DNS name nor an address.
    Kind(&'static str),
    /// There is no such node.
    NoNode(String),
    /// The node does not have this name.
    NotIts(Name),
    /// Another node has this name too.
    Another(Name, String),
    /// The node has a name that none may have.
    Reserved(Name),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signer(signer) => {
                write!(f, "its signer is {}, expected {SIGNER}", shown(signer))
            }
            Self::Requester(user) => {
                write!(
                    f,
                    "its requester is {}, expected a node of the group {NODES}",
                    shown(user)
                )
            }
            Self::Unreadable(reason) => f.write_str(reason),
            Self::Subject(found, user) => write!(
                f,
                "its subject is {}, expected the requester: CN={user}, O={NODES}",
                shown(found)
            ),
            Self::Usages(found) => write!(
                f,
                "its usages are {}, expected {} (with an RSA key also {RSA_USAGE})",
                shown(found),
                USAGES.join(", ")
            ),
            Self::Extension(what) => write!(f, "it asks for {what}; expected names alone"),
            Self::NoName => f.write_str("it has no name and no address"),
            Self::Kind(kind) => write!(f, "it has {kind}; expected DNS names and addresses alone"),
            Self::NoNode(node) => write!(f, "there is no node {}", shown(node)),
            Self::NotIts(name) => write!(f, "{name} is not an address of its node"),
            Self::Another(name, other) => {
                write!(f, "{name} is an address of the node {} too", shown(other))
            }
            Self::Reserved(name) => write!(
                f,
                "{name} is of the API server, of services or of every machine; a node may not be called so"
            ),
        }
    }
}

/// A text of a requester, cut and without characters that move a cursor.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// Whether nobody has decided over a request yet (`CertificateSigningRequest` of `certificates.k8s.io/v1`).
#[must_use]
pub fn is_pending(request: &Value) -> bool {
    let conditions = request["status"]["conditions"].as_array();
    conditions.is_none_or(Vec::is_empty) && request["status"]["certificate"].is_null()
}

/// Checks a request by all rules.
///
/// # Errors
/// The first that it breaks.
pub fn check(request: &Value, cluster: &Cluster) -> Result<Right, Wrong> {
    let spec = &request["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if spec["signerName"] != SIGNER {
        return Err(Wrong::Signer(text(&spec["signerName"])));
    }
    let requester = text(&spec["username"]);
    let groups = spec["groups"].as_array().into_iter().flatten();
    let is_node = groups.into_iter().any(|group| group == NODES);
    let node = requester
        .strip_prefix(USER)
        .filter(|name| is_node && !name.is_empty());
    let Some(node) = node else {
        return Err(Wrong::Requester(requester));
    };
    let (rsa, names) = read(&text(&spec["request"]), &user(node))?;
    usages(&spec["usages"], rsa)?;
    of_node(node, &names, cluster)?;
    Ok(Right {
        node: node.to_owned(),
        names,
    })
}

/// Reads a request, base 64 of PEM, of this user: whether its key is RSA, and its names.
fn read(encoded: &str, user: &str) -> Result<(bool, BTreeSet<Name>), Wrong> {
    let pem = pem(encoded).ok_or(Wrong::Unreadable(
        "it is not one certificate request in PEM",
    ))?;
    let not_der = Wrong::Unreadable("its request is not PKCS#10");
    let Ok((rest, request)) = X509CertificationRequest::from_der(&pem.contents) else {
        return Err(not_der);
    };
    if !rest.is_empty() {
        return Err(not_der);
    }
    if request.verify_signature().is_err() {
        return Err(Wrong::Unreadable("its key did not sign it"));
    }
    let info = &request.certification_request_info;
    let subject = info.subject.to_string();
    let common = info
        .subject
        .iter_common_name()
        .flat_map(|name| name.as_str());
    let groups = info
        .subject
        .iter_organization()
        .flat_map(|name| name.as_str());
    if only(common) != Some(user)
        || only(groups) != Some(NODES)
        || info.subject.iter_attributes().count() != 2
    {
        return Err(Wrong::Subject(subject, user.to_owned()));
    }
    let rsa = matches!(info.subject_pki.parsed(), Ok(PublicKey::RSA(_)));
    Ok((rsa, names(&request)?))
}

/// The value of several that is the only one.
fn only<'a>(mut values: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = values.next();
    first.filter(|_| values.next().is_none())
}

/// The one part of a text in PEM. Other texts around it are refused: another reader may take another part.
fn pem(encoded: &str) -> Option<Pem> {
    let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let text = text.trim_end();
    let whole = text.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n")
        && text.ends_with("\n-----END CERTIFICATE REQUEST-----")
        && text.matches("-----").count() == 4
        && !text.contains(':');
    let mut parts = Pem::iter_from_buffer(text.as_bytes());
    parts.next().filter(|_| whole)?.ok()
}

/// The names of a request that asks for nothing else.
fn names(request: &X509CertificationRequest<'_>) -> Result<BTreeSet<Name>, Wrong> {
    let [attribute] = request.certification_request_info.attributes() else {
        return Err(match request.certification_request_info.attributes() {
            [] => Wrong::NoName,
            _ => Wrong::Extension("several attributes"),
        });
    };
    let ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute() else {
        return Err(Wrong::Extension("an attribute that is not of extensions"));
    };
    let [extension] = asked.extensions.as_slice() else {
        return Err(match asked.extensions.is_empty() {
            true => Wrong::NoName,
            false => Wrong::Extension("several extensions"),
        });
    };
    let ParsedExtension::SubjectAlternativeName(found) = extension.parsed_extension() else {
        return Err(Wrong::Extension("another extension"));
    };
    let names: BTreeSet<Name> = found
        .general_names
        .iter()
        .map(name)
        .collect::<Result<_, _>>()?;
    match names.is_empty() {
        true => Err(Wrong::NoName),
        false => Ok(names),
    }
}

fn name(name: &GeneralName<'_>) -> Result<Name, Wrong> {
    let address = |bytes: &[u8]| match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    match name {
        GeneralName::DNSName(name) => {
            let name = name.to_ascii_lowercase();
            // No wildcard: it would be the name of others too.
            match address::is_name(&name) {
                true => Ok(Name::Dns(name)),
                false => Err(Wrong::Kind("a name that is not a DNS name")),
            }
        }
        GeneralName::IPAddress(bytes) => {
            let address = address(bytes).ok_or(Wrong::Kind("an address of another length"))?;
            // An IPv4 address in IPv6 is written in IPv4's form here, and may be in either in a Node.
            Ok(Name::Ip(address.to_canonical()))
        }
        GeneralName::RFC822Name(_) => Err(Wrong::Kind("an e-mail address")),
        GeneralName::URI(_) => Err(Wrong::Kind("a URI")),
        _ => Err(Wrong::Kind("a name of another kind")),
    }
}

/// Refuses other usages than those of a server: each once.
fn usages(found: &Value, rsa: bool) -> Result<(), Wrong> {
    let all = found.as_array().into_iter().flatten();
    let mut all: Vec<&str> = all.filter_map(Value::as_str).collect();
    all.sort_unstable();
    let mut with_rsa = vec![USAGES[0], RSA_USAGE, USAGES[1]];
    with_rsa.sort_unstable();
    match all == USAGES || (rsa && all == with_rsa) {
        true => Ok(()),
        false => Err(Wrong::Usages(all.join(", "))),
    }
}

/// Refuses names that are not the node's alone.
fn of_node(name: &str, names: &BTreeSet<Name>, cluster: &Cluster) -> Result<(), Wrong> {
    let Some(node) = cluster.nodes.get(name) else {
        return Err(Wrong::NoNode(name.to_owned()));
    };
    for asked in names {
        if !node.names.contains(asked) {
            return Err(Wrong::NotIts(asked.clone()));
        }
        if cluster.is_reserved(asked, node.control_plane) {
            return Err(Wrong::Reserved(asked.clone()));
        }
        let mut owners = cluster.owners.get(asked).into_iter().flatten();
        if let Some(other) = owners.find(|owner| *owner != name) {
            return Err(Wrong::Another(asked.clone(), other.clone()));
        }
    }
    Ok(())
}
