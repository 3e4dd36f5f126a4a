//! Amazon's cloud controller of the cluster object, on two nodes, with a server in Amazon's place.

use std::time::Duration;

use anyhow::{Result, ensure};
use image::paths::CLUSTER;
use namespace_tests::lab::Lab;
use namespace_tests::node::{Node, NodeOptions};

use crate::amazon::{Amazon, Answer, KIND, Machine, REGION, ZONE, ZONE_ID};
use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::ticket;

/// The image of these tests.
pub(crate) const RECIPE: &str = "namespace-tests/aws.toml";
/// The taint that keeps pods off a node of which the controller does not know the machine.
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// All objects of the controller.
const OBJECTS: &str = "-n kube-system get serviceaccount/cloud-controller-manager configmap/aws-cloud-controller-manager \
                       daemonset/aws-cloud-controller-manager clusterrole/system:cloud-controller-manager \
                       clusterrolebinding/system:cloud-controller-manager \
                       rolebinding/cloud-controller-manager:apiserver-authentication-reader --ignore-not-found -o name";
/// The number of its objects.
const NUMBER: usize = 6;
/// How long a node without a lease is there before the controller asks for its machine, 50 s, and a few of its rounds.
const LOST: Duration = Duration::from_secs(120);
/// How long a pod must not be scheduled while the controller gets no answer.
const STAYS: Duration = Duration::from_secs(8);

/// The controller gives each node its machine's zone, type and addresses: a control plane by the id that its kubelet says, whatever it is called,
/// a worker by its name. While EC2 answers that there are too many requests, nothing runs on the worker; when its machine is gone, so is the node.
/// Without the word nothing of the controller is left.
pub(crate) fn amazons_controller_knows_each_nodes_machine(lab: &mut Lab) -> Result<()> {
    let (own, other) = (Machine::new(11), Machine::new(21));
    let amazon = Amazon::start(&lab.hub, vec![own.clone(), other.clone()])?;
    amazon.says(&other.id, Answer::Throttled);
    let word = format!(
        "[cloud]\nprovider = \"aws\"\nconfig = '''\n{}'''\n",
        Amazon::configuration()
    );
    let mut first = lab.node_of(NodeOptions {
        metadata: Some(metadata(&own)),
        ..lab.control_plane_options("cp1", 11, &format!("{OBJECT}{word}"))
    })?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    is_known(&first, "cp1", &own)?;

    let object = format!(
        "{}[cloud]\nprovider = \"aws\"\n",
        ticket(&first)?.object("lab", false)
    );
    let mut second = lab.node_of(NodeOptions {
        hostname: Some(other.name()),
        ..lab.worker_options("w1", 21, &object)
    })?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    waits_for_its_machine(&first, &other)?;
    amazon.says(&other.id, Answer::Running);
    is_known(&first, &other.name(), &other)?;
    let runs = "get pod waiting -o jsonpath='{.status.phase}' | grep Running";
    let kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
    first.wait_for("the pod on the worker", &format!("{kubectl} {runs}"), PODS)?;
    ensure!(
        amazon.unsigned().is_empty(),
        "not signed: {:?}",
        amazon.unsigned()
    );
    ensure!(amazon.asked("DescribeInstances") > 1, "EC2 was not asked");

    second.cut()?;
    amazon.says(&other.id, Answer::Gone);
    let gone = format!("! {kubectl} get node {}", other.name());
    first.wait_for("the node of a machine that is gone", &gone, LOST)?;

    let text = first.run(&format!("cat {CLUSTER}"))?;
    ensure!(text.contains(&word), "no word for it:\n{text}");
    let all = first.kubectl(OBJECTS)?;
    ensure!(all.lines().count() == NUMBER, "its objects are {all}");
    first.write_running(CLUSTER, &text.replace(&word, ""))?;
    let said = first.run_within("slipway-node cluster-up 2>&1", PODS)?;
    let left = first.kubectl(OBJECTS)?;
    ensure!(left.is_empty(), "{left} is left; {said}");
    Ok(())
}

/// What the init leaves of the metadata service's answers.
fn metadata(machine: &Machine) -> String {
    format!(
        "AFTERBURN_AWS_AVAILABILITY_ZONE={ZONE}\nAFTERBURN_AWS_INSTANCE_ID={}\nSLIPWAY_PLATFORM=aws\n",
        machine.id
    )
}

/// The node has what EC2 says of its machine, and takes pods.
fn is_known(node: &Node, name: &str, machine: &Machine) -> Result<()> {
    let kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
    let labels = r"{.metadata.labels.topology\.kubernetes\.io/zone} {.metadata.labels.topology\.kubernetes\.io/region} {.metadata.labels.node\.kubernetes\.io/instance-type} {.metadata.labels.topology\.k8s\.aws/zone-id} {.spec.providerID} {.spec.taints[*].key}";
    let expected = format!(
        "{ZONE} {REGION} {KIND} {ZONE_ID} {} ",
        machine.provider_id()
    );
    let has = format!("{kubectl} get node {name} -o jsonpath='{labels}' | grep -Fx '{expected}'");
    node.wait_for(&format!("what EC2 says of {name}"), &has, PODS)?;
    let addresses = node.kubectl(&format!(
        "get node {name} -o jsonpath='{{range .status.addresses[*]}}{{.type}}={{.address}} {{end}}'"
    ))?;
    for part in [
        format!("InternalIP={}", machine.address),
        format!("InternalDNS={}", machine.name()),
    ] {
        ensure!(
            addresses.contains(&part),
            "{name} has {addresses}, expected {part}"
        );
    }
    Ok(())
}

/// The worker is Ready and has the taint; a pod that is for it alone is not scheduled.
fn waits_for_its_machine(node: &Node, machine: &Machine) -> Result<()> {
    let name = machine.name();
    let taints = node.kubectl(&format!(
        "get node {name} -o jsonpath='{{.spec.taints[*].key}}'"
    ))?;
    ensure!(taints.contains(TAINT), "{name} has the taints {taints:?}");
    node.run(&format!(
        r#"kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f - <<'END'
{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "waiting"}},
 "spec": {{"nodeSelector": {{"kubernetes.io/hostname": "{name}"}},
  "containers": [{{"name": "pause", "image": "slipway.local/pause:baked", "imagePullPolicy": "Never"}}]}}}}
END"#
    ))?;
    std::thread::sleep(STAYS);
    let phase = node.kubectl("get pod waiting -o jsonpath='{.status.phase}{.spec.nodeName}'")?;
    ensure!(phase == "Pending", "the pod is {phase}");
    Ok(())
}
