//! The balancer of API servers: on control planes, and on a worker whose endpoint leads nowhere.

use std::time::Duration;

use anyhow::{Result, ensure};
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::{Ticket, ticket};

/// No node has this address.
const NOWHERE: &str = "10.77.0.99:6443";
/// The kubelet renews its lease every 10 s; a balancer gives a server up within 15 s.
const LEASE: Duration = Duration::from_secs(60);
/// The static pod of the API server, and where nobody looks for one.
const MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const AWAY: &str = "/run/kube-apiserver.yaml";
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";

/// Two control planes have it, and a worker joins by a server that it knows. The kubelet of a control plane whose own API server is gone
/// goes on by the other one, on a boot too, and uses its own one again.
pub(crate) fn control_planes_use_it_and_a_worker_joins_without_an_endpoint(
    lab: &mut Lab,
) -> Result<()> {
    let mut first =
        lab.control_plane("cp1", 11, &format!("{OBJECT}[balancer]\nenabled = true\n"))?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let ticket = ticket(&first)?;
    let object = format!("{}[balancer]\nenabled = true\n", ticket.object("lab", true));
    let mut second = lab.control_plane("cp2", 12, &object)?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    for node in [&first, &second] {
        node.run("grep -q 'server: https://127.0.0.1:7443' /etc/kubernetes/kubelet.conf")?;
        servers(node, "2 of 2 ready")?;
    }

    let nowhere = Ticket {
        endpoint: NOWHERE.to_owned(),
        ..ticket
    };
    let known = format!(
        "{}[balancer]\nservers = [\"{}:6443\"]\n",
        nowhere.object("lab", false),
        first.address()
    );
    let mut worker = lab.worker("w1", 21, &known)?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    servers(&worker, "2 of 3 ready")?;

    second.run(&format!("mv {MANIFEST} {AWAY}"))?;
    second.wait_for("the API server's end", "! pgrep -x kube-apiserver", PODS)?;
    renews(&first, "cp2")?;
    renews(&first, "w1")?;
    second.run(&format!("mv {AWAY} {MANIFEST}"))?;
    servers(&second, "2 of 2 ready")?;

    // The server by which the worker joined is gone while it boots: it has the other one from its own list.
    first.run(&format!("mv {MANIFEST} {AWAY}"))?;
    first.wait_for("the API server's end", "! pgrep -x kube-apiserver", PODS)?;
    worker.cut()?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    // The administrator's kubeconfig leads to the endpoint of the cluster, which is the first one's.
    renews(&second, "cp1")?;
    first.run(&format!("mv {AWAY} {MANIFEST}"))?;
    servers(&first, "2 of 2 ready")
}

/// The status says how many API servers are ready.
fn servers(node: &Node, words: &str) -> Result<()> {
    let said = format!("slipway-node status | grep 'API servers' | grep -q '{words}'");
    node.wait_for(words, &said, PODS).map(drop)
}

/// The kubelet of this node renews its lease, by the word of this control plane's own API server.
fn renews(asked: &Node, name: &str) -> Result<()> {
    let own = format!("--server https://{}:6443", asked.address());
    let lease = format!(
        "{KUBECTL} {own} -n kube-node-lease get lease {name} -o jsonpath='{{.spec.renewTime}}'"
    );
    let before = asked.wait_for("a lease", &lease, PODS)?;
    ensure!(!before.is_empty(), "{name} has no lease");
    let newer = format!("[[ $({lease}) > {} ]]", before.trim());
    // Twice: one more may have been on its way.
    asked.wait_for("the lease", &newer, LEASE)?;
    let before = asked.run(&lease)?;
    let newer = format!("[[ $({lease}) > {} ]]", before.trim());
    asked.wait_for("the lease", &newer, LEASE).map(drop)
}
