//! A cluster whose pods and services have addresses of both IP versions.

use anyhow::{Result, ensure};
use namespace_tests::hub::Network;
use namespace_tests::lab::Lab;
use namespace_tests::node::{Node, NodeOptions};

use crate::control_plane::{PODS, READY};
use crate::join::ticket;
use crate::pods;

const NETWORKS: &str = "[networks]\npods = [\"10.244.0.0/16\", \"fd00:244::/56\"]\nservices = [\"10.96.0.0/16\", \"fd00:96::/112\"]\n";
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";

/// The service.
const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: { name: both }
spec:
  ipFamilyPolicy: RequireDualStack
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
";

/// By the node's own bridge, on one network.
pub(crate) fn pods_and_services_have_both_ip_versions(lab: &mut Lab) -> Result<()> {
    works(lab, "bridge", Network::Near)
}

/// By flannel, on two networks.
pub(crate) fn flannel_carries_both_ip_versions_between_networks(lab: &mut Lab) -> Result<()> {
    lab.hub.route_to_far()?;
    let proven = works(lab, "flannel", Network::Far);
    lab.hub.end_far()?;
    proven
}

/// A control plane and a worker have two addresses each without a word about them. Their pods have two each, reach each other by both,
/// and a service by both of its own and by its name; after a power cut of the worker too.
fn works(lab: &mut Lab, cni: &str, network: Network) -> Result<()> {
    let head = format!("cni = \"{cni}\"\n");
    let object = format!(
        "{head}name = \"lab\"\ntokens = [\"abcdef.0123456789abcdef\"]\nstart-timeout = \"10m\"\n[node]\ntaints = []\n{NETWORKS}"
    );
    let mut first = lab.control_plane("cp1", 11, &object)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let object = format!("{head}{}{NETWORKS}", ticket(&first)?.object("lab", false));
    let mut second = lab.node_of(NodeOptions {
        network,
        ..lab.worker_options("w1", 21, &object)
    })?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    for node in [&first, &second] {
        let query = "-o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'";
        let found = first.kubectl(&format!("get node {} {query}", node.hostname()))?;
        let expected = format!("{} {}", node.address(), node.address_6());
        ensure!(
            found == expected,
            "the node has {found:?}, expected {expected:?}"
        );
    }
    let pod = |node| pods::serving(node, "cat /etc/hostname");
    for object in [pod("cp1"), pod("w1"), SERVICE.to_owned()] {
        first.run(&format!("{KUBECTL} apply -f - <<'END'\n{object}\nEND"))?;
    }
    reach_each_other(&first)?;
    second.cut()?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    reach_each_other(&first)
}

fn reach_each_other(first: &Node) -> Result<()> {
    for (from, to) in [("on-cp1", "on-w1"), ("on-w1", "on-cp1")] {
        for number in [0, 1] {
            let address =
                format!("$({KUBECTL} get pod {to} -o jsonpath='{{.status.podIPs[{number}].ip}}')");
            let what = format!("{to}, asked by {from} at its address {number}");
            first.wait_for(&what, &asked(from, &address, 8080, to), PODS)?;
            let address = format!(
                "$({KUBECTL} get service both -o jsonpath='{{.spec.clusterIPs[{number}]}}')"
            );
            let what = format!("the service's address {number}, asked by {from}");
            first.wait_for(&what, &asked(from, &address, 80, "on-"), PODS)?;
        }
        let names = format!(
            "for of in ahostsv4 ahostsv6; do {KUBECTL} exec {from} -- /usr/bin/getent $of both.default.svc.cluster.local; done"
        );
        first.wait_for("both addresses of the name", &names, PODS)?;
    }
    Ok(())
}

/// A script that succeeds if a pod gets an answer that begins like this.
fn asked(from: &str, address: &str, port: u16, begin: &str) -> String {
    format!(
        "address={address} && [ -n \"$address\" ] &&
said=$({KUBECTL} exec {from} -- /usr/bin/bash -c \"exec 3<>/dev/tcp/$address/{port}; timeout 5 cat <&3\") &&
{{ [[ $said == {begin}* ]] || {{ echo \"$address says $said\" >&2; false; }}; }}"
    )
}
