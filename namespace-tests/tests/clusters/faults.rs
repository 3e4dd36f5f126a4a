//! What goes wrong: joins that must not succeed, a bring-up that is cut off, components that are killed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use namespace_tests::lab::Lab;
use namespace_tests::node::{Node, NodeOptions};

use crate::control_plane::{OBJECT, PODS, READY, identity};
use crate::join::{Ticket, ticket};

/// How long a refusal may take.
const REFUSAL: Duration = Duration::from_secs(60);
/// Nothing of a cluster may be on a node that was refused.
const NOTHING: &str = "! ls /etc/kubernetes/pki/* /etc/kubernetes/*.conf /var/lib/kubelet/config.yaml /var/lib/slipway/cluster.json 2>/dev/null | grep .";
/// The moments after the handoff at which the first bring-up is cut, ms: from the first key to Ready.
const CUTS: [u64; 12] = [
    100, 300, 500, 800, 1100, 1500, 2000, 2500, 3000, 3500, 4000, 5000,
];
/// How often a moment of some milliseconds is tried.
const ATTEMPTS: u8 = 5;
/// The size of a `/var` that can be full, MiB.
const SMALL_VAR: u32 = 256;
/// Leaves no byte of `/var`.
const FILL: &str = "dd if=/dev/zero of=/var/filler bs=1M 2>/dev/null || true";
/// All pods of the cluster itself are Ready.
const WHOLE: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system wait --for=condition=Ready pod --all --timeout=10s";
/// How often each component is killed.
const KILLS: usize = 20;
/// A pod that was killed is not started later than that, however often: the kubelet's pauses double up to five minutes otherwise.
const SOON: &str = "crashLoopBackOff = { maxContainerRestartPeriod = \"1s\" }, ";

/// A wrong token, a wrong secret, a wrong pin and an expired token are named, and so is a name that no node may have; nothing is written. A node does
/// not get another node's certificate, nor does a machine by the name of a Ready node.
pub(crate) fn joins_that_must_not_succeed_change_nothing(lab: &mut Lab) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let right = ticket(&first)?;
    let expired = first.run(
        "KUBECONFIG=/etc/kubernetes/admin.conf kubeadm token create fedcba.0123456789abcdef --ttl 1s; sleep 1.5",
    )?;
    let (id, _) = right.token.split_once('.').context("a token")?;
    let cases = [
        (
            "unknown",
            Ticket {
                token: "aaaaaa.0123456789abcdef".to_owned(),
                ..right.clone()
            },
            "is not signed for the token",
        ),
        (
            "secret",
            Ticket {
                token: format!("{id}.ffffffffffffffff"),
                ..right.clone()
            },
            "not with the secret in join.token",
        ),
        (
            "pin",
            Ticket {
                pin: format!("sha256:{}", "ab".repeat(32)),
                ..right.clone()
            },
            "the cluster's authority has the public key",
        ),
        (
            "expired",
            Ticket {
                token: expired.trim().to_owned(),
                ..right.clone()
            },
            "is not signed for the token",
        ),
    ];
    for (name, ticket, words) in cases {
        let mut node = lab.worker("w1", 21, &ticket.object("lab", false))?;
        node.start(&lab.hub)?;
        refused(&node, words).with_context(|| format!("the case {name}"))?;
    }
    let mut named = lab.node_of(NodeOptions {
        hostname: Some("Node_One".to_owned()),
        ..lab.worker_options("w1", 21, &right.object("lab", false))
    })?;
    named.start(&lab.hub)?;
    refused(&named, "node_one").context("a name with an underscore")?;
    drop(named);
    let mut worker = lab.worker("w1", 21, &right.object("lab", false))?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    another_nodes_certificate(&first, &worker)?;
    the_name_of_a_ready_node(lab, &first, &right)
}

/// Further machines by the names of Ready nodes, a worker's and the control plane's, join as neither of them.
fn the_name_of_a_ready_node(lab: &mut Lab, first: &Node, right: &Ticket) -> Result<()> {
    let requests = || first.kubectl("get csr -o jsonpath='{.items[*].metadata.name}'");
    let before = requests()?;
    for (name, further) in [("w1", false), ("cp1", true)] {
        let object = right.object("lab", further);
        let options = match further {
            true => lab.control_plane_options("x1", 22, &object),
            false => lab.worker_options("x1", 22, &object),
        };
        let mut node = lab.node_of(NodeOptions {
            hostname: Some(name.to_owned()),
            ..options
        })?;
        node.start(&lab.hub)?;
        let words = format!("the cluster has a node \"{name}\" that is Ready");
        refused(&node, &words).with_context(|| format!("the name {name}"))?;
    }
    let after = requests()?;
    ensure!(
        after == before,
        "the requests are {after}, expected {before}"
    );
    Ok(())
}

/// Waits until the node says why, then looks at what it wrote.
fn refused(node: &Node, words: &str) -> Result<()> {
    let said = format!(
        "(cat /run/slipway/cluster; slipway-node status || true) 2>&1 | grep -qi {words:?}"
    );
    let in_log = |node: &Node| {
        node.log("kubelet")
            .to_lowercase()
            .contains(&words.to_lowercase())
    };
    let until = Instant::now() + REFUSAL;
    while node.run(&said).is_err() && !in_log(node) {
        ensure!(
            Instant::now() < until,
            "the node does not say {words:?}: {}\n{}",
            node.run("slipway-node status || true")?,
            node.logs()
        );
        sleep(Duration::from_millis(200));
    }
    node.run(NOTHING).context("something was written").map(drop)
}

/// A request of one node for the certificate of another is refused.
fn another_nodes_certificate(first: &Node, worker: &Node) -> Result<()> {
    let error = worker.run(
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /run/other.key -out /run/other.csr -subj /O=system:nodes/CN=system:node:cp1 2>/dev/null
kubectl --kubeconfig /etc/kubernetes/kubelet.conf create -f - <<END
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: { name: other }
spec:
  request: $(base64 -w0 /run/other.csr)
  signerName: kubernetes.io/kube-apiserver-client-kubelet
  usages: [digital signature, client auth]
END",
    );
    let error = error
        .err()
        .map(|error| format!("{error:#}"))
        .unwrap_or_default();
    ensure!(
        error.contains("can only create a node CSR with CN=system:node:w1"),
        "a node may ask for another one's certificate: {error}"
    );
    let requests = first.kubectl("get csr -o jsonpath='{.items[*].metadata.name}'")?;
    ensure!(!requests.contains("other"), "the requests are {requests}");
    Ok(())
}

/// The power is cut at twelve moments of a first bring-up, each on the disks that the one before left: then the node becomes Ready, with
/// one authority and one member of etcd.
pub(crate) fn a_bring_up_that_is_cut_again_and_again_goes_on(lab: &mut Lab) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    let mut authority: Option<String> = None;
    for cut in CUTS {
        node.start(&lab.hub)?;
        let wanted = Duration::from_millis(cut);
        sleep(wanted.saturating_sub(node.since_handoff()));
        // Once the journal names the authority it stays.
        let found =
            node.run("grep -o '\"authority\": *\"[^\"]*\"' /var/lib/slipway/cluster.json 2>/dev/null || true")?;
        let found = found.trim().to_owned();
        if let Some(before) = &authority {
            ensure!(
                *before == found,
                "after a cut the authority is {found}, expected {before}"
            );
        } else if !found.is_empty() {
            authority = Some(found);
        }
        node.cut()?;
    }
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    ensure!(authority.is_some(), "no cut came behind the first keys");
    let members = node.run("slipway-node etcd --json")?;
    let members: serde_json::Value = serde_json::from_str(&members)?;
    ensure!(
        members.as_array().is_some_and(|all| all.len() == 1),
        "etcd has the members {members}"
    );
    node.kubectl("-n kube-system rollout status deploy/coredns --timeout=50s")?;
    let first = identity(&node)?;
    node.cut()?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    ensure!(
        identity(&node)? == first,
        "a Ready cluster is another one after a cut"
    );
    Ok(())
}

/// The power of a worker, and then of a further control plane, is cut at the same moments of its join: each becomes Ready, and etcd has
/// two members that vote.
pub(crate) fn joins_that_are_cut_again_and_again_go_on(lab: &mut Lab) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let before = identity(&first)?;
    let ticket = ticket(&first)?;
    let worker = lab.worker("w1", 21, &ticket.object("lab", false))?;
    let second = lab.control_plane("cp2", 12, &ticket.object("lab", true))?;
    let mut joined = [worker, second];
    for node in &mut joined {
        for cut in CUTS {
            node.start(&lab.hub)?;
            sleep(Duration::from_millis(cut).saturating_sub(node.since_handoff()));
            node.cut()?;
        }
        node.start(&lab.hub)?;
        node.wait_ready(READY)?;
    }
    let members = first.run("slipway-node etcd --json")?;
    let members: serde_json::Value = serde_json::from_str(&members)?;
    let vote = members.as_array().map(|all| {
        let votes = all.iter().filter(|member| member["state"] == "votes");
        (all.len(), votes.count())
    });
    ensure!(vote == Some((2, 2)), "etcd has the members {members}");
    ensure!(identity(&first)? == before, "it is another cluster");
    first.wait_for("all pods", WHOLE, PODS).map(drop)
}

/// The power is cut between etcd's first file and its first entry: etcd alone would wait for ever with what it finds.
pub(crate) fn a_cut_before_etcds_first_entry_begins_it_anew(lab: &mut Lab) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut node = lab.control_plane("cp1", 11, OBJECT)?;
        if cut_before_the_first_entry(&mut node, lab)? {
            return Ok(());
        }
    }
    bail!("etcd was never met before its first entry, in {ATTEMPTS} attempts")
}

/// The same of a further control plane.
pub(crate) fn a_cut_before_a_further_members_first_entry_begins_it_anew(
    lab: &mut Lab,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut first = lab.control_plane("cp1", 11, OBJECT)?;
        first.start(&lab.hub)?;
        first.wait_ready(READY)?;
        let object = ticket(&first)?.object("lab", true);
        let mut second = lab.control_plane("cp2", 12, &object)?;
        if cut_before_the_first_entry(&mut second, lab)? {
            return Ok(());
        }
    }
    bail!("etcd was never met before its first entry, in {ATTEMPTS} attempts")
}

/// Stops the whole node as soon as etcd's log is there, cuts its power, and waits until it is Ready. Whether etcd had no entry yet.
fn cut_before_the_first_entry(node: &mut Node, lab: &Lab) -> Result<bool> {
    node.start(&lab.hub)?;
    node.run_within(
        "while [ ! -e /var/lib/etcd/member/wal ]; do :; done; kill -STOP -1",
        READY,
    )?;
    node.cut()?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    Ok(node.log("kubelet").contains("wrote no entry"))
}

/// `/var` is full while a node comes up: it says so, and once there is room it becomes Ready. It is full again when the power is
/// cut: the cluster is the same one afterwards.
pub(crate) fn a_full_disk_is_named_and_loses_nothing(lab: &mut Lab) -> Result<()> {
    let mut node = lab.node_of(NodeOptions {
        var: Some(SMALL_VAR),
        ..lab.control_plane_options("cp1", 11, OBJECT)
    })?;
    node.start(&lab.hub)?;
    node.run(FILL)?;
    let full = "slipway-node status | grep '^waits for .*room: /var has 0 of'";
    node.wait_for("the word of the full disk", full, REFUSAL)?;
    node.run("rm /var/filler")?;
    node.wait_ready(READY)?;
    let before = identity(&node)?;
    node.run(FILL)?;
    node.wait_for("the word of the full disk", full, REFUSAL)?;
    node.cut()?;
    node.start(&lab.hub)?;
    node.wait_for("the word of the full disk", full, REFUSAL)?;
    ensure!(
        node.run("slipway-node status --json")?.contains("du -xh"),
        "the status has no remedy"
    );
    node.run("rm /var/filler")?;
    node.wait_ready(READY)?;
    ensure!(identity(&node)? == before, "it is another cluster");
    node.wait_for("all pods", WHOLE, PODS).map(drop)
}

/// Each component is killed twenty times and is back, and so is the cluster.
pub(crate) fn each_component_that_is_killed_comes_back(lab: &mut Lab) -> Result<()> {
    let mut options = lab.control_plane_options("cp1", 11, OBJECT);
    options.object = options.object.map(|object| {
        object.replace("[kubelet]\nconfig = { ", &format!("[kubelet]\nconfig = {{ featureGates = {{ KubeletCrashLoopBackOffMax = true }}, {SOON}"))
    });
    let mut node = lab.node_of(options)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let before = identity(&node)?;
    // The kubelet that has still to tell the API server of a static pod does nothing else for that pod until a request fails by time.
    node.wait_for("all pods", WHOLE, PODS)?;
    let serves = "kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /readyz";
    for component in [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "coredns",
        "kubelet",
        "containerd",
    ] {
        for _ in 0..KILLS {
            let old = node.run(&format!("pgrep -o -x {component:.15}"))?;
            node.run(&format!("kill -9 {}", old.trim()))?;
            node.wait_for(
                component,
                &format!(
                    "new=$(pgrep -o -x {component:.15}); [ $new != {} ]",
                    old.trim()
                ),
                PODS,
            )?;
            node.wait_for("the API server", serves, PODS)?;
        }
        let ready = "kubectl --kubeconfig /etc/kubernetes/admin.conf wait --for=condition=Ready node/cp1 --timeout=1s";
        node.wait_for("the node to be Ready", ready, PODS)?;
    }
    ensure!(identity(&node)? == before, "it is another cluster");
    node.wait_for("all pods", WHOLE, PODS).map(drop)
}
