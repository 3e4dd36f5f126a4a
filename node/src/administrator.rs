//! The API server of this control plane as its administrator, and this node as the API server has it.

use std::fs;

use anyhow::{Context, Result, bail};
use linux::world::World;
use serde_json::Value;

use crate::api::Api;
use crate::object::Bootstrap;

/// The administrator's kubeconfigs: the first one works before any role is bound, and may be taken away afterwards.
const KUBECONFIGS: [&str; 2] = [
    "/etc/kubernetes/super-admin.conf",
    "/etc/kubernetes/admin.conf",
];

/// The client of the API server on this node.
///
/// # Errors
/// If neither kubeconfig of the administrator can be used.
pub(crate) fn api(world: &World, bootstrap: &Bootstrap) -> Result<Api> {
    let server = bootstrap.object.config.init.local_api_endpoint.url();
    for path in KUBECONFIGS {
        let file = world.in_initrd(path);
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        return Api::new(&text, &server).with_context(|| format!("reading {}", file.display()));
    }
    bail!("none of {} exists", KUBECONFIGS.join(", "))
}

/// The node's object.
///
/// # Errors
/// If there is none, or the API server does not give it.
pub(crate) fn node(api: &Api, path: &str) -> Result<Value> {
    api.get(path)?.context("the kubelet has not registered it")
}

/// Why a node is not Ready; none if it is.
pub(crate) fn readiness(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|condition| condition["type"] == "Ready") else {
        return Some("it has no condition yet".to_owned());
    };
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    (ready["status"] != "True").then(|| format!("{}: {}", text("reason"), text("message")))
}
