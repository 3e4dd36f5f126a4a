//! Runs the machines of a cluster on this host until they are asked to end.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use image::kubelet::{SHUTDOWN_GRACE_SECONDS, STOP_SECONDS};
use image::paths::NODE_PROGRAM;
use serde_json::{Map, Value};

use super::administrator;
use super::launch::{Cluster, Launcher, QUESTION, Running};
use super::machines::{self, Member};
use super::object::ClusterFile;
use super::state::{Folder, Held, State};
use super::token::OwnToken;
use crate::host::atomic_file;
use crate::host::interrupt::Interrupt;
use crate::host::session::Session;
use crate::vm::agent::{self, Agent, PORT, is_ready};
use crate::vm::preflight;

/// From power-on to all nodes Ready, for each node: software emulation on a loaded host.
const READY: Duration = Duration::from_secs(600);
/// From power-on to the agents' first words.
const AGENT: Duration = Duration::from_secs(480);
/// How often the nodes are asked.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long a question waits in a node that is not Ready.
const LOOK: Duration = Duration::from_secs(2);
/// What a node waits for that does not say it.
const NOT_READY: &str = "not Ready";
/// How long systemd waits for a unit before it kills it, unless the unit says otherwise (`DefaultTimeoutStopSec=`,
/// systemd-system.conf(5)), and at the end for processes that are in no unit any more.
const SYSTEMD_STOP: u64 = 90;
/// How long a power-off may take beside the time that the kubelet has for pods: the kubelet's unit, then containerd's, which the kubelet's
/// is ordered after, then what is left. A node that hangs in each of them still ends by itself.
const STOP: u64 = STOP_SECONDS + SYSTEMD_STOP + SYSTEMD_STOP;
/// What may be between a signal and the power buttons: a question to a node that does not answer.
const BEFORE: u64 = QUESTION.as_secs();
/// After this time it is said which machines are waited for, and again whenever one has ended.
const SILENT: Duration = Duration::from_secs(5);
/// The longest time for pods that is waited for, in seconds: the clock cannot count every one that an object can say.
const LONGEST: u64 = 365 * 24 * 60 * 60;
/// How often it is looked at whether a machine has ended.
const LOOK_OFF: Duration = Duration::from_millis(100);
/// Nodes, as the API server knows them.
const NODES: &str = "get nodes -o json --request-timeout=20s";
/// Nodes and pods, for people.
const PODS: &str = "get nodes,pods -A -o wide";

/// Takes the folder of machines whose image is not built yet, so that another process knows of it and can end this one.
///
/// # Errors
/// As [`Folder::hold`], and if the state cannot be written.
pub fn begin(file: &ClusterFile, folder: &Folder) -> Result<Held> {
    let held = folder.hold()?;
    folder.keep(&State {
        process: std::process::id(),
        building: true,
        waits_for: "the image to be built".to_owned(),
        end_seconds: end(file).as_secs(),
        ..State::default()
    })?;
    Ok(held)
}

/// Boots the machines in the folder that [`begin`] took, tells when all nodes are Ready, and goes on until it is interrupted or a machine
/// ends. The machines' disks stay in the folder for the next time.
///
/// # Errors
/// A node that does not become Ready, with what it waits for; a machine that ended.
pub fn run(
    session: &Session,
    cluster: &Cluster<'_>,
    (folder, _held): (&Folder, Held),
) -> Result<()> {
    let _guard = session.interrupt.guard();
    let grace = grace(&cluster.file.fields());
    let end = end(cluster.file);
    session.interrupt.allow(end);
    let mut state = State {
        process: std::process::id(),
        waits_for: "the machines to start".to_owned(),
        end_seconds: end.as_secs(),
        ..State::default()
    };
    folder.keep(&state)?;
    let file = machines::local(cluster.file, cluster.control_planes)?;
    let port = free(cluster.port)?;
    let server = format!("https://127.0.0.1:{port}");
    let kubeconfig =
        administrator::kubeconfig(&file, cluster.secrets, Some(&server), SystemTime::now())?;
    atomic_file::write(&folder.kubeconfig(), 0o600, |file| {
        Ok(file.write_all(kubeconfig.as_bytes())?)
    })?;
    let scratch = session.cache.scratch()?;
    let launcher = Launcher::new(cluster, &file, (folder.path(), scratch.path()), port)?;
    let mut running = Vec::new();
    let result = bring_up(session, &launcher, &mut running, folder, &mut state)
        .and_then(|()| attend(session, &mut running, folder, &mut state));
    let result = match result {
        Err(error) if !session.interrupt.requested() => Err(keep_consoles(&running, folder, error)),
        other => other,
    };
    stop(session, running, folder, &mut state, grace);
    folder.forget()?;
    result
}

/// Keeps what the consoles showed, for an error that they may explain.
fn keep_consoles(running: &[Running], folder: &Folder, error: anyhow::Error) -> anyhow::Error {
    let mut kept = Vec::new();
    for Running { member, vm, .. } in running {
        let path = folder.path().join(format!("{}.console", member.name));
        if fs::write(&path, vm.console().text()).is_ok() {
            kept.push(path.display().to_string());
        }
    }
    match kept.is_empty() {
        // No machine has started.
        true => error,
        false => error.context(format!("the consoles are in {}", kept.join(" and "))),
    }
}

/// Looks at what the machines ask of this host, for callers that first do what takes long: the memory of each, in MiB, and the port that
/// leads to the API server.
///
/// # Errors
/// As [`preflight::check`], and if the port is in use or not for this user.
pub fn check_host(memory: u32, port: u16) -> Result<()> {
    preflight::check(memory, &[])?;
    free(port).map(drop)
}

/// A port of this host's loopback.
fn free(port: u16) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener =
        listener.with_context(|| format!("taking port {port} of this host for the API server"))?;
    Ok(listener.local_addr()?.port())
}

/// Starts the machines, and waits until their nodes are Ready. Control planes that are to join do so one after the other: etcd
/// takes one member at a time, and a member that comes up slowly beside its cluster's first holds both up.
fn bring_up(
    session: &Session,
    launcher: &Launcher<'_>,
    running: &mut Vec<Running>,
    folder: &Folder,
    state: &mut State,
) -> Result<()> {
    let (at_once, later) = launcher.stages()?;
    let mut token = launcher.token(&folder.kubeconfig())?;
    let step = session.progress.step("machines");
    if let Some(why) = &launcher.emulation {
        step.reason(&format!("software emulation: {why}"));
    }
    for member in at_once {
        running.push(launch(session, launcher, member, folder)?);
    }
    step.made(None);
    wait_ready(session, running, token.as_mut(), folder, state)?;
    for member in later {
        let step = session.progress.step(&format!("machine {}", member.name));
        running.push(launch(session, launcher, member, folder)?);
        step.made(None);
        wait_ready(session, running, token.as_mut(), folder, state)?;
    }
    Ok(())
}

fn launch(
    session: &Session,
    launcher: &Launcher<'_>,
    member: Member,
    folder: &Folder,
) -> Result<Running> {
    let running = launcher.launch(member)?;
    if !running.is_of_image {
        let kept = folder.path().join(&running.member.name);
        session.progress.say(&format!(
            "{} boots the disk in {}, which was made from another image",
            running.member.name,
            kept.display()
        ));
    }
    Ok(running)
}

/// Waits until the nodes of all machines that run are Ready.
fn wait_ready(
    session: &Session,
    running: &mut [Running],
    mut token: Option<&mut OwnToken<'_>>,
    folder: &Folder,
    state: &mut State,
) -> Result<()> {
    let step = session.progress.step("nodes");
    let until = Instant::now() + READY * u32::try_from(running.len())?;
    wait_agents(session, running)?;
    loop {
        check(session, running)?;
        let waits = waits(session, running)?;
        if waits.is_empty() {
            step.made(None);
            return Ok(());
        }
        if let Some(token) = token.as_mut() {
            token.keep_valid(SystemTime::now(), &session.progress);
        }
        if state.waits_for != waits {
            state.waits_for.clone_from(&waits);
            folder.keep(state)?;
            step.reason(&waits);
        }
        if Instant::now() >= until {
            bail!("not all nodes are Ready: {waits}");
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Tells that all nodes are Ready, and waits until the end.
fn attend(
    session: &Session,
    running: &mut [Running],
    folder: &Folder,
    state: &mut State,
) -> Result<()> {
    let first = running.first().context("a cluster without machines")?;
    state.cluster = first
        .ask(&agent::kubectl(PODS))
        .ok()
        .flatten()
        .unwrap_or_default();
    state.ready = true;
    state.waits_for.clear();
    folder.keep(state)?;
    session
        .progress
        .say(&format!("\n{}\n", state.cluster.trim()));
    session.progress.say(&format!(
        "all nodes are Ready; export KUBECONFIG={}",
        folder.kubeconfig().display()
    ));
    loop {
        check(session, running)?;
        std::thread::sleep(ASK_EVERY / 10);
    }
}

/// Whether everything goes on.
fn check(session: &Session, running: &mut [Running]) -> Result<()> {
    if session.interrupt.requested() {
        bail!("interrupted");
    }
    for machine in running {
        if let Some(status) = machine.vm.ended()? {
            bail!("the machine {} ended: {status}", machine.member.name);
        }
    }
    Ok(())
}

fn wait_agents(session: &Session, running: &mut [Running]) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(500);
    let until = Instant::now() + AGENT;
    let mut number = 0;
    while number < running.len() {
        check(session, running)?;
        let Running {
            member, secret, vm, ..
        } = &running[number];
        match Agent::new(vm.port(PORT)?, secret).wait(1, LOOK) {
            Ok(_) => number += 1,
            Err(error) if Instant::now() >= until => {
                return Err(error)
                    .with_context(|| format!("the node {} did not come up", member.name));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// What the nodes that are not Ready wait for; nothing once all are. The API server is asked once the bring-up of each has seen its
/// node Ready: `kubectl` takes seconds of an emulated processor. An interrupt waits for one question at most.
fn waits(session: &Session, running: &[Running]) -> Result<String> {
    let go_on = || -> Result<()> {
        if session.interrupt.requested() {
            bail!("interrupted");
        }
        Ok(())
    };
    let status = format!("{NODE_PROGRAM} status --json");
    let look = agent::until(&is_ready(), LOOK, &status);
    let mut lines = Vec::new();
    for machine in running {
        go_on()?;
        // A loaded node may not answer in time; it is asked again, and the deadline of all counts.
        let answer = machine.answer(&look);
        if answer.as_ref().is_ok_and(|answer| answer.code == 0) {
            continue;
        }
        let status = answer.ok().and_then(|answer| waits_for(&answer.output));
        let status = status.unwrap_or_else(|| NOT_READY.to_owned());
        lines.push(format!("{}: {status}", machine.member.name));
    }
    if lines.is_empty() {
        go_on()?;
        let first = running.first().context("a cluster without machines")?;
        let list = first.ask(&agent::kubectl(NODES)).unwrap_or_default();
        let ready = list.map(|text| ready(&text)).unwrap_or_default();
        let names = running.iter().map(|machine| &machine.member.name);
        let others = names.filter(|name| !ready.contains(name));
        lines.extend(others.map(|name| format!("{name}: {NOT_READY}")));
    }
    Ok(lines.join("; "))
}

/// The names of the nodes that are Ready, of a list of nodes.
fn ready(list: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let nodes = list["items"].as_array().into_iter().flatten();
    let is_ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let names = nodes
        .filter(is_ready)
        .filter_map(|node| node["metadata"]["name"].as_str());
    names.map(str::to_owned).collect()
}

fn waits_for(status: &str) -> Option<String> {
    let status: Value = serde_json::from_str(status).ok()?;
    status["waitsFor"].as_str().map(str::to_owned)
}

/// How long a cluster's machines may take to end after a signal.
#[must_use]
pub fn end(file: &ClusterFile) -> Duration {
    Duration::from_secs(grace(&file.fields()) + STOP + BEFORE)
}

/// How long the kubelets of a cluster end pods before a power-off, in seconds: the default, or longer if the object says so.
fn grace(object: &Map<String, Value>) -> u64 {
    let config = object.get("kubelet").map(|kubelet| &kubelet["config"]);
    let config = config.unwrap_or(&Value::Null);
    let period = config["shutdownGracePeriod"].as_str();
    let period = period.and_then(cluster::duration::Duration::parse);
    let period = period.map_or(0, |all| {
        u64::try_from(all.0).unwrap_or(0).div_ceil(1_000_000_000)
    });
    let by_priority = config["shutdownGracePeriodByPodPriority"].as_array();
    let by_priority = by_priority.into_iter().flatten();
    let by_priority = by_priority.filter_map(|one| one["shutdownGracePeriodSeconds"].as_u64());
    let by_priority = by_priority.fold(0, u64::saturating_add);
    let longest = SHUTDOWN_GRACE_SECONDS.max(period).max(by_priority);
    longest.min(LONGEST)
}

/// Presses the power buttons, waits, and cuts the power of those that are left: after the time that a node needs at most, or on
/// another signal.
fn stop(
    session: &Session,
    mut running: Vec<Running>,
    folder: &Folder,
    state: &mut State,
    grace: u64,
) {
    let step = session.progress.step("power off");
    for machine in &running {
        // One that has ended has no button any more.
        machine.vm.press_power_button().ok();
    }
    state.ending = true;
    // Whoever asks now is not to take them for a cluster that can be used.
    state.ready = false;
    let mut tell = |text: &str| {
        step.reason(&format!(
            "waiting for {text}; another signal cuts the power"
        ));
        text.clone_into(&mut state.waits_for);
        // `down` shows it; the machines end without it too.
        folder.keep(state).ok();
    };
    tell("the machines to power off");
    let ends = Ends {
        grace,
        limit: Duration::from_secs(grace + STOP),
        silent: SILENT,
    };
    let cut = ends.wait(
        &session.interrupt,
        || {
            let left = running.iter_mut().filter_map(|machine| {
                let has_ended = machine.vm.ended().is_ok_and(|status| status.is_some());
                (!has_ended).then(|| machine.member.name.clone())
            });
            left.collect()
        },
        &mut tell,
    );
    if let Some(why) = cut {
        // What pods and etcd had not written yet is lost.
        session.progress.warn(&why);
        state.waits_for = why;
        folder.keep(state).ok();
    }
    step.made(None);
}

/// The end of machines whose power buttons are pressed.
#[derive(Debug)]
struct Ends {
    /// How long the kubelet ends pods, in seconds.
    grace: u64,
    /// How long the machines may take.
    limit: Duration,
    /// After which time it is said which are waited for.
    silent: Duration,
}

impl Ends {
    /// Waits until none is left, and says which are after some seconds; gives the reason why the power of others is cut.
    fn wait(
        &self,
        interrupt: &Interrupt,
        mut left: impl FnMut() -> Vec<String>,
        mut tell: impl FnMut(&str),
    ) -> Option<String> {
        // The first signal is what asks for the power-off, unless a machine's own end did.
        let asked = interrupt.requests().min(1);
        let (begin, mut told) = (Instant::now(), Vec::new());
        loop {
            let names = left();
            if names.is_empty() {
                return None;
            }
            let cut = |why: &str| Some(format!("the power of {} is cut: {why}", names.join(", ")));
            if interrupt.requests() > asked {
                return cut("another signal");
            }
            if begin.elapsed() >= self.limit {
                let limit = self.limit.as_secs();
                return cut(&format!("still running {limit} s after the power button"));
            }
            if begin.elapsed() >= self.silent && told != names {
                tell(&format!(
                    "{} to power off: the kubelet ends pods for up to {} s",
                    names.join(", "),
                    self.grace
                ));
                told = names;
            }
            std::thread::sleep(LOOK_OFF);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::host::cache::Cache;
    use crate::host::progress::{Kind, Progress};

    /// Longer than the kubelet ends pods and systemd its unit, whatever the object says.
    #[test]
    fn the_power_is_cut_later_than_a_node_needs() {
        let seconds = |config: Value| {
            let object = json!({"kubelet": {"config": config}});
            grace(object.as_object().unwrap())
        };
        assert_eq!(grace(&Map::new()), SHUTDOWN_GRACE_SECONDS);
        for (config, expected) in [
            (
                json!({"shutdownGracePeriod": "10s"}),
                SHUTDOWN_GRACE_SECONDS,
            ),
            (json!({"shutdownGracePeriod": "1m30.5s"}), 91),
            (
                json!({"shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": 70},
                    {"priority": 9, "shutdownGracePeriodSeconds": 20}]}),
                90,
            ),
            (
                json!({"shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": u64::MAX}]}),
                LONGEST,
            ),
        ] {
            assert_eq!(seconds(config.clone()), expected, "{config}");
        }
        const { assert!(STOP >= STOP_SECONDS + SYSTEMD_STOP) };
        const { assert!(BEFORE >= QUESTION.as_secs()) };
    }

    #[test]
    fn machines_that_power_off_are_waited_for_and_others_are_cut_with_the_reason() {
        let ends = |limit| Ends {
            grace: 45,
            limit: Duration::from_secs(limit),
            silent: Duration::ZERO,
        };
        let names = || vec!["cp1".to_owned(), "w1".to_owned()];
        let interrupt = Interrupt::default();
        interrupt.request();
        let mut said = Vec::new();
        let mut looks = 0;
        let cut = ends(600).wait(
            &interrupt,
            || {
                looks += 1;
                names().split_off((looks / 3).min(2))
            },
            |text| said.push(text.to_owned()),
        );
        assert_eq!(cut, None);
        let why = "to power off: the kubelet ends pods for up to 45 s";
        assert_eq!(said, [format!("cp1, w1 {why}"), format!("w1 {why}")]);
        let cut = ends(0).wait(&interrupt, names, |_| {}).unwrap();
        assert!(
            cut.starts_with("the power of cp1, w1 is cut: still running 0 s"),
            "{cut}"
        );
        // The second signal.
        interrupt.request();
        let cut = ends(600).wait(&interrupt, names, |_| {}).unwrap();
        assert_eq!(cut, "the power of cp1, w1 is cut: another signal");
        // A machine ended by itself: no signal came before.
        let interrupt = Interrupt::default();
        let cut = ends(600).wait(
            &interrupt,
            || {
                interrupt.request();
                names()
            },
            |_| {},
        );
        assert!(cut.is_some());
    }

    #[test]
    fn a_cluster_that_powers_off_is_not_ready_any_more() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache")).unwrap();
        let session = Session::new(cache, Progress::new(Kind::Quiet));
        let folder = Folder::of(&place.path().join("blue.toml"));
        let _held = folder.hold().unwrap();
        let mut state = State {
            ready: true,
            ..State::default()
        };
        stop(&session, Vec::new(), &folder, &mut state, 0);
        let kept = folder.state().unwrap().unwrap();
        assert!(kept.ending && !kept.ready, "{kept:?}");
        // Without a machine there is no console that an error could name.
        let error = keep_consoles(&[], &folder, anyhow::anyhow!("no QEMU"));
        assert_eq!(format!("{error:#}"), "no QEMU");
    }

    #[test]
    fn ready_nodes_are_found_by_their_condition() {
        let list = r#"{"items": [
            {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"metadata": {"name": "b"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            {"metadata": {"name": "c"}, "status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}}]}"#;
        assert_eq!(ready(list), ["a"]);
        assert!(ready("error: no server").is_empty());
        assert_eq!(
            waits_for(r#"{"waitsFor": "the API server"}"#).as_deref(),
            Some("the API server")
        );
        assert_eq!(waits_for(r#"{"waitsFor": null}"#), None);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = free(port).unwrap_err().to_string();
        assert!(error.contains(&format!("taking port {port}")), "{error}");
        assert_ne!(free(0).unwrap(), 0);
    }
}
