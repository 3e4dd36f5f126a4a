//! The files of the kubelet on this node.

use serde_json::{Map, Value};

use crate::arguments::{arg, merged};
use crate::components::goes_with;
use crate::config::Config;
use crate::fields::KUBELET;
use crate::flags::{self, GATE};
use crate::host::Host;
use crate::images;
use crate::object::Join;
use crate::release::Version;
use crate::report::Report;
use crate::schema::{Field, Kind};
use crate::static_pods::File;
use crate::types::argument;
use crate::yaml;

/// The gate that lets a kubelet probe anew what ran before it, as all did before 1.35.
const PROBES_ANEW: &str = "ChangeContainerStatusOnKubeletRestart";

/// The field of what a cloud calls the node's machine.
const PROVIDER_ID: &str = "providerID";

/// The kubelet's configuration and its arguments.
#[must_use]
pub fn files(config: &Config, host: &Host) -> Vec<File> {
    if config.skips("kubelet-start") {
        return Vec::new();
    }
    vec![
        file(
            "config.yaml",
            instance(config, config.kubelet.value.clone()),
        ),
        arguments(config, host),
    ]
}

/// As [`files`], for a kubelet of this version that finds static pods which run before it does.
///
/// A kubelet of 1.35 or 1.36 takes each of their containers for started, however long its startup probe would give it, so that the
/// liveness probe ends an etcd or an API server that needs more than 90 s, and what the kubelet starts in its place is taken for
/// started too (kubernetes issues 142305 and 141155). With the gate it probes their start, as before. It stays as the
/// configuration has it, if that names it. Kubelets of nodes without a control plane find no pods, and keep the cluster's words.
#[must_use]
pub fn files_beside_pods(config: &Config, host: &Host, kubelet: Option<&Version>) -> Vec<File> {
    let mut config = config.clone();
    let has = kubelet.is_some_and(|kubelet| flags::has(GATE, kubelet.minor(), PROBES_ANEW));
    let gates = &config.kubelet.value["featureGates"];
    if has && gates.get(PROBES_ANEW).is_none() {
        config.kubelet.value["featureGates"][PROBES_ANEW] = true.into();
    }
    files(&config, host)
}

/// The files that are this node's own: the kubelet's arguments, and [`instance_config`].
#[must_use]
pub fn of_node(config: &Config, host: &Host) -> Vec<File> {
    let mut files = vec![arguments(config, host)];
    files.extend(instance_config(config));
    files
}

/// The file in which kubeadm's tools look for the container runtime's socket, unless the node has it as an annotation. A dry run
/// of kubeadm does not show it.
#[must_use]
pub fn instance_config(config: &Config) -> Option<File> {
    let socket = quoted(&config.init.node_registration.cri_socket);
    config.gate("NodeLocalCRISocket").then(|| {
        let text = format!("containerRuntimeEndpoint: {socket}\n");
        file("instance-config.yaml", text)
    })
}

/// The file of the arguments of the kubelet on this node.
#[must_use]
pub fn arguments(config: &Config, host: &Host) -> File {
    file("kubeadm-flags.env", flags(config, host))
}

/// The configuration of the kubelet on a node that joins, by the text that the cluster has for all its kubelets.
///
/// # Errors
/// If the text is no configuration of a kubelet.
pub fn joined(config: &Config, join: &Join, text: &str) -> Result<File, Report> {
    let mut report = Report::default();
    let root = yaml::document(text, 0, &mut report);
    let mut value = root.map_or(Value::Null, |root| root.content.value());
    if value["kind"] != "KubeletConfiguration" && report.mistakes.is_empty() {
        report.refuse("kind", "expected KubeletConfiguration");
    }
    let Some(fields) = value.as_object_mut().filter(|_| report.mistakes.is_empty()) else {
        return Err(report);
    };
    for (name, needed) in &join.system {
        // kubeadm writes durations that nobody has set as zero.
        let open = |value: &Value| value.is_null() || value == "" || value == "0s";
        // What this node's object has counts more than what the cluster has.
        let given = |name: &str| join.kubelet.get(name).or_else(|| fields.get(name)).cloned();
        if fields.get(name).is_none_or(open) && goes_with(name, needed, given) {
            fields.insert(name.clone(), needed.clone());
        }
    }
    put_over(fields, &join.kubelet, KUBELET);
    Ok(file("config.yaml", instance(config, value)))
}

/// Puts a node's own fields over the cluster's, which keeps the others of each table (`authentication`), as a control plane's own document
/// does. Lists, and maps of names, are taken as a whole.
fn put_over(there: &mut Map<String, Value>, own: &Map<String, Value>, known: &[Field]) {
    for (name, value) in own {
        let field = known.iter().find(|field| field.name == name);
        let table = match field.map(|field| field.kind) {
            Some(Kind::Object(inner)) => value.as_object().map(|own| (own, inner)),
            _ => None,
        };
        if let Some((own, inner)) = table
            && let Some(there) = there.get_mut(name).and_then(Value::as_object_mut)
        {
            put_over(there, own, inner);
            continue;
        }
        there.insert(name.clone(), value.clone());
    }
}

/// A worker's configuration with what its cloud calls its machine, which the worker that wrote it may not have known. Nothing if that stands
/// there, and in a cluster of no cloud.
///
/// # Errors
/// If the text is not YAML with fields.
pub fn with_provider_id(config: &Config, text: &str) -> Result<Option<String>, Report> {
    let Some(provider_id) = &config.provider_id else {
        return Ok(None);
    };
    let mut report = Report::default();
    let root = yaml::document(text, 0, &mut report);
    let mut value = root.map_or(Value::Null, |root| root.content.value());
    if !value.is_object() && report.mistakes.is_empty() {
        report.refuse("", "expected the fields of KubeletConfiguration");
    }
    if !report.mistakes.is_empty() {
        return Err(report);
    }
    if value[PROVIDER_ID] == provider_id.as_str() {
        return Ok(None);
    }
    value[PROVIDER_ID] = provider_id.as_str().into();
    Ok(Some(yaml::write(&value)))
}

fn file(name: &str, text: String) -> File {
    File {
        path: format!("/var/lib/kubelet/{name}"),
        text,
    }
}

/// The cluster's configuration of kubelets with what is this node's own: the socket of the container runtime, and what its cloud calls
/// its machine.
fn instance(config: &Config, mut value: Value) -> String {
    if config.gate("NodeLocalCRISocket") {
        let socket = config.init.node_registration.cri_socket.as_str();
        value["containerRuntimeEndpoint"] = socket.into();
    }
    if let Some(provider_id) = &config.provider_id {
        value[PROVIDER_ID] = provider_id.as_str().into();
    }
    yaml::write(&value)
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
        // Signs that nobody sees: controls, and spaces that are not ASCII's.
        c if c.is_control() || (c.is_whitespace() && c != ' ') => {
            format!("\\u{:04x}", u32::from(c))
        }
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}
