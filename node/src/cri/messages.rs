//! The messages, with the fields that are used here, numbered as in the interface's description
//! (<https://github.com/kubernetes/cri-api/blob/v0.36.0/pkg/apis/runtime/v1/api.proto>).

use std::collections::BTreeMap;

use prost::Message;

/// The label of sandboxes and containers by which a pod's are found.
pub(crate) const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Those by which a name's are found.
pub(crate) const NAME_LABEL: &str = "io.kubernetes.pod.name";
pub(crate) const NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
/// A sandbox that runs (`SANDBOX_READY`).
pub(crate) const SANDBOX_READY: i32 = 0;
/// A container that runs (`CONTAINER_RUNNING`).
pub(crate) const CONTAINER_RUNNING: i32 = 1;
/// A namespace for each container (`NamespaceMode.CONTAINER`).
pub(crate) const OF_CONTAINER: i32 = 1;
/// The node's namespace (`NamespaceMode.NODE`).
pub(crate) const OF_NODE: i32 = 2;

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Filter {
    #[prost(btree_map = "string, string", tag = "3")]
    label_selector: BTreeMap<String, String>,
}

impl Filter {
    fn by(labels: &[(&str, &str)]) -> Self {
        let pairs = labels.iter();
        let pairs = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self {
            label_selector: pairs.collect(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ListPodSandboxRequest {
    #[prost(message, tag = "1")]
    filter: Option<Filter>,
}

impl ListPodSandboxRequest {
    pub(super) fn of_name(namespace: &str, name: &str) -> Self {
        let labels = [(NAMESPACE_LABEL, namespace), (NAME_LABEL, name)];
        Self {
            filter: Some(Filter::by(&labels)),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, tag = "2")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ListContainersRequest {
    /// Of containers the filter's labels have number 4.
    #[prost(message, tag = "1")]
    filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ContainerFilter {
    #[prost(btree_map = "string, string", tag = "4")]
    label_selector: BTreeMap<String, String>,
}

impl ListContainersRequest {
    pub(super) fn of_pod(uid: &str) -> Self {
        Self {
            filter: Some(ContainerFilter {
                label_selector: Filter::by(&[(UID_LABEL, uid)]).label_selector,
            }),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, tag = "3")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RunPodSandboxRequest {
    #[prost(message, tag = "1")]
    pub(crate) config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RunPodSandboxResponse {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, tag = "1")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, tag = "8")]
    pub(crate) linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub(crate) cgroup_parent: String,
    #[prost(message, tag = "2")]
    pub(crate) security_context: Option<LinuxSandboxSecurityContext>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LinuxSandboxSecurityContext {
    #[prost(message, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(message, tag = "9")]
    pub(crate) seccomp: Option<RuntimeDefault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
    #[prost(int32, tag = "2")]
    pub(crate) pid: i32,
}

/// `SecurityProfile` with its type 0.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct RuntimeDefault {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, tag = "3")]
    pub(crate) sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CreateContainerResponse {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) args: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(message, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    #[prost(string, tag = "18")]
    pub(crate) user_specified_image: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) readonly: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, tag = "1")]
    pub(crate) resources: Option<LinuxContainerResources>,
    #[prost(message, tag = "2")]
    pub(crate) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LinuxContainerResources {
    #[prost(int64, tag = "1")]
    pub(crate) cpu_period: i64,
    #[prost(int64, tag = "3")]
    pub(crate) cpu_shares: i64,
    #[prost(int64, tag = "5")]
    pub(crate) oom_score_adj: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LinuxContainerSecurityContext {
    #[prost(message, tag = "3")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(string, repeated, tag = "13")]
    pub(crate) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(crate) readonly_paths: Vec<String>,
    #[prost(message, tag = "15")]
    pub(crate) seccomp: Option<RuntimeDefault>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StartContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    /// Seconds until it is killed.
    #[prost(int64, tag = "2")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StopPodSandboxRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}
