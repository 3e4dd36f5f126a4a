//! The cluster's own objects: what the cluster object has no more is deleted, and another control plane goes on with them.

use anyhow::{Result, ensure};
use image::paths::CLUSTER;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::ticket;

/// Applies what has changed, as a start of the node does.
const AGAIN: &str = "slipway-node cluster-up 2>&1";
/// Who applies the objects, by the record in the cluster.
const WHO: &str = "-n kube-system get configmap slipway-objects -o jsonpath='{.data.node}'";
/// kube-proxy's objects.
const PROXY: &str = "-n kube-system get daemonset/kube-proxy configmap/kube-proxy serviceaccount/kube-proxy --ignore-not-found -o name";

/// A node's cluster object with kube-proxy, or without it.
fn with_proxy(node: &Node, proxy: bool) -> Result<()> {
    let text = node.run(&format!("cat {CLUSTER}"))?;
    let (on, off) = ("[proxy]\n", "[proxy]\nenabled = false\n");
    ensure!(text.contains(on), "no table for kube-proxy:\n{text}");
    let text = match proxy {
        true => text.replace(off, on),
        false => text.replace(on, off),
    };
    node.write_running(CLUSTER, &text)
}

/// kube-proxy is switched off and on again on the first control plane. A second one sends nothing, until the node of the first is gone
/// from the cluster: then it sends what its object has otherwise, and deletes nothing that it did not apply itself.
pub(crate) fn what_the_object_has_no_more_goes_and_another_node_goes_on(
    lab: &mut Lab,
) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    first.run_within(AGAIN, PODS)?;
    ensure!(first.kubectl(WHO)? == "cp1", "{}", first.kubectl(WHO)?);
    let all = first.kubectl(PROXY)?;
    ensure!(all.lines().count() == 3, "kube-proxy has {all}");
    with_proxy(&first, false)?;
    let said = first.run_within(AGAIN, PODS)?;
    ensure!(
        first.kubectl(PROXY)?.is_empty(),
        "{} is left; {said}",
        first.kubectl(PROXY)?
    );
    with_proxy(&first, true)?;
    first.run_within(AGAIN, PODS)?;
    ensure!(first.kubectl(PROXY)? == all, "{}", first.kubectl(PROXY)?);

    let object = ticket(&first)?.object("lab", true);
    let mut second = lab.control_plane("cp2", 12, &object)?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    with_proxy(&second, false)?;
    let said = second.run_within(AGAIN, PODS)?;
    ensure!(
        said.contains("node cp1 applies the objects of the cluster"),
        "{said}"
    );
    ensure!(first.kubectl(PROXY)? == all, "{}", first.kubectl(PROXY)?);

    // The kubelet of a node that is deleted registers it again at its next start alone.
    second.kubectl("delete node cp1")?;
    let said = second.run_within(AGAIN, PODS)?;
    ensure!(said.contains("is gone: this one does"), "{said}");
    ensure!(second.kubectl(WHO)? == "cp2", "{}", second.kubectl(WHO)?);
    ensure!(
        second.kubectl(PROXY)? == all,
        "what another node applied was deleted: {said}"
    );
    // From now on it is this node's, as it was the first one's.
    with_proxy(&second, true)?;
    second.run_within(AGAIN, PODS)?;
    with_proxy(&second, false)?;
    second.run_within(AGAIN, PODS)?;
    ensure!(
        second.kubectl(PROXY)?.is_empty(),
        "{} is left",
        second.kubectl(PROXY)?
    );
    // The first one finds its record taken: it sends nothing more, and its object still has kube-proxy.
    first.run("pkill -x kubelet")?;
    first.wait_for(
        "its node",
        "kubectl --kubeconfig /etc/kubernetes/admin.conf get node cp1",
        PODS,
    )?;
    let said = first.run_within(AGAIN, PODS)?;
    ensure!(
        said.contains("node cp2 applies the objects of the cluster"),
        "{said}"
    );
    ensure!(first.kubectl(PROXY)?.is_empty());
    Ok(())
}
