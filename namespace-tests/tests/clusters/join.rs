//! Nodes that join.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::kubelet::{BALANCER_COMMAND, ROUTES_COMMAND};
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY, identity, needs_little_memory};

/// The time after which a node that renews no lease is called lost, 40 s, and a little more.
const LEASE: Duration = Duration::from_secs(45);

/// What opens a cluster for joins, as `slipway-node certs upload --json` prints it.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) endpoint: String,
    pub(crate) token: String,
    pub(crate) pin: String,
    pub(crate) key: String,
}

/// Asks a control plane of ours for a ticket.
pub(crate) fn ticket(node: &Node) -> Result<Ticket> {
    let text = node.run("slipway-node certs upload --json")?;
    let read: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("reading {text}"))?;
    let word = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let ticket = || {
        Some(Ticket {
            endpoint: word(&read["endpoint"])?,
            token: word(&read["token"])?,
            pin: word(&read["caHashes"][0])?,
            key: word(&read["certificateKey"])?,
        })
    };
    ticket().with_context(|| format!("a field is missing in {text}"))
}

impl Ticket {
    /// The object of a node that joins by it.
    pub(crate) fn object(&self, name: &str, control_plane: bool) -> String {
        let key = match control_plane {
            true => format!("certificate-key = \"{}\"\n", self.key),
            false => String::new(),
        };
        format!(
            "name = \"{name}\"\nendpoint = \"{}\"\nstart-timeout = \"10m\"\n\
             [join]\ntoken = \"{}\"\nca-hashes = [\"{}\"]\n{key}[node]\ntaints = []\n",
            self.endpoint, self.token, self.pin
        )
    }
}

/// A worker and two further control planes join; with one control plane of three gone the cluster serves, and the lost one comes back.
pub(crate) fn three_control_planes_and_a_worker_bear_the_loss_of_one(lab: &mut Lab) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let ticket = ticket(&first)?;
    let mut second = lab.control_plane("cp2", 12, &ticket.object("lab", true))?;
    let mut third = lab.control_plane("cp3", 13, &ticket.object("lab", true))?;
    let mut worker = lab.worker("w1", 21, &ticket.object("lab", false))?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    for node in [&mut second, &mut third] {
        node.start(&lab.hub)?;
        node.wait_ready(READY)?;
    }
    let members = second.run("slipway-node etcd --json")?;
    let read: serde_json::Value = serde_json::from_str(&members)?;
    let count = read.as_array().map_or(0, Vec::len);
    ensure!(count == 3, "etcd has {count} members: {members}");
    // The bring-up gave the first node its subnet, and the controller manager the others theirs.
    let subnets =
        first.kubectl("get nodes -o jsonpath='{range .items[*]}{.spec.podCIDR}{\"\\n\"}{end}'")?;
    let distinct: BTreeSet<&str> = subnets.lines().filter(|line| !line.is_empty()).collect();
    ensure!(
        distinct.len() == 4 && distinct.contains("10.244.0.0/24"),
        "the nodes' subnets are {subnets}"
    );
    let before = identity(&first)?;
    third.cut()?;
    second.wait_for(
        "the lost node to be noticed",
        "kubectl --kubeconfig /etc/kubernetes/admin.conf get node cp3 -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}' | grep -q Unknown",
        PODS,
    )?;
    second.kubectl("create configmap after-the-loss --from-literal=a=b")?;
    third.start(&lab.hub)?;
    third.wait_ready(READY)?;
    ensure!(
        identity(&third)? == before,
        "the node that came back has another cluster"
    );
    third.kubectl("get configmap after-the-loss")?;
    goes_on_without(&mut first, &second, &worker)
}

/// The power of the control plane by which a worker joined is cut, with whatever connections its kubelet has there: it goes on with
/// another one, and stays Ready. Before, when all three serve, what of this system stays on the worker has little memory.
fn goes_on_without(first: &mut Node, second: &Node, worker: &Node) -> Result<()> {
    let servers = |count: usize| {
        format!("slipway-node status | grep 'API servers' | grep -q '{count} of 3 ready'")
    };
    worker.wait_for("three API servers", &servers(3), PODS)?;
    needs_little_memory(worker, &[BALANCER_COMMAND, ROUTES_COMMAND])?;
    first.cut()?;
    worker.wait_for("two API servers", &servers(2), PODS)?;
    // The kubelet's lease is renewed every 10 s: one that is newer than this moment came by another server. The endpoint of the
    // administrator's kubeconfig was the first one.
    let own = format!("--server https://{}:6443", second.address());
    let now = second.run("date -u +%Y-%m-%dT%H:%M:%S")?;
    let renewed = format!(
        "[[ $(kubectl --kubeconfig /etc/kubernetes/admin.conf {own} -n kube-node-lease get lease w1 -o jsonpath='{{.spec.renewTime}}') > {} ]]",
        now.trim()
    );
    second.wait_for("the worker's lease", &renewed, LEASE)?;
    let ready = second.kubectl(&format!(
        "{own} get node w1 -o jsonpath='{{.status.conditions[?(@.type==\"Ready\")].status}}'"
    ))?;
    ensure!(ready == "True", "the worker is {ready}");
    Ok(())
}
