//! From the handoff to a Ready control plane in a machine of QEMU under software emulation: ours and `kubeadm init` in turns, on the
//! first boot and on a second one of the same disks.
//!
//! Beside them the kubelet of that image alone, without a control plane.
//!
//! Both are one image with the same config but for a cluster object on our side, and kubeadm's files and a unit that starts it on
//! the other. The API server is asked from this host by one connection, so that no program of the measurement runs in the guest
//! while it boots; without virtual time the clock of an emulated machine runs as this host's.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Error, Result, bail, ensure};
use api::{Api, Server};
use image::kubelet::{CLUSTER_UNIT, UNIT};
use image::paths::{CLUSTER, RUN_TIMELINE};
use image::report::Handoff;
use image::timeline::{READY, SYSTEMD};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::format::time::rfc3339;
use slipway::vm::agent::data_url;
use slipway::vm::disks::Node;
use slipway::vm::machine::{Accel, Clock, Forward, Machine};

use crate::control_plane::{
    KUBEADM, KUBEADM_FILE, KubeadmNode, NETWORK, NETWORK_FILE, OF_FIRST, PATCH_FILE, PATCH_FOR_35,
    PEER, is_ready_since, kubeadm_config,
};
use crate::session::Session;
use crate::table::{Goal, Row, Table, Unit, median};

const GROUP: &str = "cluster-boots";
/// The image: recipes/cluster.toml with kubeadm.
const RECIPE: &str = "qemu-tests/kubeadm";
/// The processors of the machine.
const CPUS: u32 = 2;
/// From the handoff to a Ready node.
const PATIENCE: Duration = Duration::from_secs(900);
/// The node, and the address that QEMU's user network gives the only card.
const NODE: &str = "bench";
const ADDRESS: &str = "10.0.2.15";
/// Port of the API server.
const API_PORT: u16 = 6443;
/// A name that the certificates of both sides have.
const API_NAME: &str = "kubernetes.default.svc";
/// How often the API server is asked. An answer takes milliseconds of an emulated processor.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How long an answer may take: the guest computes for other programs too.
const ANSWER: Duration = Duration::from_secs(10);
/// Our cluster, that of the image's etcd volume: pods may run on the only node, and what starts gets the time that emulation needs.
const OBJECT: &str =
    "name = \"demo\"\nstart-timeout = \"20m\"\n[node]\nname = \"bench\"\ntaints = []\n";
/// The same time for kubeadm's.
const TIMEOUTS: &str = "timeouts: { controlPlaneComponentHealthCheck: 20m0s, kubeletHealthCheck: 20m0s, kubernetesAPICall: 20m0s }\n";
/// What the kubelet needs on a verified root.
const KUBELET: &str = "---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
volumePluginDir: /var/lib/kubelet/volumeplugins
resolvConf: /run/systemd/resolve/resolv.conf
";
/// As in recipes/capi.toml: the kubelet waits until kubeadm has written its configuration.
const DROP_IN: &str = "[Unit]\nConditionPathExists=/var/lib/kubelet/config.yaml\n";
/// A kubelet with an identity waits half a minute for a synchronized clock, and no time server is reached from here. A first
/// control plane of ours does not wait.
const SYNCHRONIZED: &str = "d /run/systemd/timesync 0755 systemd-timesync systemd-timesync -\nf /run/systemd/timesync/synchronized 0644 systemd-timesync systemd-timesync -\n";
/// The version of the configs.
const VERSION: &str = "3.4.0";
const KUBEADM_UNIT: &str = "kubeadm.service";
/// Prints the kubeconfigs of a cluster's first moments and of the administrator once both are written, without a program that is
/// started for each look.
const KUBECONFIGS: &str = r"
exec 9<> <(:)
SECONDS=0
for name in super-admin admin; do
  file=/etc/kubernetes/$name.conf
  until [[ -e $file && $(<$file) == *client-key-data* ]]; do
    (( SECONDS < 400 )) || exit 1
    read -rt 0.2 -u 9
  done
done
cat /etc/kubernetes/super-admin.conf
echo ======
cat /etc/kubernetes/admin.conf
";

/// The end of the journal, and what systemd still waits for.
const JOURNAL: &str =
    "journalctl -b --no-pager -o short-monotonic | tail -n 150; systemctl --no-pager list-jobs";

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Kubeadm,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kubeadm => PEER,
        }
    }

    /// The unit that ends once the cluster is made.
    const fn unit(self) -> &'static str {
        match self {
            Self::Ours => CLUSTER_UNIT,
            Self::Kubeadm => KUBEADM_UNIT,
        }
    }

    /// What one of its boots is called.
    fn boot(self, boot: &str) -> String {
        format!("{}-{boot}", self.name())
    }

    /// The last record that its timeline gets.
    const fn last(self) -> &'static str {
        match self {
            Self::Ours => READY,
            Self::Kubeadm => SYSTEMD,
        }
    }
}

/// Seconds from the handoff on one boot.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// The kubelet's READY to systemd, by the guest's clock; its health check answers by then.
    kubelet: f64,
    /// The API server's health checks.
    livez: f64,
    readyz: f64,
    /// The node is Ready for whoever may do everything.
    ready: f64,
    /// The same for the administrator, whose role is an object of the cluster.
    shown: f64,
}

/// The kubeconfigs of a node.
#[derive(Clone, Debug)]
struct Kubeconfigs {
    first: String,
    administrator: String,
}

/// The first boot and the second one.
type Pair = (Times, Times);

/// What a row shows of a node's two boots.
type Pick = fn(&Pair) -> f64;

/// Measures both in turns.
///
/// # Errors
/// If a node does not become Ready.
pub(crate) fn measure(session: &mut Session, repeats: usize, table: &mut Table) -> Result<()> {
    session.say("building the image with kubeadm");
    let mut lab = Lab::of(RECIPE)?;
    let (mut ours, mut theirs, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=repeats {
        let kubelet = kubelet_alone(session, &mut lab).context("the kubelet alone")?;
        session.say(&format!(
            "cluster {run} of {repeats}, the kubelet alone: {kubelet:.1} s"
        ));
        alone.push(kubelet);
        for (side, pairs) in [(Side::Ours, &mut ours), (Side::Kubeadm, &mut theirs)] {
            let pair = both_boots(session, &mut lab, side)
                .with_context(|| format!("the cluster of {}", side.name()))?;
            let (first, second) = pair;
            session.say(&format!(
                "cluster {run} of {repeats}, {}: kubelet {:.1} s, livez {:.1}, readyz {:.1}, Ready {:.1}, by the administrator {:.1}; second boot: \
                 kubelet {:.1}, livez {:.1}, Ready {:.1}",
                side.name(),
                first.kubelet,
                first.livez,
                first.readyz,
                first.ready,
                first.shown,
                second.kubelet,
                second.livez,
                second.shown,
            ));
            pairs.push(pair);
        }
    }
    rows(&ours, &theirs, &alone, table);
    Ok(())
}

/// Seconds from the handoff to the kubelet's READY on a first boot without a cluster: what the node does until the kubelet serves, with
/// etcd as its only static pod and nothing that it waits for or shares the processors with.
fn kubelet_alone(session: &Session, lab: &mut Lab) -> Result<f64> {
    lab.begin()?;
    let node = lab.node()?;
    let config = json!({ "ignition": { "version": VERSION } });
    let running = lab.start(&node, machine(lab, &node)?, Some(config))?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    // Waits for the start that the boot has begun.
    let started = running
        .agent()?
        .ask(&format!("systemctl start {UNIT}"), PATIENCE)?;
    ensure!(started.code == 0, "the kubelet failed: {}", started.output);
    let kubelet = kubelet_ready(&running)?;
    keep_timeline(session, &running, "alone-first", SYSTEMD)?;
    running.vm.pull_plug();
    Ok(kubelet)
}

/// The machine that both are measured on.
fn machine(lab: &Lab, node: &Node) -> Result<Machine> {
    let mut machine = lab.machine(node, &BootOptions::default())?;
    machine.accel = Accel::Tcg;
    machine.clock = Clock::Real;
    machine.cpus = CPUS;
    Ok(machine)
}

/// A new node's first boot, a clean shutdown, and its second boot.
fn both_boots(session: &Session, lab: &mut Lab, side: Side) -> Result<Pair> {
    lab.begin()?;
    let node = lab.node()?;
    let config = config(lab, side)?;
    let (running, kubeconfigs, first) = boot(lab, &node, &config, None)?;
    finish(&running, side)?;
    keep_timeline(session, &running, &side.boot("first"), side.last())?;
    running.power_off()?;
    let (running, _, second) = boot(lab, &node, &config, Some(kubeconfigs))?;
    keep_timeline(session, &running, &side.boot("second"), side.last())?;
    running.vm.pull_plug();
    Ok((first, second))
}

/// Boots the node up to Ready.
fn boot(
    lab: &mut Lab,
    node: &Node,
    config: &Value,
    known: Option<Kubeconfigs>,
) -> Result<(Running, Kubeconfigs, Times)> {
    let port = free_port()?;
    let mut machine = machine(lab, node)?;
    machine.forwards.push(Forward {
        host: port,
        guest: API_PORT,
    });
    let begun = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    let running = lab.start(node, machine, Some(config.clone()))?;
    running.wait_handoff(timeouts::HANDOFF)?;
    let handoff = Instant::now();
    let reached = || {
        let kubeconfigs = known.map_or_else(|| kubeconfigs(&running), Ok)?;
        let mut times = asked(&kubeconfigs, port, &begun, handoff)?;
        times.kubelet = kubelet_ready(&running)?;
        Ok((kubeconfigs, times))
    };
    match reached() {
        Ok((kubeconfigs, times)) => Ok((running, kubeconfigs, times)),
        Err(error) => Err(with_journal(&running, error)),
    }
}

/// The kubeconfigs that a first boot makes, once both are there.
fn kubeconfigs(running: &Running) -> Result<Kubeconfigs> {
    running.wait_agent()?;
    let said = running.run_within(KUBECONFIGS, PATIENCE)?;
    let (first, administrator) = said.split_once("======\n").context("one kubeconfig")?;
    Ok(Kubeconfigs {
        first: first.to_owned(),
        administrator: administrator.to_owned(),
    })
}

/// The error with the end of the node's journal, or of its console if the agent does not answer.
fn with_journal(running: &Running, error: Error) -> Error {
    let said = running.ask(JOURNAL).map(|answer| answer.output);
    let said = said.unwrap_or_else(|_| running.vm.console().text());
    error.context(format!("the node said:\n{said}"))
}

/// Asks the API server until the administrator sees a Ready node, each time for all that is not reached yet.
fn asked(kubeconfigs: &Kubeconfigs, port: u16, begun: &str, handoff: Instant) -> Result<Times> {
    let url = format!("https://127.0.0.1:{port}");
    let client = |kubeconfig: &str| -> Result<Api> {
        let server = Server {
            url: &url,
            name: Some(API_NAME),
        };
        Ok(Api::new(kubeconfig, server)?.within(ANSWER))
    };
    let (first, administrator) = (
        client(&kubeconfigs.first)?,
        client(&kubeconfigs.administrator)?,
    );
    let is_ready = |api: &Api| {
        let node = api.get(&format!("/api/v1/nodes/{NODE}"));
        node.is_ok_and(|node| is_ready_since(&node.unwrap_or_default(), begun))
    };
    let checks: [&dyn Fn() -> bool; 4] = [
        &|| first.healthy("/livez").is_ok(),
        &|| first.healthy("/readyz").is_ok(),
        &|| is_ready(&first),
        &|| is_ready(&administrator),
    ];
    let mut reached = [None; 4];
    loop {
        for (check, reached) in checks.iter().zip(&mut reached) {
            if reached.is_none() && check() {
                *reached = Some(handoff.elapsed().as_secs_f64());
            }
        }
        if let [Some(livez), Some(readyz), Some(ready), Some(shown)] = reached {
            return Ok(Times {
                kubelet: 0.0,
                livez,
                readyz,
                ready,
                shown,
            });
        }
        ensure!(
            handoff.elapsed() < PATIENCE,
            "after {} s these are reached (livez, readyz, Ready, the same by the administrator): {reached:?}",
            PATIENCE.as_secs()
        );
        sleep(ASK_EVERY);
    }
}

/// Seconds from the handoff to the kubelet's READY, both by the guest's clock.
fn kubelet_ready(running: &Running) -> Result<f64> {
    let handoff = Handoff::find(&running.vm.console().text()).context("no handoff line")?;
    let script = format!("systemctl show -P ActiveEnterTimestampMonotonic {UNIT}");
    let said = running.run(&script)?;
    let micros: i64 = said.trim().parse().with_context(|| said.clone())?;
    ensure!(
        micros > handoff.micros,
        "the kubelet is not READY: {micros}"
    );
    Ok(Duration::from_micros((micros - handoff.micros).unsigned_abs()).as_secs_f64())
}

/// Waits until the cluster is made.
fn finish(running: &Running, side: Side) -> Result<()> {
    let unit = side.unit();
    let script = format!(
        "until [ \"$(systemctl show -P SubState {unit})\" = exited ]; do
  ! systemctl -q is-failed {unit} || exit 1
  sleep 1
done"
    );
    let answer = running.agent()?.ask(&script, PATIENCE)?;
    if answer.code != 0 {
        let said = running.ask(&format!(
            "journalctl -b --no-pager -o cat -u {unit} | tail -n 60"
        ))?;
        bail!("{unit} failed:\n{}", said.output);
    }
    Ok(())
}

/// Keeps the boot's timeline for `slipway timeline`, once the node has added systemd's part and, of ours, that to Ready.
fn keep_timeline(session: &Session, running: &Running, boot: &str, last: &str) -> Result<()> {
    let script = format!(
        "for i in {{1..60}}; do grep -q '\"{last}\"' {RUN_TIMELINE} && break; sleep 1; done; cat {RUN_TIMELINE}"
    );
    let record = running.run(&script)?;
    let file = format!("cluster-{boot}.jsonl");
    fs::write(session.folder().join(file), record).context("keeping a timeline")
}

/// The node's config.
fn config(lab: &Lab, side: Side) -> Result<Value> {
    let file = |path: &str, text: &str| {
        json!({
            "path": path,
            "mode": 0o600,
            "contents": { "source": data_url(text.as_bytes()) },
        })
    };
    let version = json!({ "version": VERSION });
    if side == Side::Ours {
        return Ok(json!({
            "ignition": version,
            "storage": { "files": [file(CLUSTER, OBJECT)] },
        }));
    }
    let made = KubeadmNode {
        name: NODE,
        address: ADDRESS,
        more: TIMEOUTS,
        documents: KUBELET,
    };
    let kubeadm = kubeadm_config(&lab.image.out.join("manifest.json"), &made)?;
    let drop_in = format!("/etc/systemd/system/{UNIT}.d/10-kubeadm.conf");
    Ok(json!({
        "ignition": version,
        "storage": { "files": [
            file(KUBEADM_FILE, &kubeadm),
            file(PATCH_FILE, PATCH_FOR_35),
            file(NETWORK_FILE, NETWORK),
            file(&drop_in, DROP_IN),
            file("/etc/tmpfiles.d/50-synchronized.conf", SYNCHRONIZED),
        ]},
        "systemd": { "units": [{
            "name": KUBEADM_UNIT,
            "enabled": true,
            "contents": kubeadm_unit(),
        }]},
    }))
}

/// Starts kubeadm as soon as containerd serves; the static pod of the image is not kubeadm's.
fn kubeadm_unit() -> String {
    format!(
        "[Unit]
Requires=containerd.service
After=containerd.service
ConditionPathExists=!/etc/kubernetes/admin.conf

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
Environment=HOME=/root
ExecStartPre=/bin/bash -c 'rm -f /etc/kubernetes/manifests/*'
ExecStart=/usr/bin/{KUBEADM}

[Install]
WantedBy=multi-user.target
"
    )
}

fn rows(ours: &[Pair], theirs: &[Pair], alone: &[f64], table: &mut Table) {
    let of = |pairs: &[Pair], time: Pick| -> Vec<f64> { pairs.iter().map(time).collect() };
    let most = OF_FIRST * median(&of(ours, |(first, _)| first.shown));
    let measured: [(&str, Pick, Vec<Goal>); 7] = [
        (
            "handoff → kubelet READY, first boot",
            |(first, _)| first.kubelet,
            vec![Goal::AtMost(12.0)],
        ),
        (
            "handoff → API server live, first boot",
            |(first, _)| first.livez,
            Vec::new(),
        ),
        (
            "handoff → API server ready, first boot",
            |(first, _)| first.readyz,
            Vec::new(),
        ),
        (
            "handoff → node Ready, first boot",
            |(first, _)| first.ready,
            vec![Goal::Times(2.0)],
        ),
        (
            "the same by the administrator's kubeconfig, whose role is an object",
            |(first, _)| first.shown,
            Vec::new(),
        ),
        (
            "handoff → kubelet READY, second boot",
            |(_, second)| second.kubelet,
            Vec::new(),
        ),
        (
            "handoff → node Ready, second boot (at most 0.7 of the first by the administrator's)",
            |(_, second)| second.shown,
            vec![Goal::AtMost(most)],
        ),
    ];
    table.rows.push(Row {
        group: GROUP,
        what: "handoff → kubelet READY, first boot, without a control plane".to_owned(),
        unit: Unit::Seconds,
        ours: alone.to_vec(),
        peer: None,
        goals: vec![Goal::AtMost(12.0)],
    });
    table.rows.extend(measured.map(|(what, time, goals)| Row {
        group: GROUP,
        what: what.to_owned(),
        unit: Unit::Seconds,
        ours: of(ours, time),
        peer: Some((PEER, of(theirs, time))),
        goals,
    }));
    table.notes.push(format!(
        "cluster-boots: QEMU, TCG, {CPUS} processors, 2 GiB; kubeadm without its preflight checks and addons; ours applies kube-proxy and CoreDNS too"
    ));
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: f64) -> Times {
        Times {
            kubelet: of,
            livez: of + 1.0,
            readyz: of + 2.0,
            ready: of + 3.0,
            shown: of + 4.0,
        }
    }

    #[test]
    fn each_row_has_its_time_and_the_second_boot_its_goal_by_the_first() {
        let mut table = Table::default();
        let ours = [(times(10.0), times(5.0))];
        let theirs = [(times(30.0), times(20.0))];
        rows(&ours, &theirs, &[9.0], &mut table);
        let found: Vec<f64> = table.rows.iter().map(|row| row.ours[0]).collect();
        assert_eq!(found, [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 5.0, 9.0]);
        let peers = table.rows.iter().filter_map(|row| row.peer.as_ref());
        let peers: Vec<f64> = peers.map(|(_, runs)| runs[0]).collect();
        assert_eq!(peers, [30.0, 31.0, 32.0, 33.0, 34.0, 20.0, 24.0]);
        assert_eq!(table.rows[4].reached(), Some(true));
        let goal = &table.rows[7].goals[0];
        assert!(matches!(goal, Goal::AtMost(most) if (most - 9.8).abs() < 1e-9));
    }

    #[test]
    fn kubeadm_begins_once_alone() {
        let unit = kubeadm_unit();
        assert!(unit.contains("\nConditionPathExists=!/etc/kubernetes/admin.conf\n"));
        assert!(unit.contains("\nExecStart=/usr/bin/kubeadm init "));
    }
}
