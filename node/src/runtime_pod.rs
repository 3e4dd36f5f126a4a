//! A static pod as the kubelet gives it to containerd, so that the kubelet takes what is started here for its own.
//!
//! After the kubelet's sources (<https://github.com/kubernetes/kubernetes/tree/v1.36.3/pkg/kubelet/kuberuntime>): a pod is known
//! again by its uid, which a manifest may give; a container by the hash of its name and its image.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use image::kubelet::STATE;
use serde_json::{Map, Value};

use crate::cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NAME_LABEL, NAMESPACE_LABEL, NamespaceOption, OF_CONTAINER,
    OF_NODE, PodSandboxConfig, PodSandboxMetadata, RuntimeDefault, UID_LABEL,
};

/// `guaranteedOOMScoreAdj`, which pods have that are critical to their node.
const OOM_SCORE: i64 = -997;
/// `HighestUserDefinablePriority` times two: the least priority of what is critical to the system.
const CRITICAL: i64 = 2_000_000_000;
/// The period of the CPU's bandwidth in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// The least weight of a control group.
const LEAST_SHARES: i64 = 2;
/// Where a container's message of its end is written, and how, by default.
const MESSAGE_PATH: &str = "/dev/termination-log";
const MESSAGE_POLICY: &str = "File";
/// Seconds that a pod has to end, by default.
const GRACE: &str = "30";
/// Paths of a container that show nothing (`pkg/securitycontext/util.go`).
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Those that cannot be written.
const READ_ONLY: &[&str] = &[
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// What a pod may say here, by its place; more is left to the kubelet.
const SPEC: &[&str] = &[
    "containers",
    "hostNetwork",
    "priority",
    "priorityClassName",
    "securityContext",
    "volumes",
];
const CONTAINER: &[&str] = &[
    "command",
    "args",
    "env",
    "image",
    "imagePullPolicy",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resources",
    "startupProbe",
    "volumeMounts",
];

/// What the kubelet's configuration says of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The node's name.
    pub(crate) node: String,
    /// Whether systemd makes the control groups.
    pub(crate) systemd: bool,
    /// The folder of the pods' logs.
    pub(crate) logs: String,
}

/// A pod of one container, ready to be started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuntimePod {
    /// Its uid.
    pub(crate) uid: String,
    /// Its sandbox.
    pub(crate) sandbox: PodSandboxConfig,
    /// Its container.
    pub(crate) container: ContainerConfig,
    /// Folders of the host that are made if they are not there.
    pub(crate) folders: Vec<String>,
    /// The kubelet's folder of the container.
    pub(crate) state: String,
    /// The control group, below the hierarchy's root.
    pub(crate) group: String,
}

impl RuntimePod {
    /// Reads a manifest.
    ///
    /// # Errors
    /// What of it only the kubelet can start.
    pub(crate) fn read(manifest: &Value, settings: &Settings) -> Result<Self> {
        let (metadata, spec) = (&manifest["metadata"], &manifest["spec"]);
        only(spec, SPEC)?;
        let uid = text(metadata, "uid")?;
        let name = format!("{}-{}", text(metadata, "name")?, settings.node);
        let namespace = text(metadata, "namespace")?;
        ensure!(
            spec["hostNetwork"] == true && spec["priority"].as_i64() >= Some(CRITICAL),
            "a pod with a network of its own, or that the node can do without"
        );
        ensure!(
            spec["securityContext"]
                == serde_json::json!({"seccompProfile": {"type": "RuntimeDefault"}}),
            "securityContext"
        );
        let [container] = list(spec, "containers") else {
            bail!("more than one container");
        };
        only(container, CONTAINER)?;
        let requests = container["resources"]["requests"].as_object();
        let requests = requests.filter(|requests| {
            // Without a request, or with a limit, a pod is of another class and in another control group.
            !requests.is_empty() && container["resources"].as_object().map(Map::len) == Some(1)
        });
        let requests = requests.context("resources")?;
        let (group, parent) = groups(&uid, settings.systemd);
        let (mounts, folders) = mounts(container, list(spec, "volumes"))?;
        let state = format!("{STATE}/pods/{uid}/containers/{}", text(container, "name")?);
        let pod = PodLabels {
            name: &name,
            namespace: &namespace,
            uid: &uid,
        };
        Ok(Self {
            sandbox: PodSandboxConfig {
                metadata: Some(PodSandboxMetadata {
                    name: name.clone(),
                    uid: uid.clone(),
                    namespace: namespace.clone(),
                    attempt: 0,
                }),
                log_directory: format!("{}/{namespace}_{name}_{uid}", settings.logs),
                labels: pod.labels(strings(&metadata["labels"])),
                annotations: annotations(metadata, &uid),
                linux: Some(LinuxPodSandboxConfig {
                    cgroup_parent: parent,
                    security_context: Some(LinuxSandboxSecurityContext {
                        namespace_options: Some(NAMESPACES),
                        seccomp: Some(RuntimeDefault {}),
                    }),
                }),
            },
            container: container_config(container, &pod, requests, mounts)?,
            folders,
            state,
            group,
            uid,
        })
    }

    /// Numbers the sandbox and the container: how many of each there were.
    pub(crate) fn number(&mut self, sandboxes: u32, containers: u32) {
        if let Some(metadata) = &mut self.sandbox.metadata {
            metadata.attempt = sandboxes;
        }
        let container = &mut self.container;
        if let Some(metadata) = &mut container.metadata {
            metadata.attempt = containers;
            container.log_path = format!("{}/{containers}.log", metadata.name);
        }
        let count = ("io.kubernetes.container.restartCount", containers);
        let (key, count) = (count.0.to_owned(), count.1.to_string());
        container.annotations.insert(key, count);
    }

    /// Has the container's message of its end written to this file.
    pub(crate) fn messages_to(&mut self, file: &str) {
        self.container.mounts.push(Mount {
            container_path: MESSAGE_PATH.to_owned(),
            host_path: file.to_owned(),
            readonly: false,
        });
    }
}

const NAMESPACES: NamespaceOption = NamespaceOption {
    network: OF_NODE,
    pid: OF_CONTAINER,
};

/// What labels say of a pod.
struct PodLabels<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

impl PodLabels<'_> {
    fn labels(&self, mut all: BTreeMap<String, String>) -> BTreeMap<String, String> {
        for (key, value) in [
            (NAME_LABEL, self.name),
            (NAMESPACE_LABEL, self.namespace),
            (UID_LABEL, self.uid),
        ] {
            all.insert(key.to_owned(), value.to_owned());
        }
        all
    }
}

/// The annotations of a pod that was read from a file.
fn annotations(metadata: &Value, uid: &str) -> BTreeMap<String, String> {
    let mut all = strings(&metadata["annotations"]);
    for (key, value) in [("hash", uid), ("source", "file")] {
        all.insert(format!("kubernetes.io/config.{key}"), value.to_owned());
    }
    all
}

fn container_config(
    container: &Value,
    pod: &PodLabels<'_>,
    requests: &Map<String, Value>,
    mounts: Vec<Mount>,
) -> Result<ContainerConfig> {
    let (name, image) = (text(container, "name")?, text(container, "image")?);
    let mut labels = pod.labels(BTreeMap::new());
    labels.insert("io.kubernetes.container.name".to_owned(), name.clone());
    let annotations = [
        ("container.hash", hash(&name, &image)),
        ("container.terminationMessagePath", MESSAGE_PATH.to_owned()),
        (
            "container.terminationMessagePolicy",
            MESSAGE_POLICY.to_owned(),
        ),
        ("pod.terminationGracePeriod", GRACE.to_owned()),
    ];
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name, attempt: 0 }),
        image: Some(ImageSpec {
            image: image.clone(),
            user_specified_image: image,
        }),
        command: words(container, "command")?,
        args: words(container, "args")?,
        envs: environment(list(container, "env"))?,
        mounts,
        labels,
        annotations: annotations
            .map(|(key, value)| (format!("io.kubernetes.{key}"), value))
            .into(),
        log_path: String::new(),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_period: CPU_PERIOD,
                cpu_shares: shares(requests)?,
                oom_score_adj: OOM_SCORE,
            }),
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(NAMESPACES),
                masked_paths: MASKED.iter().map(ToString::to_string).collect(),
                readonly_paths: READ_ONLY.iter().map(ToString::to_string).collect(),
                seccomp: Some(RuntimeDefault {}),
            }),
        }),
    })
}

/// The hash by which the kubelet knows that a container is the one of its pod: FNV-1a of 32 bits over what Go's `spew` prints of
/// the bytes of a JSON object with both (`HashContainer` of `pkg/kubelet/container/helpers.go`, 1.34 to 1.36).
fn hash(name: &str, image: &str) -> String {
    let object = serde_json::json!({"image": image, "name": name}).to_string();
    let bytes: Vec<String> = object.bytes().map(|byte| byte.to_string()).collect();
    let printed = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = printed.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{hash:x}")
}

/// The weight of a request for CPU.
fn shares(requests: &Map<String, Value>) -> Result<i64> {
    let Some(cpu) = requests.get("cpu") else {
        return Ok(LEAST_SHARES);
    };
    let cpu = cpu.as_str().unwrap_or_default();
    let thousandths: i64 = match cpu.strip_suffix('m') {
        Some(number) => number.parse().ok(),
        None => cpu.parse::<i64>().ok().map(|whole| whole * 1000),
    }
    .with_context(|| format!("resources.requests.cpu: {cpu:?}"))?;
    Ok((thousandths * 1024 / 1000).max(LEAST_SHARES))
}

/// The control group of a pod that requests resources and limits none (Kubernetes calls that the QoS class Burstable): its path below
/// `/sys/fs/cgroup`, and the parent group by the name that the request to containerd has for it.
fn groups(uid: &str, systemd: bool) -> (String, String) {
    if systemd {
        let uid = uid.replace('-', "_");
        let path =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
        return (path.clone(), path);
    }
    let path = format!("/kubepods/burstable/pod{uid}");
    (path.clone(), path)
}

/// The mounts of a container, and the folders that have to be there.
fn mounts(container: &Value, volumes: &[Value]) -> Result<(Vec<Mount>, Vec<String>)> {
    let mut paths = BTreeMap::new();
    let mut folders = Vec::new();
    for volume in volumes {
        let (name, host) = (text(volume, "name")?, &volume["hostPath"]);
        let path = text(host, "path").with_context(|| format!("volume {name}"))?;
        match host["type"].as_str().unwrap_or_default() {
            "DirectoryOrCreate" => folders.push(path.clone()),
            "" | "Directory" | "File" => {}
            other => bail!("volume {name} of the type {other}"),
        }
        paths.insert(name, path);
    }
    let mut mounts = Vec::new();
    for mount in list(container, "volumeMounts") {
        only(mount, &["mountPath", "name", "readOnly"])?;
        let name = text(mount, "name")?;
        mounts.push(Mount {
            container_path: text(mount, "mountPath")?,
            host_path: paths.get(&name).context("a mount without volume")?.clone(),
            readonly: mount["readOnly"] == true,
        });
    }
    Ok((mounts, folders))
}

fn environment(list: &[Value]) -> Result<Vec<KeyValue>> {
    list.iter()
        .map(|variable| {
            only(variable, &["name", "value"])?;
            let value = variable["value"].as_str().unwrap_or_default();
            // The kubelet would replace references to other variables.
            ensure!(!value.contains('$'), "a variable with a reference");
            Ok(KeyValue {
                key: text(variable, "name")?,
                value: value.to_owned(),
            })
        })
        .collect()
}

/// Words of a command without references to variables, which the kubelet would replace.
fn words(container: &Value, key: &str) -> Result<Vec<String>> {
    let words: Vec<String> = list(container, key)
        .iter()
        .map(|word| word.as_str().map(str::to_owned))
        .collect::<Option<_>>()
        .with_context(|| key.to_owned())?;
    ensure!(
        !words.iter().any(|word| word.contains("$(")),
        "{key} with a reference to a variable"
    );
    Ok(words)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value, key: &str) -> Result<String> {
    let found = value[key].as_str().filter(|found| !found.is_empty());
    found
        .map(str::to_owned)
        .with_context(|| format!("no {key}"))
}

fn strings(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Refuses what has other keys.
fn only(value: &Value, known: &[&str]) -> Result<()> {
    let keys = value.as_object().into_iter().flatten();
    for (key, _) in keys {
        ensure!(known.contains(&key.as_str()), "{key}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings() -> Settings {
        Settings {
            node: "cp1".to_owned(),
            systemd: true,
            logs: "/var/log/pods".to_owned(),
        }
    }

    fn manifest() -> Value {
        json!({
            "metadata": {"name": "etcd", "namespace": "kube-system", "uid": "a-b", "labels": {"tier": "control-plane"}},
            "spec": {
                "containers": [{
                    "name": "etcd", "image": "slipway.local/etcd:3.5.16-0", "command": ["etcd", "--name=a"],
                    "env": [{"name": "A", "value": "b"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
                    "volumeMounts": [{"mountPath": "/data", "name": "data"}, {"mountPath": "/pki", "name": "pki", "readOnly": true}],
                }],
                "hostNetwork": true, "priority": 2_000_001_000,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "volumes": [
                    {"name": "data", "hostPath": {"path": "/var/lib/etcd", "type": "DirectoryOrCreate"}},
                    {"name": "pki", "hostPath": {"path": "/etc/pki"}},
                ],
            },
        })
    }

    /// By Go's own `HashContainer`.
    #[test]
    fn a_container_has_the_kubelets_hash() {
        assert_eq!(hash("etcd", "slipway.local/etcd:3.5.16-0"), "fdfc207b");
    }

    #[test]
    fn a_pod_is_what_the_kubelet_makes_of_it() {
        let mut pod = RuntimePod::read(&manifest(), &settings()).unwrap();
        pod.number(1, 2);
        assert_eq!(pod.sandbox.metadata.as_ref().unwrap().name, "etcd-cp1");
        assert_eq!(pod.sandbox.metadata.as_ref().unwrap().attempt, 1);
        assert_eq!(pod.sandbox.annotations["kubernetes.io/config.hash"], "a-b");
        assert_eq!(
            pod.sandbox.log_directory,
            "/var/log/pods/kube-system_etcd-cp1_a-b"
        );
        assert_eq!(pod.container.log_path, "etcd/2.log");
        let group = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice";
        assert_eq!(pod.group, group);
        assert_eq!(pod.folders, ["/var/lib/etcd"]);
        let resources = pod.container.linux.as_ref().unwrap().resources.unwrap();
        assert_eq!(resources.cpu_shares, 102);
        let read_only: Vec<bool> = pod.container.mounts.iter().map(|m| m.readonly).collect();
        assert_eq!(read_only, [false, true]);
    }

    #[test]
    fn what_only_the_kubelet_can_start_is_named() {
        for (pointer, value, named) in [
            ("/metadata/uid", json!(""), "uid"),
            ("/spec/hostPID", json!(true), "hostPID"),
            ("/spec/hostNetwork", json!(false), "network"),
            ("/spec/priority", json!(0), "can do without"),
            ("/spec/securityContext", json!({}), "securityContext"),
            ("/spec/containers/0/lifecycle", json!({}), "lifecycle"),
            ("/spec/containers/0/command", json!(["$(A)"]), "command"),
            ("/spec/containers/0/env/0/value", json!("$(B)"), "reference"),
            ("/spec/containers/0/env/0/valueFrom", json!({}), "valueFrom"),
            (
                "/spec/containers/0/resources/limits",
                json!({}),
                "resources",
            ),
            ("/spec/volumes/0/hostPath/type", json!("Socket"), "Socket"),
            ("/spec/volumes/0/emptyDir", json!({}), ""),
        ] {
            let mut manifest = manifest();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            manifest.pointer_mut(parent).unwrap()[key] = value;
            if named.is_empty() {
                manifest["spec"]["volumes"][0]["hostPath"] = Value::Null;
            }
            let error = RuntimePod::read(&manifest, &settings()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(named), "{pointer}: {error}");
        }
    }
}
