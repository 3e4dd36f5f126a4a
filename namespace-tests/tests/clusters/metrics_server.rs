//! metrics-server of the cluster object, on two nodes.

use anyhow::{Context, Result, ensure};
use image::paths::CLUSTER;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::ticket;

/// The image of these tests.
pub(crate) const RECIPE: &str = "namespace-tests/metrics-server.toml";
/// The word of the object.
const WORD: &str = "[addons]\nmetrics-server = true\n";
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
/// All its objects.
const OBJECTS: &str = "-n kube-system get serviceaccount/metrics-server rolebinding/metrics-server-auth-reader \
                       secret/metrics-server-tls service/metrics-server deployment/metrics-server \
                       clusterrole/system:aggregated-metrics-reader clusterrole/system:metrics-server \
                       clusterrolebinding/system:metrics-server clusterrolebinding/metrics-server:system:auth-delegator \
                       apiservice/v1beta1.metrics.k8s.io --ignore-not-found -o name";
/// The number of its objects.
const NUMBER: usize = 10;
/// MiB of memory beyond which something is wrong with it in a cluster of two nodes.
const MEMORY: u32 = 128;

/// `kubectl top` says what both nodes and their pods use, by certificates that are checked between the API server, metrics-server and the
/// kubelets, again after a power cut. Without the word in the object nothing of it is left.
pub(crate) fn says_what_nodes_and_pods_use_until_the_object_has_it_no_more(
    lab: &mut Lab,
) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, &format!("{OBJECT}{WORD}"))?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let object = ticket(&first)?.object("lab", false);
    let mut second = lab.worker("w1", 21, &object)?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    says_what_is_used(&first)?;
    let trust = "get apiservice v1beta1.metrics.k8s.io -o jsonpath='{.spec.insecureSkipTLSVerify}{.status.conditions[0].status}'";
    ensure!(first.kubectl(trust)? == "True", "{}", first.kubectl(trust)?);
    let secret =
        "-n kube-system get secret metrics-server-tls -o jsonpath='{.metadata.resourceVersion}'";
    let made = first.kubectl(secret)?;

    first.cut()?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    says_what_is_used(&first)?;
    ensure!(
        first.kubectl(secret)? == made,
        "its certificate is another one after a power cut"
    );

    let text = first.run(&format!("cat {CLUSTER}"))?;
    ensure!(text.contains(WORD), "no word for it:\n{text}");
    first.write_running(CLUSTER, &text.replace(WORD, ""))?;
    let said = first.run_within("slipway-node cluster-up 2>&1", PODS)?;
    let left = first.kubectl(OBJECTS)?;
    ensure!(left.is_empty(), "{left} is left; {said}");
    first.run("! test -e /var/lib/slipway/metrics-server.pem")?;
    first.run(&format!("! {KUBECTL} top nodes")).map(drop)
}

/// Both nodes, and pods of both, have numbers.
fn says_what_is_used(node: &Node) -> Result<()> {
    let all = node.kubectl(OBJECTS)?;
    ensure!(all.lines().count() == NUMBER, "its objects are {all}");
    // Each figure is of two looks at a kubelet, a quarter of a minute apart.
    for name in ["cp1", "w1"] {
        let numbers = format!("^{name} +[1-9][0-9]*m +[0-9]+% +[1-9][0-9]*Mi +[0-9]+%");
        let has = format!("{KUBECTL} top nodes --no-headers | grep -E '{numbers}'");
        node.wait_for(&format!("the figures of {name}"), &has, PODS)?;
    }
    for pod in ["etcd-cp1", "kube-apiserver-cp1", "metrics-server-"] {
        let numbers = format!("^kube-system +{pod}[^ ]* +[0-9]+m +[1-9][0-9]*Mi");
        let has = format!("{KUBECTL} top pods -A --no-headers | grep -E '{numbers}'");
        node.wait_for(&format!("the figures of {pod}"), &has, PODS)?;
    }
    let own = node.kubectl("-n kube-system top pods -l k8s-app=metrics-server --no-headers")?;
    let memory = own.split_whitespace().nth(2);
    let memory = memory.and_then(|text| text.strip_suffix("Mi")?.parse::<u32>().ok());
    let memory = memory.context(own.clone())?;
    ensure!(memory <= MEMORY, "metrics-server has {own}");
    Ok(())
}
