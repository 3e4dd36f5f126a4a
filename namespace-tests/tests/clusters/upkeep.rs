//! What keeps a cluster as it should be: addons while the API server is killed, certificates that are made anew.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY, identity};

/// The addon's manifests, below its folder.
const ADDON: &str = "/etc/slipway/addons/site";
/// How often the API server is killed while the addon is applied: the kubelet's pause before its start doubles each time.
const KILLS: usize = 2;
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
/// The serial number of the certificate that the API server shows.
const SHOWN: &str =
    "openssl s_client -connect 127.0.0.1:6443 </dev/null 2>/dev/null | openssl x509 -noout -serial";
/// The processes of those that read their kubeconfig once.
const READ_ONCE: &str = "pgrep -x kube-controller; pgrep -x kube-scheduler";

/// A manifest with this many maps and a Deployment; their word is `word`.
fn manifest(maps: usize, word: &str) -> String {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: { name: site }\n".to_owned();
    for number in 0..maps {
        text += &format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: map-{number}, namespace: site }}\ndata: {{ word: {word} }}\n"
        );
    }
    text + "---
apiVersion: apps/v1
kind: Deployment
metadata: { name: held, namespace: site }
spec:
  selector: { matchLabels: { app: held } }
  template:
    metadata: { labels: { app: held } }
    spec:
      containers: [{ name: held, image: \"slipway.local/pause:baked\", imagePullPolicy: Never }]
"
}

/// What a second application may not change: the version of every object of the addon.
fn versions(node: &Node) -> Result<String> {
    node.kubectl("-n site get configmaps,deployments -l slipway.local/addon=site -o jsonpath='{range .items[*]}{.kind}/{.metadata.name} {.metadata.generation} {.data.word}{\"\\n\"}{end}'")
}

/// An addon is applied on a new node, and another version of it although the API server is killed twice meanwhile: what the new
/// version has no more is gone, and one more run changes nothing.
pub(crate) fn addons_are_applied_although_the_api_server_is_killed(lab: &mut Lab) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.write_etc(&format!("{ADDON}/10-site.yaml"), &manifest(40, "one"))?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let is = |state: &str| {
        format!("slipway-node addons --json | tr -d ' \\n' | grep -q '\"state\":\"{state}\"'")
    };
    node.wait_for("the addon", &is("applied"), PODS)?;
    node.kubectl("-n site get configmap map-39")?;
    node.write_running(&format!("{ADDON}/10-site.yaml"), &manifest(30, "two"))?;
    node.run("(for i in {1..60}; do slipway-node addons apply && break; sleep 1; done) > /run/addons.log 2>&1 &")?;
    for _ in 0..KILLS {
        // In the middle of the requests, however fast this host is.
        sleep(Duration::from_millis(120));
        node.run("pkill -9 -x kube-apiserver || true")?;
        node.wait_for(
            "the API server",
            &format!("{KUBECTL} get --raw /readyz"),
            PODS,
        )?;
    }
    node.wait_for(
        "the addon's new version",
        &format!(
            "! {KUBECTL} -n site get configmap map-39 2>/dev/null && {KUBECTL} -n site get configmap map-29 -o jsonpath='{{.data.word}}' | grep -x two && {}",
            is("applied")
        ),
        PODS,
    )?;
    let all = versions(&node)?;
    ensure!(
        !all.contains(" one") && all.lines().count() == 31,
        "the addon has {all}"
    );
    let kept = "-n site get configmaps,deployments -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'";
    let before = node.kubectl(kept)?;
    node.run("slipway-node addons apply")?;
    ensure!(
        before == node.kubectl(kept)? && all == versions(&node)?,
        "a second application changed something"
    );
    Ok(())
}

/// All certificates are made anew: the API server and etcd show new ones, what reads its kubeconfig once is started anew, and it is the
/// same cluster. A dry run changes nothing.
pub(crate) fn certificates_are_made_anew_under_a_running_cluster(lab: &mut Lab) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let before = identity(&node)?;
    node.wait_for("the controllers", READ_ONCE, PODS)?;
    let (shown, processes) = (node.run(SHOWN)?, node.run(READ_ONCE)?);
    let files = "cd /etc/kubernetes; sha256sum pki/*.crt pki/etcd/*.crt *.conf";
    let hashes = node.run(files)?;
    let said = node.run("slipway-node certs renew --all --dry-run")?;
    ensure!(
        said.contains("apiserver.crt") && node.run(files)? == hashes,
        "a dry run said {said:?}, or changed a file"
    );
    node.run("slipway-node certs renew --all")?;
    let after = node.run(files)?;
    for line in after.lines() {
        let authority = line.ends_with("ca.crt");
        let own = line.ends_with("kubelet.conf");
        ensure!(
            own || authority == hashes.contains(line),
            "an authority changed, or another file did not: {line}"
        );
    }
    let other = |what: &str, old: &str| {
        format!(
            "new=$({what}); [ \"$new\" != \"$(printf %s '{}')\" ] && [ -n \"$new\" ]",
            old.trim()
        )
    };
    node.wait_for(
        "the API server's new certificate",
        &other(SHOWN, &shown),
        PODS,
    )?;
    for process in processes.split_whitespace() {
        node.wait_for(
            "the controllers' new start",
            &format!("! kill -0 {process} 2>/dev/null"),
            PODS,
        )?;
    }
    node.wait_for("the controllers", READ_ONCE, PODS)?;
    let whole =
        format!("{KUBECTL} -n kube-system wait --for=condition=Ready pod --all --timeout=1s");
    node.wait_for("all pods", &whole, PODS)?;
    ensure!(identity(&node)? == before, "it is another cluster");
    // The old administrator's certificate was not withdrawn; the new one works.
    node.kubectl("auth can-i '*' '*'").map(drop)
}
