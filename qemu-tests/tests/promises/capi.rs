//! A Machine of Cluster API: the image for them, with the data of the kubeadm bootstrap provider.

use std::fs;

use anyhow::{Context, Result, ensure};
use image::container_images::REGISTRY;
use image::kubelet::{ADMIN_KUBECONFIG, CLUSTER_UNIT};
use image::paths::{
    CLUSTER, METADATA_UNIT, NODE_PROGRAM, RUN_METADATA_COREOS, RUN_METADATA_FLATCAR, SENTINEL,
};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::{data_url, until};

use crate::cluster::expect;

/// The recipe of `recipes/capi.toml`, with container images.
const IMAGE: &str = "qemu-tests/capi";
/// Has the recipe of an image without kubeadm.
const DOCUMENTED: &str = include_str!("../../../docs/cluster-api.md");
/// The data of a worker as the provider writes it, of specification 2.3.
const PROVIDERS: &str = include_str!("../../../ignition/tests/data/kubeadm-2.3.json");
/// A network of the node's own pods, which a user of the provider applies as an addon.
const NETWORK: &str = r#"{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}"#;

/// The object of a worker of a cluster that does not answer.
const OBJECT: &str = "name = \"capi\"\nendpoint = \"10.0.2.2:1\"\nsentinel = true\n[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n";

/// kubeadm's configuration of a control plane, with the images of the image, and with time for an emulated machine. Its kube-proxy uses
/// iptables, which is kubeadm's default.
fn kubeadm(kubernetes: &Value) -> Result<String> {
    let version = kubernetes["version"].as_str().context("no version")?;
    let tag = |name: &str| {
        let image = kubernetes["images"][name].as_str();
        let tag = image.and_then(|image| image.rsplit_once(':'));
        tag.map(|(_, tag)| tag)
            .with_context(|| format!("no image of {name}"))
    };
    Ok(format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
timeouts: {{ kubernetesAPICall: 6m, controlPlaneComponentHealthCheck: 6m }}
nodeRegistration: {{ imagePullPolicy: Never, taints: [] }}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: capi
kubernetesVersion: {version}
imageRepository: {REGISTRY}
networking: {{ podSubnet: 10.244.0.0/16 }}
dns: {{ imageTag: {} }}
etcd: {{ local: {{ imageTag: {} }} }}
",
        tag("coredns")?,
        tag("etcd")?
    ))
}

/// The provider's data for the first control plane, as the child of a config of 3.x, as the templates of some infrastructure have it.
fn config(kubeadm: &str) -> Result<Value> {
    let mut data: Value = serde_json::from_str(PROVIDERS)?;
    for file in data["storage"]["files"]
        .as_array_mut()
        .context("no files")?
    {
        let source = file["contents"]["source"].as_str().context("no source")?;
        let source = match file["path"].as_str() {
            Some("/etc/kubeadm.yml") => data_url(kubeadm.as_bytes()),
            Some("/etc/kubeadm.sh") => source.replace("kubeadm%20join", "kubeadm%20init"),
            _ => source.to_owned(),
        };
        file["contents"]["source"] = source.into();
    }
    // This machine has no disk for it.
    data["storage"]["filesystems"] = json!([]);
    let units = data["systemd"]["units"]
        .as_array_mut()
        .context("no units")?;
    units.retain(|unit| unit["name"] == "kubeadm.service");
    ensure!(units.len() == 2, "the unit is written with its drop-in");
    // Groups of Flatcar, which a template's user has.
    data["passwd"]["groups"] = json!([{ "name": "wheel" }, { "name": "docker" }]);
    Ok(json!({
        "ignition": {
            "version": "3.4.0",
            "config": { "merge": [{ "source": data_url(data.to_string().as_bytes()) }] },
        },
        "storage": { "files": [{
            "path": "/etc/cni/net.d/10-test.conflist",
            "contents": { "source": data_url(NETWORK.as_bytes()) },
        }]},
    }))
}

/// The provider's script runs `kubeadm init`, with all of its checks, and leaves the sentinel; the node has what the templates of
/// infrastructure call, it becomes Ready, CoreDNS and kube-proxy run, and after a restart the node is Ready by itself.
pub(crate) fn the_kubeadm_provider_starts_a_control_plane(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build(IMAGE)?;
    let node = lab.node_of(&image.disk)?;
    let manifest: Value = serde_json::from_slice(&fs::read(image.out.join("manifest.json"))?)?;
    let options = BootOptions {
        config: Some(config(&kubeadm(&manifest["kubernetes"])?)?),
        etcd: false,
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    let done = until(
        &format!("[ -s {SENTINEL} ]"),
        timeouts::READY,
        "systemctl status kubeadm",
    );
    let done = running.run_within(&done, timeouts::READY + timeouts::QUESTION);
    done.with_context(|| journal(&running))?;
    expect(&running, &format!("cat {SENTINEL}"), "success")?;
    // The script has put it away: it is not run again on the next boot.
    running.run(
        "test -e /tmp/kubeadm.yml && test ! -e /etc/kubeadm.yml && id -nG core | grep -w wheel",
    )?;
    // kubeadm asks once for a default route.
    running.run("systemctl show -P After kubeadm | grep -w network-online.target")?;
    fills_templates_in(&running)?;
    works(&running)?;
    running.power_off()?;

    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    works(&running).context("after a restart")?;
    expect(
        &running,
        "systemctl show -P ConditionResult kubeadm; systemctl list-units --failed -q --no-legend",
        "no",
    )?;
    running.power_off()?;

    drop(node);
    let node = lab.node_of(&image.disk)?;
    let options = BootOptions {
        config: options.config.map(with_object),
        ..options
    };
    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    neither_begins(&running)?;
    running.power_off()?;
    fs::remove_dir_all(&image.out).context("removing the image")
}

/// The unit that a template requires writes the metadata by both of their names, from which `envsubst` fills in the node's name.
fn fills_templates_in(running: &Running) -> Result<()> {
    running.run(&format!("systemctl start {METADATA_UNIT}"))?;
    for file in [RUN_METADATA_FLATCAR, RUN_METADATA_COREOS] {
        let script = format!(
            "test -s {file} && read -r name < /proc/sys/kernel/hostname && set -a && . {file} &&
             found=$(echo 'name: ${{COREOS_CUSTOM_HOSTNAME}}' | envsubst) && echo \"$found\" && [ \"$found\" = \"name: ${{name,,}}\" ]"
        );
        running
            .run(&script)
            .with_context(|| format!("filling in a template by {file}"))?;
    }
    Ok(())
}

/// The same data, and a cluster object.
fn with_object(mut config: Value) -> Value {
    let object = json!({
        "path": CLUSTER,
        "contents": { "source": data_url(OBJECT.as_bytes()) },
    });
    if let Some(files) = config["storage"]["files"].as_array_mut() {
        files.push(object);
    }
    config
}

/// On a node with an object and with kubeadm's configuration the provider's script does not run, and the kubelet's preparation refuses.
fn neither_begins(running: &Running) -> Result<()> {
    let refused = format!("{NODE_PROGRAM} status | grep -q 'expected one of them'");
    let said = until(
        &refused,
        timeouts::READY,
        "systemctl status kubelet kubeadm",
    );
    let said = running.run_within(&said, timeouts::READY + timeouts::QUESTION);
    said.with_context(|| journal(running))?;
    // The status is that of the files, and may be told before the kubelet's turn.
    let begun = until(
        "[ \"$(systemctl show -P ConditionResult kubelet)\" = yes ]",
        timeouts::READY,
        "systemctl status kubelet",
    );
    let begun = running.run_within(&begun, timeouts::READY + timeouts::QUESTION);
    begun.with_context(|| journal(running))?;
    expect(
        running,
        "systemctl show -P ConditionResult kubelet; systemctl show -P ConditionResult kubeadm; ls -d /etc/kubernetes/pki /var/lib/kubelet/config.yaml 2>/dev/null || true",
        "yes\nno",
    )
}

/// The recipe of the documentation for an image without kubeadm.
fn documented() -> Result<String> {
    let (_, rest) = DOCUMENTED
        .split_once("## Without kubeadm")
        .context("the documentation has no image without kubeadm")?;
    let block = rest.split("```toml\n").nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    let recipe = block.context("the documentation has no recipe of it")?;
    let line = "extends = \"slipway:capi\"\n";
    ensure!(recipe.starts_with(line), "the recipe is {recipe}");
    Ok(recipe.replacen(line, &format!("{line}artifacts = []\n"), 1))
}

/// The same script with `slipway-node` in kubeadm's place, in the image of the documentation's recipe: systemd runs the provider's unit
/// and all that the bring-up starts. The sentinel is there once the node is in its cluster, and after a restart it is Ready by itself.
pub(crate) fn the_provider_starts_a_control_plane_without_kubeadm(lab: &mut Lab) -> Result<()> {
    let recipe = lab.folder().join("capi-own");
    fs::write(recipe.with_extension("toml"), documented()?)?;
    let image = lab.builder().build(&recipe.display().to_string())?;
    let node = lab.node_of(&image.disk)?;
    let manifest: Value = serde_json::from_slice(&fs::read(image.out.join("manifest.json"))?)?;
    let version = manifest["kubernetes"]["version"].as_str();
    let documents = format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
timeouts: {{ kubernetesAPICall: 6m, controlPlaneComponentHealthCheck: 6m }}
nodeRegistration: {{ taints: [] }}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: capi
kubernetesVersion: {}
networking: {{ podSubnet: 10.244.0.0/16 }}
",
        version.context("no version")?
    );
    let options = BootOptions {
        config: Some(config(&documents)?),
        etcd: false,
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    let sentinel = format!("[ -s {SENTINEL} ]");
    let done = until(&sentinel, timeouts::READY, "systemctl status kubeadm");
    let done = running.run_within(&done, timeouts::READY + timeouts::QUESTION);
    done.with_context(|| journal(&running))?;
    expect(&running, &format!("cat {SENTINEL}"), "success")?;
    running.run(&format!(
        "test ! -e /etc/kubeadm.yml && test -e {CLUSTER} && [ \"$(realpath /usr/bin/kubeadm)\" = {NODE_PROGRAM} ]"
    ))?;
    pods_run(&running)?;
    let units = format!(
        "systemctl show -P ActiveState {CLUSTER_UNIT}; systemctl list-units --failed -q --no-legend"
    );
    expect(&running, &units, "active")?;
    running.power_off()?;

    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    pods_run(&running).context("after a restart")?;
    // The pods may run before the unit has looked at all objects again.
    let ended = format!("[ \"$(systemctl show -P ActiveState {CLUSTER_UNIT})\" = active ]");
    let ended = until(
        &ended,
        timeouts::QUESTION,
        "systemctl status slipway-cluster",
    );
    running.run_within(&ended, timeouts::QUESTION + timeouts::QUESTION)?;
    expect(&running, &units, "active")?;
    expect(&running, "systemctl show -P ConditionResult kubeadm", "no")?;
    running.power_off()?;
    drop(node);
    fs::remove_dir_all(&image.out).context("removing the image")
}

/// The node is Ready, and the pods of kubeadm's addons too.
fn works(running: &Running) -> Result<()> {
    pods_run(running)?;
    let status = running.run(&format!("{NODE_PROGRAM} status"))?;
    ensure!(
        ["Ready", "without a cluster object"]
            .iter()
            .all(|words| status.contains(words)),
        "the status says {status}"
    );
    Ok(())
}

fn pods_run(running: &Running) -> Result<()> {
    let wait = |what: &str| {
        let script = format!(
            "until kubectl --kubeconfig {ADMIN_KUBECONFIG} {what} --timeout=60s; do sleep 5; done"
        );
        running
            .run_within(&script, timeouts::READY)
            .with_context(|| journal(running))
    };
    wait("wait node --all --for=condition=Ready")?;
    wait("-n kube-system rollout status deployment/coredns")?;
    wait("-n kube-system rollout status daemonset/kube-proxy").map(drop)
}

/// The pods, and the end of what kubeadm and the kubelet said.
fn journal(running: &Running) -> String {
    let units = format!(
        "kubectl --kubeconfig {ADMIN_KUBECONFIG} get pods -A
         journalctl -b --no-pager -o short-monotonic -u kubeadm -u kubelet | grep -v 'Probe failed' | tail -n 60"
    );
    running
        .ask(&units)
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}
