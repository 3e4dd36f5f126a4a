//! The kubeconfigs of a control plane, as specifications.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::certs::{Certificate, client};
use crate::config::Config;
use crate::report::Report;
use crate::yaml::{self, Content, Node};

/// The field of a cluster with the name of its API server's certificate.
const SERVER_NAME: &str = "tls-server-name";

/// What a kubeconfig is to be. Its one cluster, context and user are named as kubeadm names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The file below `/etc/kubernetes`.
    pub file: &'static str,
    /// The URL of the API server.
    pub server: String,
    /// The name of the API server's certificate, if that is not the URL's host.
    pub server_name: Option<String>,
    /// The cluster's name.
    pub cluster: String,
    /// The user, whose certificate has the same name.
    pub user: String,
    /// The user's certificate.
    pub certificate: Certificate,
}

/// What a kubeconfig has of keys and certificates, each as PEM.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The certificate of the API server's authority.
    pub authority: &'a str,
    /// The user's certificate.
    pub certificate: &'a str,
    /// The user's key.
    pub key: &'a str,
}

impl Kubeconfig {
    /// The file.
    #[must_use]
    pub fn text(&self, credentials: Credentials<'_>) -> String {
        let cluster = cluster(
            &self.server,
            self.server_name.as_deref(),
            credentials.authority,
        );
        let user = json!({
            "client-certificate-data": STANDARD.encode(credentials.certificate),
            "client-key-data": STANDARD.encode(credentials.key),
        });
        yaml::write(&json!({
            "apiVersion": "v1",
            "clusters": [{"cluster": cluster, "name": self.cluster}],
            "contexts": [{
                "context": {"cluster": self.cluster, "user": self.user},
                "name": self.context(),
            }],
            "current-context": self.context(),
            "kind": "Config",
            "users": [{"name": self.user, "user": user}],
        }))
    }

    /// The context's name.
    #[must_use]
    pub fn context(&self) -> String {
        format!("{}@{}", self.user, self.cluster)
    }
}

/// The kubeconfigs.
#[must_use]
pub fn kubeconfigs(config: &Config) -> Vec<Kubeconfig> {
    let cluster = config.control_plane_url();
    let here = config.init.local_api_endpoint.url();
    let node = format!("system:node:{}", config.init.node_registration.name);
    let known = config
        .kubeadm
        .release
        .gates
        .iter()
        .any(|(name, _)| *name == "ControlPlaneKubeletLocalMode");
    let local = !known || config.gate("ControlPlaneKubeletLocalMode");
    let kubelet = if local { &here } else { &cluster };
    let all = [
        (
            "admin",
            "kubernetes-admin",
            Some("kubeadm:cluster-admins"),
            &cluster,
        ),
        (
            "super-admin",
            "kubernetes-super-admin",
            Some("system:masters"),
            &cluster,
        ),
        ("kubelet", &node, Some("system:nodes"), kubelet),
        (
            "controller-manager",
            "system:kube-controller-manager",
            None,
            &here,
        ),
        ("scheduler", "system:kube-scheduler", None, &here),
    ];
    let wanted = all
        .into_iter()
        .filter(|(name, ..)| !config.skips(&format!("kubeconfig/{name}")));
    wanted
        .map(|(name, user, organisation, server)| Kubeconfig {
            file: file(name),
            server: server.clone(),
            server_name: None,
            cluster: config.cluster.cluster_name.clone(),
            user: user.to_owned(),
            certificate: client(config, user, organisation),
        })
        .collect()
}

fn file(name: &str) -> &'static str {
    match name {
        "admin" => "admin.conf",
        "super-admin" => "super-admin.conf",
        "kubelet" => "kubelet.conf",
        "controller-manager" => "controller-manager.conf",
        _ => "scheduler.conf",
    }
}

/// The cluster of a kubeconfig.
fn cluster(server: &str, server_name: Option<&str>, authority: &str) -> Value {
    let mut cluster = json!({
        "certificate-authority-data": STANDARD.encode(authority),
        "server": server,
    });
    if let Some(name) = server_name {
        cluster[SERVER_NAME] = name.into();
    }
    cluster
}

/// The kubeconfig by which the kubelet of a joining node requests its identity: the user is a bootstrap token.
#[must_use]
pub fn bootstrap(cluster: &str, server: &str, authority: &str, token: &str) -> String {
    let user = "tls-bootstrap-token-user";
    let context = format!("{user}@{cluster}");
    yaml::write(&json!({
        "apiVersion": "v1",
        "clusters": [{
            "cluster": self::cluster(server, None, authority),
            "name": cluster,
        }],
        "contexts": [{"context": {"cluster": cluster, "user": user}, "name": context}],
        "current-context": context,
        "kind": "Config",
        "users": [{"name": user, "user": {"token": token}}],
    }))
}

/// What a kubeconfig's first cluster and first user are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The URL of the API server.
    pub server: String,
    /// The name of the API server's certificate, if that is not the URL's host.
    pub server_name: Option<String>,
    /// The certificate of its authority, PEM, if it is in the file.
    pub authority: Option<String>,
    /// The user's certificate, PEM, if it is in the file.
    pub certificate: Option<String>,
    /// The user's key, PEM, if it is in the file.
    pub key: Option<String>,
    /// The file of the user's certificate, if it is one of its own.
    pub certificate_file: Option<String>,
    /// The file of the user's key, if it is one of its own.
    pub key_file: Option<String>,
}

/// Reads a kubeconfig. Nothing if it has no cluster or no user.
#[must_use]
pub fn read(text: &str) -> Option<Given> {
    let root = yaml::document(text, 0, &mut Report::default())?;
    let cluster = first(&root, "clusters")?.get("cluster")?;
    let user = first(&root, "users")?.get("user")?;
    let file = |key: &str| user.get(key)?.text().map(str::to_owned);
    Some(Given {
        server: cluster.get("server")?.text()?.to_owned(),
        server_name: cluster
            .get(SERVER_NAME)
            .and_then(Node::text)
            .map(str::to_owned),
        authority: data(cluster, "certificate-authority-data"),
        certificate: data(user, "client-certificate-data"),
        key: data(user, "client-key-data"),
        certificate_file: file("client-certificate"),
        key_file: file("client-key"),
    })
}

/// The same kubeconfig, whose first cluster is at another URL; `server_name` is the name of the API server's certificate, if that
/// is not the URL's host. Nothing if it is no kubeconfig, or if nothing changes.
#[must_use]
pub fn redirected(text: &str, server: &str, server_name: Option<&str>) -> Option<String> {
    let given = read(text)?;
    if given.server == server && given.server_name.as_deref() == server_name {
        return None;
    }
    let root = yaml::document(text, 0, &mut Report::default())?;
    let mut value = root.content.value();
    let cluster = value["clusters"][0]["cluster"].as_object_mut()?;
    cluster.insert("server".to_owned(), server.into());
    match server_name {
        Some(name) => drop(cluster.insert(SERVER_NAME.to_owned(), name.into())),
        None => drop(cluster.remove(SERVER_NAME)),
    }
    Some(yaml::write(&value))
}

fn first<'a>(root: &'a Node, list: &str) -> Option<&'a Node> {
    match &root.get(list)?.content {
        Content::List(items) => items.first(),
        _ => None,
    }
}

/// Text in base 64.
fn data(node: &Node, key: &str) -> Option<String> {
    let bytes = STANDARD.decode(node.get(key)?.text()?).ok()?;
    String::from_utf8(bytes).ok()
}
