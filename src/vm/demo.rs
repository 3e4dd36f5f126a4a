//! The demo: boots the built image, shows its steps, and reports its health.

mod record;

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use image::paths;
use image::report::{HANDOFF_LINE, LINE};
use serde::Serialize;

use crate::host::progress::Step;
use crate::host::session::Session;
use crate::install::tools::Tools;
use crate::vm::accel;
use crate::vm::agent::{self, Agent, PORT, Secret, Start};
use crate::vm::channel::Waited;
use crate::vm::disks::Node;
use crate::vm::preflight;
use crate::vm::process::Vm;
use crate::vm::run::{self, Image, Options};
use crate::vm::timeline;

/// From power-on to the handoff; software emulation on a loaded host takes half a minute.
const HANDOFF: Duration = Duration::from_secs(240);
/// From the handoff to the agent, which starts with the multi-user target.
const AGENT: Duration = Duration::from_secs(240);
/// From the agent to a healthy etcd: the kubelet, the pod.
const HEALTHY: Duration = Duration::from_secs(300);
/// From there to a Ready node: the API server's first start makes its roles one after the other.
const READY: Duration = Duration::from_secs(1200);
/// The demo's cluster: one node, which pods may run on, and time to start without KVM.
const CLUSTER: &str = "name = \"demo\"\nstart-timeout = \"20m\"\n\n[node]\ntaints = []\n";
/// The first message of the kernel's EFI stub.
const KERNEL: &str = "EFI stub: ";
/// One script in the guest.
const QUESTION: Duration = Duration::from_secs(60);
/// Lines of the console shown with a failure.
const TAIL: usize = 40;

/// The result of the demo, with the guest's answers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Seconds from power-on to the handoff, by the host's clock.
    pub handoff_seconds: f64,
    /// Seconds from power-on to a READY kubelet and a healthy etcd.
    pub healthy_seconds: f64,
    /// Seconds from power-on to a Ready node of its cluster.
    pub ready_seconds: f64,
    /// Device and file system of `/`.
    pub root: String,
    /// Device and file system of the etcd data.
    pub etcd_disk: String,
    /// The status of the kubelet's unit.
    pub kubelet: String,
    /// etcd's answer to `/health`.
    pub etcd: String,
    /// Nodes and pods, as the guest's `kubectl` prints them.
    pub cluster: String,
    /// The boot's timeline, as its JSON lines.
    pub timeline: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "root       {}", self.root)?;
        writeln!(f, "etcd disk  {}", self.etcd_disk)?;
        writeln!(f, "kubelet    {}", self.kubelet)?;
        writeln!(f, "etcd       {}", self.etcd)?;
        writeln!(f, "\n{}\n", self.cluster.trim())?;
        write!(
            f,
            "the node was handed off {:.1} s, healthy {:.1} s and Ready {:.1} s after power-on",
            self.handoff_seconds, self.healthy_seconds, self.ready_seconds
        )
    }
}

/// Checks a control plane; the exit code is 0 if it is healthy.
/// Each line is a name, a tab, and the found value.
pub const HEALTH: &str = r#"
say() { printf '%s\t%s\n' "$1" "$2"; }
root=$(findmnt -no SOURCE,FSTYPE / | tr -s ' ')
say root "$root"
disk=$(findmnt -no SOURCE,FSTYPE,OPTIONS /var/lib/etcd | tr -s ' ')
say etcd-disk "$disk"
kubelet=$(systemctl show -P ActiveState kubelet.service)/$(systemctl show -P SubState kubelet.service)
say kubelet "$kubelet"
etcd=$(exec 3<>/dev/tcp/127.0.0.1/2379 && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && timeout 5 cat <&3 | tail -n1)
say etcd "$etcd"
wal=$(find /var/lib/etcd -xdev -name '*.wal' -size +0 | head -n1)
say wal "$wal"
[[ $root == /dev/dm-*" erofs" || $root == /dev/mapper/*" erofs" ]] &&
[[ $disk == /dev/*" ext4 "* ]] &&
[[ $kubelet == active/running ]] &&
[[ $etcd == *'"health":"true"'* ]] &&
[[ -n $wal ]]
"#;

/// The port at which etcd talks to strangers, in a cluster.
const ETCD_PORT: u16 = 2381;
/// How long kubectl may take to list a cluster on a machine with other work.
const LIST: Duration = Duration::from_secs(300);
/// How long one question waits in the guest: then the progress shows what is waited for.
const LOOK: Duration = Duration::from_secs(2);

/// Checks that the node is Ready in its cluster, which its unit waits for.
const NODE: &str = r#"
unit=$(systemctl show -P ActiveState slipway-cluster.service)/$(systemctl show -P SubState slipway-cluster.service)
printf '%s\t%s\n' node "$unit"
[[ $unit == active/exited ]]
"#;
/// Prints nodes and pods.
const PODS: &str = "get nodes,pods -A";

/// [`HEALTH`] of a node of a cluster: its etcd talks to strangers on another port only.
fn health_in_a_cluster() -> String {
    HEALTH.replace("/127.0.0.1/2379", &format!("/127.0.0.1/{ETCD_PORT}"))
}

/// The demo's config: the agent, and the cluster object.
fn config(secret: &Secret) -> serde_json::Value {
    let mut config = secret.config(Start::WithServices);
    if let Some(files) = config["storage"]["files"].as_array_mut() {
        files.push(serde_json::json!({
            "path": paths::CLUSTER,
            "mode": 0o600,
            "contents": { "source": agent::data_url(CLUSTER.as_bytes()) },
        }));
    }
    config
}

/// Boots the image with a blank etcd disk and waits until the kubelet is READY, etcd healthy, and the node Ready.
///
/// # Errors
/// The missing or unhealthy part, with the end of the console.
pub fn run(session: &Session, image: &Image, tools: &Tools, options: &Options) -> Result<Verdict> {
    let progress = &session.progress;
    let _guard = session.interrupt.guard();
    let scratch = session.cache.scratch()?;
    let secret = Secret::new()?;
    let file = scratch.path().join("config.ign");
    fs::write(&file, config(&secret).to_string()).context("writing the demo's config")?;
    preflight::check(options.memory, &[])?;
    let step = progress.step("machine");
    let (accel, why) = accel::choose(tools, options.accel)?;
    match why {
        Some(why) => step.reason(&format!("software emulation: {why}")),
        None => step.reason(&format!("{accel:?}")),
    }
    let node = Node::prepare(scratch.path(), &image.disk, tools)?;
    let options = Options {
        ignition: Some(file),
        etcd: true,
        ..options.clone()
    };
    let mut machine = run::machine(image, &node, &options, accel)?;
    machine.ports.push(PORT.to_owned());
    step.made(None);
    let begin = Instant::now();
    let vm = Vm::start(tools, &machine, scratch.path(), None)?;
    let result = watch(session, &vm, &secret, (begin, options.direct));
    if result.is_err() {
        let console = vm.console().text();
        let lines: Vec<&str> = console.lines().collect();
        progress.say("the console ended with:");
        for line in &lines[lines.len().saturating_sub(TAIL)..] {
            progress.say(&format!("  {line}"));
        }
    }
    vm.pull_plug();
    result
}

/// Waits for each stage of a boot that began at this time, `direct` without firmware.
fn watch(
    session: &Session,
    vm: &Vm,
    secret: &Secret,
    (begin, direct): (Instant, bool),
) -> Result<Verdict> {
    let progress = &session.progress;
    // Each stage ends with one of these texts on the console.
    let stage = |name: &str, words: &[&str]| {
        let step = progress.step(name);
        wait_console(session, vm, words, HANDOFF)?;
        step.made(None);
        anyhow::Ok(begin.elapsed())
    };
    let stub = match direct {
        true => None,
        false => Some(stage("firmware", &[KERNEL, HANDOFF_LINE])?),
    };
    let handoff = stage("kernel and init", &[HANDOFF_LINE])?;
    let handoff_seconds = handoff.as_secs_f64();
    let step = progress.step("systemd");
    let agent = Agent::new(vm.port(PORT)?, secret);
    agent.wait(1, AGENT)?;
    step.made(None);
    let silent = format!(
        "exec 3<>/dev/tcp/127.0.0.1/10248 || echo the kubelet; exec 3<>/dev/tcp/127.0.0.1/{ETCD_PORT} || echo etcd"
    );
    let healthy = Wait {
        name: "kubelet and etcd",
        until: &agent::listens(ETCD_PORT),
        reason: &silent,
        check: &health_in_a_cluster(),
        patience: HEALTHY,
    };
    let facts = healthy.wait(session, &agent)?;
    let healthy_seconds = begin.elapsed().as_secs_f64();
    let ready = Wait {
        name: "control plane",
        until: &agent::is_ready(),
        // What is waited for, and behind it why it is not there yet.
        reason: &format!(
            "read -r line <{}; echo \"${{line%%: *}}\"",
            paths::RUN_CLUSTER
        ),
        check: NODE,
        patience: READY,
    };
    ready.wait(session, &agent)?;
    let ready_seconds = begin.elapsed().as_secs_f64();
    // Where a node becomes Ready it has most to do: the record's end is a better moment to ask for a list.
    let recorded = record::wait(session, &agent)?;
    let cluster = agent.ask(&agent::kubectl(PODS), LIST)?;
    if cluster.code != 0 {
        bail!("the node is Ready, but kubectl fails: {}", cluster.output);
    }
    let before = record::before_the_kernel(&vm.console().text(), stub, handoff);
    let timeline = record::from_power_on(&recorded, before)?;
    progress.say(&timeline::table(&timeline::read(&timeline)?));
    let fact = |name: &str| fact(&facts, name).unwrap_or_default().to_owned();
    Ok(Verdict {
        handoff_seconds,
        healthy_seconds,
        ready_seconds,
        root: fact("root"),
        etcd_disk: fact("etcd-disk"),
        kubelet: fact("kubelet"),
        etcd: fact("etcd"),
        cluster: cluster.output,
        timeline,
    })
}

/// A wait for something in the guest.
struct Wait<'a> {
    name: &'a str,
    /// Condition of bash's without which the check is not tried.
    until: &'a str,
    /// Prints what is waited for.
    reason: &'a str,
    /// Script that succeeds if it is there.
    check: &'a str,
    patience: Duration,
}

impl Wait<'_> {
    /// Asks until the check succeeds; gives its output.
    fn wait(&self, session: &Session, agent: &Agent<'_>) -> Result<String> {
        let step = session.progress.step(self.name);
        let end = Instant::now() + self.patience;
        let look = agent::until(self.until, LOOK, self.reason);
        let mut shown = String::new();
        loop {
            let mut answer = agent.ask(&look, QUESTION)?;
            if answer.code == 0 {
                answer = agent.ask(self.check, QUESTION)?;
                if answer.code == 0 {
                    step.made(None);
                    return Ok(answer.output);
                }
            } else {
                note(&step, &answer.output, &mut shown);
            }
            if session.interrupt.requested() {
                bail!("interrupted");
            }
            if Instant::now() >= end {
                // All that the check finds: the condition alone may never have held.
                answer = agent.ask(self.check, QUESTION)?;
                bail!(
                    "{}: not well after {} s:\n{}",
                    self.name,
                    self.patience.as_secs(),
                    answer.output
                );
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Shows what is waited for, a line for each, unless it is shown.
fn note(step: &Step, lines: &str, shown: &mut String) {
    let reason = lines.replace('\n', " and ");
    if !reason.is_empty() && reason != *shown {
        step.reason(&format!("waiting for {reason}"));
        *shown = reason;
    }
}

/// Waits for one of these texts on the console; a report of the init ends the wait at once.
fn wait_console(session: &Session, vm: &Vm, words: &[&str], patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        let found = vm.console().wait(Duration::from_millis(200), |text| {
            if words.iter().any(|word| text.contains(word)) {
                return Some(Ok(()));
            }
            let report = text.lines().find_map(|line| line.split_once(LINE));
            report.map(|(_, report)| Err(report.to_owned()))
        });
        match found {
            Waited::Found(Ok(())) => return Ok(()),
            Waited::Found(Err(report)) => bail!("the init reports a failure: {report}"),
            Waited::Closed => {
                bail!(
                    "the machine ended before its console showed any of {words:?}{}",
                    vm.last_words()
                )
            }
            Waited::Late if session.interrupt.requested() => bail!("interrupted"),
            Waited::Late if Instant::now() >= until => bail!(
                "the console showed none of {words:?} within {} s",
                patience.as_secs()
            ),
            Waited::Late => {}
        }
    }
}

fn fact<'a>(facts: &'a str, name: &str) -> Option<&'a str> {
    facts
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .find(|(have, _)| *have == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_config_has_the_agent_and_the_cluster() {
        let config = config(&Secret::new().unwrap());
        let files = config["storage"]["files"].as_array().unwrap();
        let paths: Vec<_> = files.iter().map(|file| file["path"].as_str()).collect();
        assert_eq!(paths, [Some("/etc/slipway-agent.sh"), Some(paths::CLUSTER)]);
        assert_ne!(health_in_a_cluster(), HEALTH);
    }

    #[test]
    fn the_verdict_prints_the_guests_table_of_nodes_and_pods() {
        assert!(agent::kubectl(PODS).ends_with(" get nodes,pods -A"));
        let table = "NAMESPACE   NAME        STATUS   ROLES           AGE   VERSION
            node/demo   Ready    control-plane   41s   v1.36.3

NAMESPACE     NAME                 READY   STATUS    RESTARTS   AGE
kube-system   pod/etcd-demo        1/1     Running   0          40s
kube-system   pod/kube-proxy-abc   1/1     Running   0          12s";
        let verdict = Verdict {
            handoff_seconds: 21.04,
            healthy_seconds: 40.5,
            ready_seconds: 81.96,
            root: "/dev/dm-0 erofs".to_owned(),
            etcd_disk: "/dev/vdb ext4 rw".to_owned(),
            kubelet: "active/running".to_owned(),
            etcd: "{\"health\":\"true\"}".to_owned(),
            cluster: format!("{table}\n"),
            timeline: String::new(),
        };
        let expected = format!(
            "root       /dev/dm-0 erofs
etcd disk  /dev/vdb ext4 rw
kubelet    active/running
etcd       {{\"health\":\"true\"}}

{table}

the node was handed off 21.0 s, healthy 40.5 s and Ready 82.0 s after power-on"
        );
        assert_eq!(verdict.to_string(), expected);
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["cluster"], format!("{table}\n"));
    }

    #[test]
    fn facts_are_found_by_name() {
        let facts = "root\t/dev/dm-0 erofs\netcd\t\nkubelet\tactivating/start\nnoise";
        assert_eq!(fact(facts, "root"), Some("/dev/dm-0 erofs"));
        assert_eq!(fact(facts, "disk"), None);
    }
}
