//! kubeadm and ours join one another's clusters.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use namespace_tests::lab::{KUBEADM_DOCUMENTS, Lab};
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY, identity};
use crate::join::{Ticket, ticket};

/// kubeadm's own patience with a control plane is four minutes.
const KUBEADM: Duration = Duration::from_secs(300);

/// The node's own part of the configuration of `kubeadm init`.
pub(crate) fn init_configuration(node: &Node) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{{ token: abcdef.0123456789abcdef }}]
localAPIEndpoint: {{ advertiseAddress: {address} }}
patches: {{ directory: {PATCHES} }}
nodeRegistration: {{ taints: [], kubeletExtraArgs: [{{ name: node-ip, value: {address} }}] }}
",
        address = node.address()
    )
}

/// The configuration of `kubeadm init` for the image's container images.
fn init(node: &Node) -> String {
    format!(
        "{}---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: lab
kubernetesVersion: $(kubeadm version -o short)
controlPlaneEndpoint: {}:6443
imageRepository: slipway.local
networking: {{ podSubnet: 10.244.0.0/16 }}
etcd: {{ local: {{ imageTag: 3.5.16-0 }} }}
{KUBEADM_DOCUMENTS}",
        init_configuration(node),
        node.address()
    )
}

/// Keys as kubeadm's are by default, and a name more for the API server.
const RSA: &str =
    "[certificates]\nalgorithm = \"RSA-2048\"\n[api-server]\nsans = [\"api.lab.test\"]\n";

/// kubeadm's own way to change its manifests (`--patches`): from 1.36 on it writes flags that etcd has since 3.6, and the image has
/// Debian's 3.5. They are removed by their places, the last one first.
const PATCHES: &str = "/run/patches";
pub(crate) const LAST_AT_INIT: usize = 19;
const LAST_AT_JOIN: usize = 20;

pub(crate) fn patch_etcd(node: &Node, last: usize) -> Result<()> {
    let remove = |at: usize| format!("- {{ op: remove, path: /spec/containers/0/command/{at} }}\n");
    let text = format!("{}{}", remove(last), remove(5));
    node.write_running(&format!("{PATCHES}/etcd+json.yaml"), &text)
}

/// Runs a command of kubeadm beside the image's kubelet: without an init system it starts none, so the lab does, once kubeadm has written
/// the kubelet's files.
pub(crate) fn kubeadm(node: &mut Node, command: &str) -> Result<()> {
    node.run(&format!(
        "rm -f /etc/kubernetes/manifests/*
(if {command}; then echo code 0; else echo code 1; fi) > /var/log/kubeadm.log 2>&1 &"
    ))?;
    let log = "tail -n 40 /var/log/kubeadm.log";
    node.wait_for(
        "kubeadm to write the kubelet's files",
        "test -e /var/lib/kubelet/kubeadm-flags.env -a -e /var/lib/kubelet/config.yaml || grep -q '^code' /var/log/kubeadm.log",
        KUBEADM,
    )?;
    node.start_kubelet()?;
    node.wait_for("kubeadm", "grep -q '^code' /var/log/kubeadm.log", KUBEADM)
        .with_context(|| node.run(log).unwrap_or_default())?;
    let said = node.run(log)?;
    ensure!(said.contains("\ncode 0\n"), "kubeadm failed:\n{said}");
    Ok(())
}

fn join(node: &mut Node, ticket: &Ticket, control_plane: bool) -> Result<()> {
    let more = match control_plane {
        true => format!(
            "--control-plane --certificate-key {} --apiserver-advertise-address {} --patches {PATCHES}",
            ticket.key,
            node.address()
        ),
        false => String::new(),
    };
    let command = format!(
        "kubeadm join {} --token {} --discovery-token-ca-cert-hash {} --ignore-preflight-errors all {more}",
        ticket.endpoint, ticket.token, ticket.pin
    );
    kubeadm(node, &command)
}

/// Waits until the node is there and all of the given conditions of pods hold.
fn ready(of: &Node, name: &str) -> Result<()> {
    let ready = format!(
        "kubectl --kubeconfig /etc/kubernetes/admin.conf wait --for=condition=Ready node/{name} --timeout=1s"
    );
    of.wait_for(&format!("{name} to be Ready"), &ready, PODS)?;
    Ok(())
}

/// A network of pods for a node that kubeadm made: the file that ours writes.
fn network(node: &Node, from: &Node, subnet: &str) -> Result<()> {
    let text = from.run("cat /etc/cni/net.d/10-slipway.conflist")?;
    let own = from.kubectl(&format!(
        "get node {} -o jsonpath='{{.spec.podCIDR}}'",
        from.hostname()
    ))?;
    ensure!(text.contains(own.trim()), "{text} has no {own}");
    node.write_running(
        "/etc/cni/net.d/10-slipway.conflist",
        &text.replace(own.trim(), subnet),
    )
}

/// `kubeadm join` makes a worker and a control plane of a cluster of ours.
pub(crate) fn its_nodes_join_a_cluster_of_ours(lab: &mut Lab) -> Result<()> {
    // kubeadm adds control planes to a cluster with an endpoint alone.
    let object = format!("endpoint = \"10.77.0.11:6443\"\n{OBJECT}{RSA}");
    let mut first = lab.control_plane("cp1", 11, &object)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    first.run(
        "cd /etc/kubernetes/pki; ! head -qn 1 *.key */*.key | grep -v 'BEGIN RSA PRIVATE KEY'",
    )?;
    let ticket = ticket(&first)?;
    let mut worker = lab.runtime("w1", 21, false)?;
    worker.start(&lab.hub)?;
    network(&worker, &first, "10.244.100.0/24")?;
    join(&mut worker, &ticket, false)?;
    ready(&first, "w1")?;
    let mut second = lab.runtime("cp2", 12, true)?;
    second.start(&lab.hub)?;
    network(&second, &first, "10.244.101.0/24")?;
    patch_etcd(&second, LAST_AT_JOIN)?;
    join(&mut second, &ticket, true)?;
    ready(&second, "cp2")?;
    ensure!(
        identity(&first)? == identity(&second)?,
        "kubeadm's control plane has another cluster"
    );
    let members = first.run("slipway-node etcd")?;
    ensure!(members.contains("cp2"), "etcd's members: {members}");
    Ok(())
}

/// Ours join a cluster that `kubeadm init` made: a worker and a control plane.
pub(crate) fn ours_join_a_cluster_of_its(lab: &mut Lab) -> Result<()> {
    let mut first = lab.runtime("cp1", 11, true)?;
    first.start(&lab.hub)?;
    let config = init(&first);
    first.run(&format!("cat > /run/kubeadm.yaml <<END\n{config}\nEND"))?;
    patch_etcd(&first, LAST_AT_INIT)?;
    kubeadm(
        &mut first,
        "kubeadm init --config /run/kubeadm.yaml --ignore-preflight-errors all",
    )?;
    let uploaded = first.run(
        "export KUBECONFIG=/etc/kubernetes/admin.conf; kubeadm init phase upload-certs --upload-certs --config /run/kubeadm.yaml | tail -n 1",
    )?;
    let command = first.run("KUBECONFIG=/etc/kubernetes/admin.conf kubeadm token create --print-join-command | tail -n 1")?;
    let word = |after: &str| -> Result<String> {
        let mut words = command.split_whitespace().skip_while(|word| *word != after);
        let found = words.nth(1);
        found
            .map(str::to_owned)
            .with_context(|| format!("no {after} in {command}"))
    };
    let ticket = Ticket {
        endpoint: word("join")?,
        token: word("--token")?,
        pin: word("--discovery-token-ca-cert-hash")?,
        key: uploaded.trim().to_owned(),
    };
    let mut worker = lab.worker("w1", 21, &ticket.object("lab", false))?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    network(&first, &worker, "10.244.100.0/24").ok();
    ready(&first, "w1")?;
    let mut second = lab.control_plane("cp2", 12, &ticket.object("lab", true))?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    ensure!(
        identity(&first)? == identity(&second)?,
        "ours has another cluster"
    );
    let listed = second.run("slipway-node etcd")?;
    ensure!(
        listed.contains("cp1") && listed.contains("cp2"),
        "etcd's members: {listed}"
    );
    Ok(())
}
