//! Machines of Cluster API whose image has no kubeadm: the files of its kubeadm bootstrap provider bring them up.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use cluster::config;
use cluster::host::Host;
use image::paths::{CLUSTER, KUBEADM_CONFIG, NODE_PROGRAM, SENTINEL};
use namespace_tests::lab::{KUBEADM_DOCUMENTS, Lab};
use namespace_tests::node::{Node, NodeOptions, Services};
use serde_json::Value;
use slipway::cluster::secrets::Secrets;

use crate::control_plane::{PODS, READY};

/// The image of these tests.
pub(crate) const RECIPE: &str = "namespace-tests/capi.toml";
/// The data of a machine as the provider writes it.
const PROVIDERS: &str = include_str!("../../../ignition/tests/data/kubeadm-2.3.json");
/// The provider's script.
const SCRIPT: &str = "/etc/kubeadm.sh";
/// What it said.
const LOG: &str = "/var/log/kubeadm.log";
/// How long the script may take.
const BRING_UP: Duration = Duration::from_secs(180);
const TOKEN: &str = "abcdef.0123456789abcdef";
const ENDPOINT: &str = "10.77.0.11:6443";

/// The files of an Ignition config for one machine, as the provider delivers them.
struct Machine<'a> {
    name: &'a str,
    address: u8,
    control_plane: bool,
    documents: String,
    /// The authorities' keys, which the provider's controller of control planes makes.
    keys: Option<&'a Secrets>,
}

/// A file of the provider's data.
fn provided(path: &str) -> Result<String> {
    let data: Value = serde_json::from_str(PROVIDERS)?;
    let mut files = data["storage"]["files"].as_array().into_iter().flatten();
    let file = files.find(|file| file["path"] == path);
    let source = file.and_then(|file| file["contents"]["source"].as_str());
    let text = source.and_then(|source| source.strip_prefix("data:,"));
    decoded(text.with_context(|| format!("the provider's data have no {path}"))?)
}

/// The text of a data URL.
fn decoded(text: &str) -> Result<String> {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).context("a cut escape")?;
        out.push(char::from(u8::from_str_radix(code, 16)?));
        out += rest;
    }
    Ok(out)
}

/// A network of the node's own pods, which a user of the provider applies as an addon.
fn network(number: u8) -> String {
    format!(
        r#"{{"cniVersion":"1.0.0","name":"test","plugins":[{{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.244.{number}.0/24"}}]],"routes":[{{"dst":"0.0.0.0/0"}}]}}}}]}}"#
    )
}

impl Machine<'_> {
    /// Turns it on with its files; containerd is all that runs, as before the provider's unit.
    fn start(&self, lab: &mut Lab) -> Result<Node> {
        let mut node = lab.node_of(NodeOptions {
            object: None,
            services: Services::Runtime,
            control_plane: self.control_plane,
            ..lab.worker_options(self.name, self.address, "")
        })?;
        let verb = match self.documents.contains("JoinConfiguration") {
            true => "kubeadm join",
            false => "kubeadm init",
        };
        let script = provided(SCRIPT)?;
        ensure!(
            script.contains("kubeadm join --config"),
            "the script: {script}"
        );
        node.write_etc(SCRIPT, &script.replace("kubeadm join", verb))?;
        node.write_etc(KUBEADM_CONFIG, &self.documents)?;
        node.write_etc("/etc/cni/net.d/10-test.conflist", &network(self.address))?;
        for (path, text) in self.keys.into_iter().flat_map(|keys| &keys.pki) {
            node.write_etc(&format!("/etc/kubernetes/pki/{path}"), text)?;
        }
        node.start(&lab.hub)?;
        node.run(&format!("chmod 0700 {SCRIPT}; chmod 0600 {KUBEADM_CONFIG}"))?;
        Ok(node)
    }
}

/// Runs the provider's script as its unit does, beside the units that systemd would start. Gives what it said.
fn script(node: &mut Node, succeeds: bool) -> Result<String> {
    node.run(&format!(
        "(if {SCRIPT}; then echo code 0; else echo code 1; fi) > {LOG} 2>&1 &"
    ))?;
    let begun = format!("test -e {CLUSTER} || grep -q '^code' {LOG}");
    node.wait_for("the script to begin", &begun, BRING_UP)?;
    if succeeds {
        node.start_kubelet()?;
        bring_up(node)?;
    }
    let ended = format!("grep '^code' {LOG}");
    let code = node.wait_for("the script", &ended, BRING_UP);
    let said = node.run(&format!("cat {LOG}"))?;
    let code = code.with_context(|| said.clone())?;
    let expected = if succeeds { "code 0" } else { "code 1" };
    ensure!(code.trim() == expected, "the script: {said}");
    Ok(said)
}

/// The unit of the bring-up.
fn bring_up(node: &Node) -> Result<()> {
    node.run(&format!(
        "(until {NODE_PROGRAM} cluster-up; do sleep 2; done) >> /var/log/cluster-up.log 2>&1 &"
    ))?;
    Ok(())
}

/// What the lab needs of the kubelet, as documents of `kubeadm init`.
fn of_lab() -> String {
    format!(
        "{KUBEADM_DOCUMENTS}kubeletCgroups: \"\"\nshutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\n"
    )
}

fn init() -> String {
    format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: lab
controlPlaneEndpoint: {ENDPOINT}
networking: {{ podSubnet: 10.244.0.0/16 }}
dns: {{}}
etcd: {{}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{{ token: {TOKEN} }}]
localAPIEndpoint: {{}}
timeouts: {{ controlPlaneComponentHealthCheck: 10m }}
nodeRegistration: {{ imagePullPolicy: IfNotPresent, taints: null }}
{}",
        of_lab()
    )
}

fn join(token: &str, pin: &str, more: &str) -> String {
    format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: {ENDPOINT}
    caCertHashes:
    - {pin}
    token: {token}
nodeRegistration:
  imagePullPolicy: IfNotPresent
  kubeletExtraArgs:
  - {{ name: kubelet-cgroups, value: \"\" }}
  taints: null
timeouts: {{ discovery: 10s }}
{more}"
    )
}

/// The script has succeeded with the node in its cluster, and has put its documents away.
fn has_succeeded(node: &Node) -> Result<()> {
    node.run(&format!(
        "test \"$(cat {SENTINEL})\" = success; test -e /tmp/kubeadm.yml; test ! -e {KUBEADM_CONFIG}"
    ))?;
    Ok(())
}

fn ready(of: &Node, name: &str) -> Result<()> {
    let ready = format!(
        "kubectl --kubeconfig /etc/kubernetes/admin.conf wait --for=condition=Ready node/{name} --timeout=1s"
    );
    of.wait_for(&format!("{name} to be Ready"), &ready, PODS)?;
    Ok(())
}

/// A control plane, another one and a worker become Ready by the provider's own files, with the provider's keys, and the script leaves its
/// sentinel. A wrong token leaves none and says so; with the right one the same machine joins. The first node is Ready again after its
/// power was cut, without those files.
pub(crate) fn its_files_bring_nodes_up_without_kubeadm(lab: &mut Lab) -> Result<()> {
    let config = config::read(&init(), "v1.36.3", &Host::of_documentation());
    let config = config.map_err(|report| anyhow::anyhow!("{:?}", report.mistakes))?;
    let keys = Secrets::make(&config, SystemTime::now())?;
    let pin = keys.pin()?;
    let machine = |name, address, control_plane, documents, keys| Machine {
        name,
        address,
        control_plane,
        documents,
        keys,
    };
    let mut first = machine("cp1", 11, true, init(), Some(&keys)).start(lab)?;
    first.run(&format!(
        "test $(readlink /usr/bin/kubeadm) = {NODE_PROGRAM}; kubeadm version || test $? = 2"
    ))?;
    let said = script(&mut first, true)?;
    ensure!(said.starts_with("before\n"), "the script: {said}");
    has_succeeded(&first)?;
    ready(&first, "cp1")?;
    let authority = first.run("cat /etc/kubernetes/pki/ca.crt")?;
    ensure!(authority == keys.pki("ca.crt")?, "another authority");

    let wrong = join("zzzzzz.0123456789abcdef", &pin, "");
    let mut worker = machine("w1", 21, false, wrong, None).start(lab)?;
    let said = script(&mut worker, false)?;
    let expected = "cluster-info is not signed for the token \"zzzzzz\"";
    ensure!(said.contains(expected), "the script: {said}");
    worker.run(&format!(
        "test ! -e {SENTINEL}; test ! -e {CLUSTER}; test -e {KUBEADM_CONFIG}; test ! -e /etc/kubernetes/pki/ca.crt"
    ))?;
    worker.write_running(KUBEADM_CONFIG, &join(TOKEN, &pin, ""))?;
    script(&mut worker, true)?;
    has_succeeded(&worker)?;
    ready(&first, "w1")?;

    let plane = "controlPlane: { localAPIEndpoint: {} }\n";
    let mut second = machine("cp2", 12, true, join(TOKEN, &pin, plane), Some(&keys)).start(lab)?;
    script(&mut second, true)?;
    has_succeeded(&second)?;
    ready(&first, "cp2")?;
    let members = first.run("slipway-node etcd")?;
    ensure!(
        members.contains("cp1") && members.contains("cp2"),
        "etcd's members: {members}"
    );
    let owner = "slipway-node status | grep -q '^objects *applied by cp1$'";
    first.run(owner)?;
    second.run(owner)?;

    second.cut()?;
    first.cut()?;
    second.start(&lab.hub)?;
    second.start_kubelet()?;
    first.start(&lab.hub)?;
    first.start_kubelet()?;
    let again = format!("until {NODE_PROGRAM} cluster-up; do sleep 2; done");
    first.run_within(&again, READY)?;
    first.run(&format!("test ! -e {SENTINEL}"))?;
    ready(&first, "cp1")
}
