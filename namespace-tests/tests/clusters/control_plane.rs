//! A control plane of one node.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use image::kubelet::ROUTES_COMMAND;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::pods::an_image_of_packages_runs;

/// How long a node may take to be Ready, beside compilers.
pub(crate) const READY: Duration = Duration::from_secs(90);
/// How long pods may take.
pub(crate) const PODS: Duration = Duration::from_secs(120);

/// How long the API server may take to its end: it waits a minute by kubeadm's arguments.
const SOON: Duration = Duration::from_secs(25);

/// One node that takes pods.
pub(crate) const OBJECT: &str = "name = \"lab\"\nstart-timeout = \"10m\"\ntokens = [\"abcdef.0123456789abcdef\"]\n[node]\ntaints = []\n";

/// Two pods with a map, a token and a folder of their own, behind a service; their programs are the node's, by a folder of the
/// host, since the image's own container images have no shell.
const WORK: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: { name: words }
data: { greeting: hello from a map }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: slipway.local/pause:baked
        imagePullPolicy: Never
        command: [/usr/bin/bash, -c]
        args:
        - |
          cp /words/greeting /scratch/greeting
          test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo "the token is there"
          exec socat TCP-LISTEN:8080,fork,reuseaddr "SYSTEM:echo HTTP/1.0 200 OK; echo; cat /scratch/greeting; cat /etc/hostname"
        ports: [{ containerPort: 8080 }]
        readinessProbe: { tcpSocket: { port: 8080 }, periodSeconds: 1 }
        volumeMounts:
        - { name: words, mountPath: /words }
        - { name: scratch, mountPath: /scratch }
        - { name: usr, mountPath: /usr, readOnly: true }
      volumes:
      - { name: words, configMap: { name: words } }
      - { name: scratch, emptyDir: {} }
      - { name: usr, hostPath: { path: /usr/lib/slipway/kubelet/rootfs/usr } }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
"#;

/// A pod and its program's words of the service, by its name: CoreDNS and kube-proxy.
const BY_NAME: &str = "exec deploy/web -- /usr/bin/bash -c 'exec 3<>/dev/tcp/web.default.svc.cluster.local/80; timeout 5 cat <&3'";

/// A node becomes Ready, runs a Deployment behind a service with a name, answers logs, exec and port-forward, and has
/// everything again after its power was cut.
pub(crate) fn a_node_serves_pods_and_has_them_again_after_a_power_cut(lab: &mut Lab) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let mounts = "! slipway-node kubelet lint | grep -E ': (doubled|shared): '";
    node.run(mounts)
        .context("the mounts of the kubelet's container")?;
    is_taken_over(&node, 0)?;
    node.run(&format!(
        "kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f - <<'END'\n{WORK}\nEND"
    ))?;
    serves(&node)?;
    an_image_of_packages_runs(&node)?;
    other_arguments_take_the_place_of_the_running_pods(&node)?;
    let identity = identity(&node)?;
    node.cut()?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    ensure!(
        identity == self::identity(&node)?,
        "it is another cluster after the cut"
    );
    is_taken_over(&node, 1)?;
    needs_little_memory(&node, &[ROUTES_COMMAND])?;
    ensure!(
        node.log("election")
            .matches("asked to elect itself")
            .count()
            == 2,
        "etcd was not asked to elect itself on both starts:\n{}",
        node.log("election")
    );
    let asked =
        "grep -l 'received MsgTimeoutNow' /var/log/pods/kube-system_etcd-*/etcd/*.log | wc -l";
    let asked = node.run(asked)?;
    ensure!(
        asked.trim() != "0",
        "etcd has held no election that it was asked for"
    );
    serves(&node)?;
    the_api_server_ends_soon(&node)
}

/// Asked to end, the API server waits for no watch: a reboot would last until the kubelet or systemd kills it.
fn the_api_server_ends_soon(node: &Node) -> Result<()> {
    let end = "server=$(pgrep -x kube-apiserver); kill $server; while [ -d /proc/$server ]; do sleep 0.1; done";
    let begin = Instant::now();
    node.run_within(end, PODS)?;
    let took = begin.elapsed();
    ensure!(
        took < SOON,
        "the API server took {took:.1?} to its end:\n{}",
        node.logs()
    );
    Ok(())
}

/// The object gets other arguments of etcd and the API server, and the kubelet is started anew: the pods of before are ended, and the
/// new ones start, once, since nothing has their ports and their data any more.
fn other_arguments_take_the_place_of_the_running_pods(node: &Node) -> Result<()> {
    let words = "is started ahead of the kubelet";
    let count = |node: &Node| node.log("kubelet").matches(words).count();
    let before = count(node);
    node.run(
        "printf '[etcd]\\nargs = { quota-backend-bytes = \"4294967296\" }\\n[api-server]\\nargs = { audit-log-maxage = 7 }\\n' >> /etc/slipway/cluster.toml
pkill -9 -x kubelet",
    )?;
    for (name, argument) in [
        ("etcd", "quota-backend-bytes=4294967296"),
        ("kube-apiserver", "audit-log-maxage=7"),
    ] {
        let runs = format!("pgrep -x {name} -a | grep -q -- {argument}");
        node.wait_for(&format!("the new {name}"), &runs, PODS)?;
    }
    let ready = "kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /readyz";
    node.wait_for("the API server", ready, PODS)?;
    ensure!(count(node) == before + 2, "{}", node.logs());
    is_taken_over(node, 0)
}

/// The kubelet has what was started ahead of it for its own: it started none of it anew in this start of the node, which is the
/// start of this number.
pub(crate) fn is_taken_over(node: &Node, number: usize) -> Result<()> {
    for name in ["etcd", "kube-apiserver"] {
        let line = format!("{name}-cp1 is started ahead of the kubelet");
        ensure!(node.log("kubelet").contains(&line), "{}", node.logs());
        let status = "jsonpath='{.status.containerStatuses[0].restartCount} {.status.phase}'";
        let get = format!(
            "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system get pod {name}-cp1 -o {status}"
        );
        let wanted = format!(
            "said=$({get}); [ \"$said\" = '{number} Running' ] || {{ echo \"$said\"; ctr -n k8s.io containers ls 'labels.\"io.kubernetes.pod.name\"=={name}-cp1'; exit 1; }} >&2"
        );
        node.wait_for(&format!("the status of {name}"), &wanted, PODS)?;
        let all = format!(
            "ctr -n k8s.io tasks ls -q 2>/dev/null | sort > /run/tasks; ctr -n k8s.io containers ls -q 'labels.\"io.kubernetes.container.name\"=={name}' 2>/dev/null | sort | comm -12 - /run/tasks | wc -l"
        );
        let found = node.run(&all)?;
        ensure!(
            found.trim() == "1",
            "{name} runs {} times:\n{}",
            found.trim(),
            node.run("ctr -n k8s.io tasks ls; ctr -n k8s.io containers ls")?
        );
    }
    Ok(())
}

/// What of this system stays beside a Ready node (routes, requests for certificates, a worker's balancer) has at most 24 MiB, all together;
/// these commands are among it.
pub(crate) fn needs_little_memory(node: &Node, commands: &[&str]) -> Result<()> {
    let each = node.run(
        "for process in $(pgrep -x slipway-node); do
  read -r _ size _ < <(grep ^Pss: /proc/$process/smaps_rollup)
  [ \"$size\" ] && echo \"$size KiB $(tr '\\0' ' ' < /proc/$process/cmdline)\"
done
true",
    )?;
    for command in commands {
        let runs = |line: &str| line.split_whitespace().next_back() == Some(*command);
        ensure!(
            each.lines().any(runs),
            "slipway-node {command} does not run:\n{each}"
        );
    }
    let sizes = each.lines().filter_map(|line| line.split_once(' '));
    let sizes = sizes.map(|(size, _)| size.parse::<u64>());
    let all = sizes.sum::<Result<u64, _>>().context("memory in KiB")?;
    ensure!(
        (1..=24 << 10).contains(&all),
        "slipway-node has {all} KiB:\n{each}"
    );
    Ok(())
}

/// What tells this cluster from every other one.
pub(crate) fn identity(node: &Node) -> Result<String> {
    node.kubectl("get namespace kube-system -o jsonpath='{.metadata.uid}'")
}

fn serves(node: &Node) -> Result<()> {
    let kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
    node.wait_for(
        "CoreDNS",
        &format!("{kubectl} -n kube-system rollout status deploy/coredns --timeout=1s"),
        PODS,
    )?;
    node.wait_for(
        "the pods",
        &format!("{kubectl} rollout status deploy/web --timeout=1s"),
        PODS,
    )?;
    let page = node.wait_for("the service's name", &format!("{kubectl} {BY_NAME}"), PODS)?;
    ensure!(
        page.contains("hello from a map"),
        "the service answered {page:?}"
    );
    let said = node.kubectl("logs deploy/web")?;
    ensure!(
        said.contains("the token is there"),
        "the pod's log is {said:?}"
    );
    let forwarded = node.run(&format!(
        "{kubectl} port-forward deploy/web 18080:8080 >/run/forward 2>&1 & forward=$!
for i in {{1..100}}; do grep -q Forwarding /run/forward && break; sleep 0.1; done
exec 3<>/dev/tcp/127.0.0.1/18080; timeout 10 cat <&3; kill $forward"
    ))?;
    ensure!(
        forwarded.contains("hello from a map"),
        "the forwarded port answered {forwarded:?}"
    );
    Ok(())
}
