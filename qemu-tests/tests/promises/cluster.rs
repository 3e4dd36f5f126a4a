//! A cluster object makes the node a control plane.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use image::paths::{CLUSTER, RUN_TIMELINE, STATE, STATE_TIMELINES};
use image::timeline::READY;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::{data_url, is_ready, until};
use slipway::vm::disks::{Node, copy_sparse};
use slipway::vm::run::Image;
use slipway::vm::timeline::{read, table};

/// The cluster of the demo's etcd disk, of one node, which pods may run on. A loaded host without KVM may need longer than
/// kubeadm's four minutes.
pub(crate) const OBJECT: &str = "name = \"demo\"\nstart-timeout = \"20m\"\n\n[node]\ntaints = []\n";
/// The unit that ends when the node is Ready.
const UNIT: &str =
    "systemctl show -P ActiveState -P SubState slipway-cluster.service | tr '\\n' ' '";
/// The administrator's kubectl. With `--raw` it asks for that path alone: to look up what else the API has takes half a minute
/// under emulation.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
/// The pod of [`POD`].
const PROBE: &str = "/api/v1/namespaces/default/pods/probe";
/// How long the pod's start may take.
const STARTED: Duration = Duration::from_secs(80);
/// How long the end of a control plane may take that systemd stops past logind, with half a minute for its pods: it stops etcd
/// with the API server, which then does not end by itself.
const ENDED: Duration = Duration::from_secs(75);
/// A pod of a baked image, with a token of its own and an address of the node's subnet.
pub(crate) const POD: &str = r#"
export KUBECONFIG=/etc/kubernetes/admin.conf
# The controller manager makes it, which may be elected after the node is Ready.
until kubectl get --raw /api/v1/namespaces/default/serviceaccounts/default 2>&1; do sleep 1; done
kubectl create --raw /api/v1/namespaces/default/pods -f - <<'END'
{
  "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
  "spec": {"containers": [{"name": "pause", "image": "slipway.local/pause:baked", "imagePullPolicy": "Never"}]}
}
END
"#;
/// Removes the pod at once: it has nothing to finish.
const DELETE: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf delete pod probe --now";
/// Waits until the kubelet has said in the year of the node's clock that the node is Ready.
const SEEN_THIS_YEAR: &str = r#"
export KUBECONFIG=/etc/kubernetes/admin.conf
condition='{.items[0].status.conditions[?(@.type=="Ready")].'
until [[ $(kubectl get nodes -o jsonpath="${condition}status}/${condition}lastHeartbeatTime}") == "True/$(date -u +%Y)"* ]]; do sleep 2; done
"#;
/// How many static pods were started ahead of the kubelet, and how often etcd and the API server were started on a first boot: with
/// systemd's control groups the kubelet ends what is not in the group that it expects. Of one that was started again the last words
/// are printed too.
const TAKEN_OVER: &str = r#"
journalctl -b -o cat -u kubelet | grep -c 'is started ahead of the kubelet'
for name in etcd kube-apiserver; do
  started=$(ctr -n k8s.io containers ls -q "labels.\"io.kubernetes.container.name\"==$name" | wc -l)
  echo "$started"
  ((started < 2)) || tail -n 40 /var/log/pods/*/"$name"/0.log
done
"#;
/// The last words of the bring-up, and of each start of the API server.
const LAST_WORDS: &str = "
journalctl -b --no-pager -o cat -u slipway-cluster.service | tail -n 20
tail -n 25 /var/log/pods/*/kube-apiserver/*.log
";
/// The recipe of the image with etcd 3.6.
const ETCD_36: &str = "qemu-tests/etcd36";
/// Prints the minor version of the etcd that runs, and of its cluster once it has it: the data is then of that version.
const ETCD_VERSION: &str = r#"
metrics() {
  exec 3<>/dev/tcp/127.0.0.1/2381
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  timeout 20 cat <&3
}
for i in {1..60}; do
  found=$(metrics)
  cluster=$(sed -n 's/^etcd_cluster_version{cluster_version="\(.*\)"} 1\r*$/\1/p' <<<"$found")
  [[ -z $cluster ]] || break
  sleep 1
done
server=$(sed -n 's/^etcd_server_version{server_version="\([0-9]*\.[0-9]*\)\..*"} 1\r*$/\1/p' <<<"$found")
echo "$server $cluster"
"#;
/// Writes an object that must be there later, and prints what it holds.
const KEEP: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf create configmap kept --from-literal=word=afloat";
const KEPT: &str =
    "kubectl --kubeconfig /etc/kubernetes/admin.conf get configmap kept -o jsonpath='{.data.word}'";
/// Brings the cluster up again, and prints what that sent.
const AGAIN: &str = "systemctl restart slipway-cluster.service; journalctl -b -o cat -u slipway-cluster.service | grep -o '[0-9]* objects of the cluster were applied' | tail -n1";

/// The node becomes Ready, runs a pod with an address of its own, and applies nothing twice; after a reboot cluster and pod
/// are there again.
pub(crate) fn a_cluster_object_makes_a_ready_control_plane(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let options = BootOptions {
        config: Some(config()),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    // The state of the first line of the page on the serial line.
    running.wait_console(&["slipway: status of ", ": Ready ("], timeouts::QUESTION)?;
    let identity = identity(&running)?;
    expect(&running, TAKEN_OVER, "2\n1\n1")?;
    running.run_within(POD, timeouts::READY)?;
    pod_runs_inside(&running)?;
    timeline_to_ready(&running)?;
    expect(&running, AGAIN, "0 objects of the cluster were applied")?;
    let begin = Instant::now();
    running.power_off()?;
    let took = begin.elapsed();
    ensure!(took < ENDED, "the node's end past logind took {took:?}");

    let running = lab.boot(&node, &options)?;
    wait_ready(&running).context("after a reboot")?;
    let now = self::identity(&running).context("after a reboot")?;
    ensure!(now == identity, "{now} is another cluster than {identity}");
    pod_runs_inside(&running).context("after a reboot")
}

/// The clock of a running control plane is set on by two years, when all of its certificates have ended, and back again, when
/// those that others made in the meantime are not valid yet: each time the node is Ready by its new clock, and starts a pod.
pub(crate) fn a_clock_that_is_set_by_two_years_leaves_the_cluster_ready(
    lab: &mut Lab,
) -> Result<()> {
    let node = lab.node()?;
    let options = BootOptions {
        config: Some(config()),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    running.run_within(POD, timeouts::READY)?;
    pod_runs_inside(&running)?;
    for by in ["2 years", "2 years ago"] {
        running.run(&format!("date -s \"$(date -d '{by}' -Iseconds)\""))?;
        let said = running.run_within(SEEN_THIS_YEAR, timeouts::READY + timeouts::READY);
        said.with_context(|| format!("the node {by}: {}", journal(&running)))?;
        let anew = format!("{DELETE}\n{POD}");
        let made = running.run_within(&anew, timeouts::READY);
        made.with_context(|| format!("a pod {by}: {}", journal(&running)))?;
        pod_runs_inside(&running).with_context(|| by.to_owned())?;
        // No certificate has ended, and none is not valid yet.
        running.run("/usr/lib/slipway/slipway-node certs")?;
        expect(&running, "systemctl list-units --failed -q --no-legend", "")?;
    }
    Ok(())
}

/// What the API server has at this path.
fn get(running: &Running, path: &str) -> Result<Value> {
    let text = running.run(&format!("{KUBECTL} get --raw {path}"))?;
    serde_json::from_str(&text).with_context(|| format!("reading {path}: {text}"))
}

/// What tells this cluster from every other one.
fn identity(running: &Running) -> Result<String> {
    let space = get(running, "/api/v1/namespaces/kube-system")?;
    let uid = space["metadata"]["uid"].as_str();
    Ok(uid.context("the namespace has no uid")?.to_owned())
}

/// Waits until the pod is Ready, whose address must be one of its node's subnet.
fn pod_runs_inside(running: &Running) -> Result<()> {
    let end = Instant::now() + STARTED;
    let pod = loop {
        let pod = get(running, PROBE)?;
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        if conditions.any(|one| one["type"] == "Ready" && one["status"] == "True") {
            break pod;
        }
        ensure!(Instant::now() < end, "the pod is not Ready: {pod}");
        std::thread::sleep(Duration::from_secs(1));
    };
    let nodes = get(running, "/api/v1/nodes")?;
    let network = |value: &Value| Some(value.as_str()?.rsplit_once('.')?.0.to_owned());
    let (address, subnet) = (
        &pod["status"]["podIP"],
        &nodes["items"][0]["spec"]["podCIDR"],
    );
    ensure!(
        network(address).is_some() && network(address) == network(subnet),
        "the pod's address {address} is none of {subnet}"
    );
    Ok(())
}

/// The end of the journal of what renews.
fn journal(running: &Running) -> String {
    let units =
        "journalctl -b --no-pager -o short-monotonic -u slipway-certs -u kubelet | tail -n 60";
    running
        .ask(units)
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}

/// The config with the cluster object.
pub(crate) fn config() -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{
            "path": CLUSTER,
            "mode": 0o600,
            "contents": { "source": data_url(OBJECT.as_bytes()) },
        }]},
    })
}

/// A cluster with etcd 3.6, which the image's build compiled, becomes Ready. An image with etcd 3.5 does not start its etcd on that
/// data: the consoles and the status say why, and with the disk that was refused the first image has its cluster again.
pub(crate) fn data_of_a_later_etcd_is_refused_and_kept(lab: &mut Lab) -> Result<()> {
    let (_, later, options) = of_recipe(lab, ETCD_36)?;
    let running = lab.boot(&later, &options)?;
    wait_ready(&running)?;
    expect(&running, ETCD_VERSION, "3.6 3.6")?;
    running.run_within(KEEP, timeouts::READY)?;
    running.power_off()?;

    let earlier = lab.node()?;
    copy_sparse(&later.etcd(), &earlier.etcd())?;
    let of_earlier = BootOptions {
        config: Some(config()),
        ..BootOptions::default()
    };
    let running = lab.boot(&earlier, &of_earlier)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    let why = ["the data is of etcd 3.6", "expected an image with etcd 3.6"];
    running.wait_console(
        &["the kubelet does not start", why[0], why[1]],
        timeouts::READY,
    )?;
    running.wait_agent()?;
    let status = running.ask("/usr/lib/slipway/slipway-node status")?.output;
    ensure!(
        why.iter().all(|words| status.contains(words)),
        "the status does not say why: {status}"
    );
    expect(
        &running,
        "findmnt -n /var/lib/etcd; pgrep -x etcd; true",
        "",
    )?;
    running.power_off()?;

    copy_sparse(&earlier.etcd(), &later.etcd())?;
    let running = lab.boot(&later, &options)?;
    wait_ready(&running).context("with the first image again")?;
    expect(&running, KEPT, "afloat")
}

/// The image of a recipe, a node of it, and how that boots as the control plane of the cluster.
pub(crate) fn of_recipe(lab: &mut Lab, recipe: &str) -> Result<(Image, Node, BootOptions)> {
    let image = lab.builder().build(recipe)?;
    let node = lab.node_of(&image.disk)?;
    let options = BootOptions {
        config: Some(config()),
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    Ok((image, node, options))
}

/// Runs a script that must succeed and print this.
pub(crate) fn expect(running: &Running, script: &str, expected: &str) -> Result<()> {
    let found = running.run_within(script, timeouts::READY)?;
    ensure!(
        found.trim() == expected.trim(),
        "{script}: expected {expected:?}, found {found:?}"
    );
    Ok(())
}

/// The boot's timeline goes on from the handoff to Ready, each step after what it waits for; `state` has the same.
fn timeline_to_ready(running: &Running) -> Result<()> {
    let record = format!(
        "for i in {{1..60}}; do grep -q kube-scheduler {RUN_TIMELINE} && break; sleep 1; done; cat {RUN_TIMELINE}"
    );
    let text = running.run_within(&record, timeouts::READY)?;
    let spans = read(&text)?;
    // The init has a step `kubelet` too.
    let find = |name: &str| {
        let mut spans = spans.iter().rev();
        let span = spans.find(|span| span.name == name);
        span.with_context(|| format!("finding {name} in {text}"))
    };
    for (before, after) in [
        ("handoff.flush", "load units"),
        ("load units", "containerd"),
        ("containerd", "kubelet"),
        ("kubelet", "etcd"),
        ("kubelet", "kube-apiserver"),
        ("etcd", "registered"),
        ("kube-apiserver", "registered"),
        ("registered", READY),
    ] {
        ensure!(
            find(before)?.start <= find(after)?.start,
            "{after} begins before {before}: {text}"
        );
    }
    // The kernel's word for a process's start has more than the whole seconds of the API.
    let starts: Vec<i64> = ["etcd", "kube-apiserver", "kube-scheduler"]
        .iter()
        .map(|name| Ok(find(name)?.start % 1_000_000))
        .collect::<Result<_>>()?;
    ensure!(
        starts.iter().any(|start| *start != starts[0]),
        "the starts of processes are those of the API: {text}"
    );
    for name in ["api-server", "objects", "pod-network", "ready"] {
        let span = find(name)?;
        ensure!(
            span.end.is_some_and(
                |end| end >= span.start && end <= find(READY).map_or(0, |ready| ready.start)
            ),
            "{name} does not end before the node is Ready: {span:?}"
        );
    }
    let kept = format!("cat $(ls {STATE}/{STATE_TIMELINES}/*.jsonl | tail -n1)");
    ensure!(
        read(&running.run(&kept)?)?
            .iter()
            .any(|span| span.name == READY),
        "the record in state does not go to Ready"
    );
    let table = table(&spans);
    ensure!(table.contains(READY), "the table has no {READY}: {table}");
    Ok(())
}

/// Waits until the node is Ready.
pub(crate) fn wait_ready(running: &Running) -> Result<()> {
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_services()?;
    let end = Instant::now() + timeouts::READY;
    let look = until(&is_ready(), timeouts::QUESTION / 4, ":");
    loop {
        running.ask(&look)?;
        let unit = running.run(UNIT)?;
        if unit.trim() == "active exited" {
            return Ok(());
        }
        if Instant::now() >= end {
            let said = running.ask(LAST_WORDS)?.output;
            ensure!(false, "the node is not Ready, its unit is {unit}:\n{said}");
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
