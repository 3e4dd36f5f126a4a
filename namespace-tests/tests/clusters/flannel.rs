//! A cluster whose network of pods is flannel, on nodes of two networks.

use anyhow::{Context, Result, ensure};
use namespace_tests::hub::Network;
use namespace_tests::lab::Lab;
use namespace_tests::node::{Node, NodeOptions};

use crate::control_plane::{PODS, READY};
use crate::join::ticket;
use crate::pods;

const OBJECT: &str = "name = \"lab\"\ncni = \"flannel\"\ntokens = [\"abcdef.0123456789abcdef\"]\nstart-timeout = \"10m\"\n[networks]\ndomain = \"lab.internal\"\n[certificates]\nalgorithm = \"ECDSA-P384\"\n[node]\ntaints = []\n";
/// Of the worker: what its kubelet registers it with.
const MARKS: &str = "taints = [{ key = \"dedicated\", value = \"lab\", effect = \"PreferNoSchedule\" }]\nlabels = { zone = \"far\" }\n";
/// The kubelets request the certificates of their servers.
const SERVING: (&str, &str) = (
    "config = { cgroupDriver",
    "config = { serverTLSBootstrap = true, cgroupDriver",
);
/// Seconds from a request to its approval.
const APPROVED: u64 = 10;
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";

/// A control plane and a worker behind a router become Ready once flannel works on them. Pods on both reach each other through its
/// device, with packets that fit into it, and do again after a power cut.
pub(crate) fn pods_on_two_networks_reach_each_other_by_vxlan(lab: &mut Lab) -> Result<()> {
    lab.hub.route_to_far()?;
    let proven = on_two_networks(lab);
    lab.hub.end_far()?;
    proven
}

fn on_two_networks(lab: &mut Lab) -> Result<()> {
    let mut first = lab.node_of(serving(lab.control_plane_options("cp1", 11, OBJECT))?)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    is_ready_by_flannel(&first)?;
    let object = ticket(&first)?.object("lab", false);
    let object = format!(
        "cni = \"flannel\"\n{}",
        object.replace("taints = []\n", MARKS)
    );
    let mut second = lab.node_of(NodeOptions {
        network: Network::Far,
        ..serving(lab.worker_options("w1", 21, &object))?
    })?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    is_ready_by_flannel(&second)?;
    has_marks(&first)?;
    for node in [&first, &second] {
        has_serving_certificate(&first, node)?;
    }
    is_approved_at_once(&first, "w1")?;
    for node in ["cp1", "w1"] {
        let pod = pods::serving(node, "cat /etc/hostname; cat /sys/class/net/eth0/mtu");
        first.run(&format!("{KUBECTL} apply -f - <<'END'\n{pod}\nEND"))?;
    }
    reach_each_other(&first, &second)?;
    second.cut()?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    is_ready_by_flannel(&second)?;
    reach_each_other(&first, &second)
}

/// The same node, whose kubelet requests the certificate of its server.
fn serving(options: NodeOptions) -> Result<NodeOptions> {
    let object = options.object.context("no object")?;
    ensure!(object.contains(SERVING.0), "the lab's words are others");
    Ok(NodeOptions {
        object: Some(object.replace(SERVING.0, SERVING.1)),
        ..options
    })
}

/// The worker has the label and the taint of its object, beside none of a control plane.
fn has_marks(first: &Node) -> Result<()> {
    let query = "get node w1 -o jsonpath='{.metadata.labels.zone} {.spec.taints[*].key} {.spec.taints[*].effect}'";
    let found = first.kubectl(query)?;
    ensure!(found == "far dedicated PreferNoSchedule", "w1 has {found}");
    Ok(())
}

/// The control plane has approved the request of this kubelet, which serves by a certificate of the cluster's authority. Without one
/// it answers nobody.
fn has_serving_certificate(first: &Node, node: &Node) -> Result<()> {
    let name = node.hostname();
    let requested = format!(
        "{KUBECTL} get csr -o jsonpath='{{range .items[*]}}{{.spec.signerName}} {{.spec.username}}{{\"\\n\"}}{{end}}' | grep -x 'kubernetes.io/kubelet-serving system:node:{name}'"
    );
    first.wait_for("the kubelet's request", &requested, PODS)?;
    let has = "test -e /var/lib/kubelet/pki/kubelet-server-current.pem";
    node.wait_for("the kubelet's certificate", has, PODS)?;
    let left = first.run("slipway-node csr --json")?;
    ensure!(left.trim() == "[]", "requests are left: {left}");
    let healthy = format!("{KUBECTL} get --raw /api/v1/nodes/{name}/proxy/healthz | grep -x ok");
    first
        .wait_for("the kubelet's server", &healthy, PODS)
        .map(drop)
}

/// The unit that approves watches the requests; that of the first control plane waits until the bring-up starts that unit.
fn is_approved_at_once(first: &Node, name: &str) -> Result<()> {
    let fields =
        "{.spec.signerName} {.metadata.creationTimestamp} {.status.conditions[0].lastUpdateTime}";
    let requests = format!(
        "get csr -o jsonpath='{{range .items[?(@.spec.username==\"system:node:{name}\")]}}{fields}{{\"\\n\"}}{{end}}'"
    );
    let seconds = first.run(&format!(
        "read -r made approved < <({KUBECTL} {requests} | awk '/kubelet-serving/ {{print $2, $3; exit}}') &&
echo $(( $(date -d \"$approved\" +%s) - $(date -d \"$made\" +%s) ))"
    ))?;
    let seconds: u64 = seconds.trim().parse().context(seconds)?;
    ensure!(seconds <= APPROVED, "{name} was approved after {seconds} s");
    Ok(())
}

/// What the kubelet is Ready by was written after flannel's own file, in this start of the node.
fn is_ready_by_flannel(node: &Node) -> Result<()> {
    let said = node.run(
        "cat /run/flannel/subnet.env && [ /etc/cni/net.d/10-slipway.conflist -nt /run/flannel/subnet.env ] && echo in order",
    )?;
    ensure!(
        said.contains("FLANNEL_MTU=1450\n") && said.ends_with("in order\n"),
        "{said}"
    );
    Ok(())
}

/// The pods answer each other, and the router, which knows none of their addresses, has carried it in packets of VXLAN.
fn reach_each_other(first: &Node, second: &Node) -> Result<()> {
    for (from, to) in [("on-cp1", "on-w1"), ("on-w1", "on-cp1")] {
        let script = format!(
            "address=$({KUBECTL} get pod {to} -o jsonpath={{.status.podIP}}) && [ -n \"$address\" ] &&
said=$({KUBECTL} exec {from} -- /usr/bin/bash -c \"exec 3<>/dev/tcp/$address/8080; timeout 5 cat <&3\") &&
{{ [ \"$said\" = \"{to}
1450\" ] || {{ echo \"$said\" >&2; false; }}; }}"
        );
        first.wait_for(&format!("{to}, asked by {from}"), &script, PODS)?;
    }
    for (node, other) in [(first, second), (second, first)] {
        let address = other.address();
        let said = node.run(
            "ip -d link show flannel.1; ip route; bridge fdb show dev flannel.1; cat /sys/class/net/flannel.1/statistics/rx_packets",
        )?;
        let carried = said
            .lines()
            .last()
            .and_then(|line| line.parse::<u32>().ok());
        ensure!(
            said.contains("vxlan id 1")
                && said.contains("mtu 1450")
                && said.contains("dev flannel.1 onlink")
                && said.contains(&format!("dst {address}"))
                && carried.is_some_and(|packets| packets > 0),
            "{said}"
        );
    }
    Ok(())
}
