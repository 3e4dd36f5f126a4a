//! The etcd volume of a control plane is lost, while its `/var` stays.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY, identity};
use crate::join::ticket;

/// How long a node may take to say what it waits for.
const SAID: Duration = Duration::from_secs(60);
/// All pods of the cluster itself are Ready, which shows that its objects were applied.
const WHOLE: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system rollout status ds/kube-proxy deploy/coredns --timeout=1s";
/// No API server and no etcd listens.
const SILENT: &str = "! { 2>/dev/null exec 3<>/dev/tcp/127.0.0.1/2379; } && ! { 2>/dev/null exec 3<>/dev/tcp/127.0.0.1/6443; }";

/// The only control plane begins no empty cluster by itself, says so, and begins one that is whole once it is told to.
pub(crate) fn a_cluster_whose_data_are_lost_begins_anew_only_when_told(
    lab: &mut Lab,
) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let before = identity(&node)?;
    let refused = "! slipway-node etcd begin-anew 2>&1 | grep -v 'nothing is changed'";
    node.run(refused).context("a cluster that is there")?;
    node.cut()?;
    node.empty_etcd()?;
    node.start(&lab.hub)?;
    waits_for(&node, "slipway-node etcd begin-anew")?;
    node.run(SILENT).context("something serves without data")?;
    node.run("slipway-node etcd begin-anew")?;
    node.wait_ready(READY)?;
    ensure!(identity(&node)? != before, "the data were not lost");
    node.wait_for("all pods", WHOLE, PODS)?;
    // The administrator's role is one of the objects.
    let all = node.kubectl("auth can-i '*' '*'")?;
    ensure!(
        all.trim() == "yes",
        "the administrator may not do all: {all}"
    );
    node.cut()?;
    node.start(&lab.hub)?;
    node.wait_ready(READY).map(drop)
}

/// The first one of three, and a further one: each begins no second cluster, and is a member again once its old one is out. A member that
/// was taken out says so.
pub(crate) fn a_lost_member_of_three_is_added_anew_and_begins_no_second_cluster(
    lab: &mut Lab,
) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let object = ticket(&first)?.object("lab", true);
    let mut second = lab.control_plane("cp2", 12, &object)?;
    let mut third = lab.control_plane("cp3", 13, &object)?;
    for node in [&mut second, &mut third] {
        node.start(&lab.hub)?;
        node.wait_ready(READY)?;
    }
    let before = identity(&first)?;

    first.cut()?;
    first.empty_etcd()?;
    first.start(&lab.hub)?;
    waits_for(&first, "slipway-node etcd rejoin")?;
    first.run(SILENT).context("something serves without data")?;
    first.run(&format!("slipway-node etcd rejoin {}", second.address()))?;
    // Somebody who has not read that other control planes are there.
    first.run("! slipway-node etcd begin-anew 2>&1 | grep -v 'serves this cluster'")?;
    waits_for(&first, "slipway-node etcd remove")?;
    remove(&second, "cp1")?;
    first.wait_ready(READY)?;
    ensure!(identity(&first)? == before, "it is another cluster");
    votes(&second)?;

    third.cut()?;
    third.empty_etcd()?;
    third.start(&lab.hub)?;
    waits_for(&third, "slipway-node etcd remove")?;
    remove(&second, "cp3")?;
    third.wait_ready(READY)?;
    ensure!(identity(&third)? == before, "it is another cluster");
    votes(&second)?;

    remove(&second, "cp3")?;
    third.cut()?;
    third.start(&lab.hub)?;
    waits_for(&third, "it was removed; give the node an empty etcd volume")?;
    third.cut()?;
    third.empty_etcd()?;
    third.start(&lab.hub)?;
    third.wait_ready(READY)?;
    votes(&second)
}

/// The status says what the node waits for, with these words.
fn waits_for(node: &Node, words: &str) -> Result<()> {
    let said = format!("slipway-node status | grep -F '{words}'");
    node.wait_for(words, &said, SAID).map(drop)
}

/// Takes the member of this name out.
fn remove(on: &Node, name: &str) -> Result<()> {
    let id = format!("$(slipway-node etcd | awk '/ {name} /{{print $1}}')");
    on.run(&format!("slipway-node etcd remove {id}")).map(drop)
}

/// etcd has three members, which vote.
fn votes(on: &Node) -> Result<()> {
    let members = on.run("slipway-node etcd")?;
    let count = members
        .lines()
        .filter(|line| line.contains("  votes  "))
        .count();
    ensure!(
        count == 3 && members.lines().count() == 3,
        "etcd has the members\n{members}"
    );
    Ok(())
}
