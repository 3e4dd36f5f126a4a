//! The kubeconfigs of a control plane, as specifications.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::certs::{Certificate, client};
use crate::config::Config;
use crate::report::Report;
use crate::yaml::{self, Content, Node};

/// What a kubeconfig is to be. Its one cluster, context and user are named as kubeadm names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The file below `/etc/kubernetes`.
    pub file: &'static str,
    /// The URL of the API server.
    pub server: String,
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
        let cluster = json!({
            "certificate-authority-data": STANDARD.encode(credentials.authority),
            "server": self.server,
        });
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

/// The kubeconfig by which the kubelet of a joining node requests its identity: the user is a bootstrap token.
#[must_use]
pub fn bootstrap(cluster: &str, server: &str, authority: &str, token: &str) -> String {
    let user = "tls-bootstrap-token-user";
    let context = format!("{user}@{cluster}");
    yaml::write(&json!({
        "apiVersion": "v1",
        "clusters": [{
            "cluster": {
                "certificate-authority-data": STANDARD.encode(authority),
                "server": server,
            },
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
        authority: data(cluster, "certificate-authority-data"),
        certificate: data(user, "client-certificate-data"),
        key: data(user, "client-key-data"),
        certificate_file: file("client-certificate"),
        key_file: file("client-key"),
    })
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
