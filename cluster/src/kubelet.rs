//! The files of the kubelet on this node.

use crate::arguments::{arg, merged};
use crate::config::Config;
use crate::host::Host;
use crate::images;
use crate::static_pods::File;
use crate::types::argument;
use crate::yaml;

/// The kubelet's configuration and its arguments.
#[must_use]
pub fn files(config: &Config, host: &Host) -> Vec<File> {
    if config.skips("kubelet-start") {
        return Vec::new();
    }
    let file = |name: &str, text: String| File {
        path: format!("/var/lib/kubelet/{name}"),
        text,
    };
    vec![
        file("config.yaml", yaml::write(&instance(config))),
        file("kubeadm-flags.env", flags(config, host)),
    ]
}

/// The cluster's configuration of kubelets with what is this node's own: the socket of the container runtime.
fn instance(config: &Config) -> serde_json::Value {
    let mut value = config.kubelet.value.clone();
    if config.gate("NodeLocalCRISocket") {
        let socket = config.init.node_registration.cri_socket.as_str();
        value["containerRuntimeEndpoint"] = socket.into();
    }
    value
}

/// `KUBELET_KUBEADM_ARGS`, as the kubelet's unit reads it.
fn flags(config: &Config, host: &Host) -> String {
    let node = &config.init.node_registration;
    let mut arguments = Vec::new();
    if !config.gate("NodeLocalCRISocket") {
        arguments.push(arg("container-runtime-endpoint", &node.cri_socket));
    }
    if let Some(image) = images::pause(config) {
        arguments.push(arg("pod-infra-container-image", image));
    }
    let name = argument(&node.kubelet_extra_args, "hostname-override").unwrap_or(&node.name);
    if name != host.name {
        arguments.push(arg("hostname-override", name));
    }
    let arguments = merged(arguments, &node.kubelet_extra_args).join(" ");
    format!("KUBELET_KUBEADM_ARGS={}\n", quoted(&arguments))
}

/// Go's `%q`, for what a flag may hold.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        '\r' => "\\r".to_owned(),
        c if c.is_control() && c.is_ascii() => format!("\\x{:02x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}
