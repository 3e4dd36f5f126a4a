//! Bootstrap tokens, and what nodes may do with them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::rbac::{cluster_binding, cluster_role, group, reader, user};
use super::{Moment, NEW_NODES, NODES, Object, config_map};
use crate::config::{Config, Token};
use crate::yaml;

/// The roles whose requests for certificates are approved: a new node's, and those of a node that renews its own.
const NEW_NODE: &str = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
const RENEWAL: &str = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";

pub(super) fn objects(config: &Config, moment: &dyn Moment) -> Vec<Object> {
    let tokens = config.init.bootstrap_tokens.iter();
    let mut objects: Vec<Object> = tokens.map(|token| secret(token, moment)).collect();
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
    objects.push(cluster_role("kubeadm:get-nodes", &rules));
    for (name, role, subject) in [
        ("kubeadm:get-nodes", "kubeadm:get-nodes", NEW_NODES),
        (
            "kubeadm:kubelet-bootstrap",
            "system:node-bootstrapper",
            NEW_NODES,
        ),
        ("kubeadm:node-autoapprove-bootstrap", NEW_NODE, NEW_NODES),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            RENEWAL,
            NODES,
        ),
    ] {
        objects.push(cluster_binding(name, role, &group(subject)));
    }
    if config.kubeadm.release.kubelet_client.is_none() {
        let client = user("kube-apiserver-kubelet-client");
        let name = "kubeadm:apiserver-kubelet-client";
        objects.push(cluster_binding(name, "system:kubelet-api-admin", &client));
    }
    objects.extend(cluster_info(config, moment));
    objects
}

/// The secret of a token.
fn secret(token: &Token, moment: &dyn Moment) -> Object {
    let text = match token.token.as_str() {
        "" => moment.token(),
        text => text.to_owned(),
    };
    let (id, secret) = text.split_once('.').unwrap_or((&text, ""));
    let mut data = json!({
        "token-id": STANDARD.encode(id),
        "token-secret": STANDARD.encode(secret),
    });
    if !token.description.is_empty() {
        data["description"] = STANDARD.encode(&token.description).into();
    }
    if token.ttl.0 > 0 {
        data["expiration"] = moment.expiry(token.ttl).into();
    }
    for usage in &token.usages {
        data[format!("usage-bootstrap-{usage}")] = STANDARD.encode("true").into();
    }
    if !token.groups.is_empty() {
        data["auth-extra-groups"] = STANDARD.encode(token.groups.join(",")).into();
    }
    Object::create(json!({
        "apiVersion": "v1",
        "data": data,
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
    }))
}

/// What a node learns about the cluster before it trusts it, readable by everybody.
fn cluster_info(config: &Config, moment: &dyn Moment) -> Vec<Object> {
    let cluster = json!({
        "certificate-authority-data": moment.authority(),
        "server": config.control_plane_url(),
    });
    let mut kubeconfig = json!({
        "apiVersion": "v1",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": Value::Null,
        "current-context": "",
        "kind": "Config",
        "users": Value::Null,
    });
    if config.kubeadm.release.writes_empty {
        kubeconfig["preferences"] = json!({});
    }
    let data = json!({"kubeconfig": yaml::write(&kubeconfig)});
    let mut objects = vec![config_map("kube-public", "cluster-info", &data)];
    let name = "kubeadm:bootstrap-signer-clusterinfo";
    let everybody = [user("system:anonymous")];
    objects.extend(reader("kube-public", name, "cluster-info", &everybody));
    objects
}
