//! The power of a node is cut at each step that its journal records, before the record and behind it.
//!
//! The steps are those of a whole run, so that a new one is cut too. A node that is cut has one life: each start is cut at the first
//! record that it writes, in turns before it and behind it, until it becomes Ready.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use image::paths::ETC_UPPER;
use namespace_tests::journal_watch::{Held, JournalWatch, Side};
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;
use serde_json::Value;

use crate::control_plane::{OBJECT, PODS, READY, identity};
use crate::join::{Ticket, ticket};

/// The journal, and its folder.
const JOURNAL: &str = "/var/lib/slipway/cluster.json";
const FOLDER: &str = "/var/lib/slipway";
/// How long a look at the writes of the journal waits.
const LOOK: Duration = Duration::from_millis(20);
/// Digits of a certificate key, so that the bring-up uploads the keys too.
const KEY: &str = "9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f";
/// All pods of the cluster itself are Ready.
const WHOLE: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system wait --for=condition=Ready pod --all --timeout=10s";
/// When the bootstrap token of the object ends.
const EXPIRY: &str = "-n kube-system get secret bootstrap-token-abcdef -o jsonpath={.data.expiration} --request-timeout=2s";

/// A first control plane: one authority, one member of etcd, one cluster, and a token that is valid no longer than it was given.
pub(crate) fn a_first_bring_up_goes_on_from_each_journalled_step(lab: &mut Lab) -> Result<()> {
    let object = format!("certificate-key = \"{KEY}\"\n{OBJECT}");
    let mut whole = lab.control_plane("cp1", 11, &object)?;
    let steps = run_whole(&mut whole, lab)?;
    drop(whole);
    for step in ["authority", "tokens", "applied", "marked"] {
        ensure!(has(&steps, step), "the steps {steps:?} have no {step}");
    }
    let mut node = lab.control_plane("cp1", 11, &object)?;
    let life = Life::lead(&mut node, lab, steps.len())?;
    life.has_recorded(&steps)?;
    ensure!(
        life.cluster == Some(identity(&node)?),
        "the cluster is another one than at first, {:?}",
        life.cluster
    );
    ensure!(
        life.expiry == Some(node.kubectl(EXPIRY)?),
        "the token is valid for another time than at first"
    );
    votes(&node, 1)?;
    node.wait_for("all pods", WHOLE, PODS)?;
    // What the bring-up uploaded opens: a control plane joins by it.
    let command = node.run("KUBECONFIG=/etc/kubernetes/admin.conf kubeadm token create --print-join-command | tail -n 1")?;
    let words: Vec<&str> = command.split_whitespace().collect();
    let [
        "kubeadm",
        "join",
        endpoint,
        "--token",
        token,
        "--discovery-token-ca-cert-hash",
        pin,
    ] = words[..]
    else {
        bail!("kubeadm prints {command}");
    };
    let opened = Ticket {
        endpoint: endpoint.to_owned(),
        token: token.to_owned(),
        pin: pin.to_owned(),
        key: KEY.to_owned(),
    };
    let mut second = lab.control_plane("cp2", 12, &opened.object("lab", true))?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    votes(&node, 2)
}

/// A worker, and a further control plane, whose member of etcd begins as one that does not vote.
pub(crate) fn joins_go_on_from_each_journalled_step(lab: &mut Lab) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let before = identity(&first)?;
    let ticket = ticket(&first)?;
    let mut whole = lab.worker("w1", 21, &ticket.object("lab", false))?;
    let steps = run_whole(&mut whole, lab)?;
    drop(whole);
    let mut worker = lab.worker("w2", 22, &ticket.object("lab", false))?;
    Life::lead(&mut worker, lab, steps.len())?.has_recorded(&steps)?;

    let mut whole = lab.control_plane("cp2", 12, &ticket.object("lab", true))?;
    let steps = run_whole(&mut whole, lab)?;
    for step in ["member", "member.promoted", "marked"] {
        ensure!(has(&steps, step), "the steps {steps:?} have no {step}");
    }
    let mut third = lab.control_plane("cp3", 13, &ticket.object("lab", true))?;
    Life::lead(&mut third, lab, steps.len())?.has_recorded(&steps)?;
    votes(&first, 3)?;
    for node in [&first, &third] {
        ensure!(identity(node)? == before, "it is another cluster");
    }
    // The worker that was never cut is off.
    first.kubectl("delete node w1")?;
    first.wait_for("all pods", WHOLE, PODS).map(drop)
}

/// The records of a run that nothing cuts.
fn run_whole(node: &mut Node, lab: &Lab) -> Result<Vec<String>> {
    let mut watch = JournalWatch::start(&node.below_var(FOLDER))?;
    let mut steps = Vec::new();
    let mut last = Value::Null;
    node.start(&lab.hub)?;
    while let Some(held) = next(node, &mut watch)? {
        if held.side == Side::Behind {
            steps.push(record(&mut last, node)?);
        }
        held.release()?;
    }
    ensure!(!steps.is_empty(), "the journal has no records");
    Ok(steps)
}

/// The next write of the journal; none once the node is Ready.
fn next(node: &Node, watch: &mut JournalWatch) -> Result<Option<Held>> {
    let until = Instant::now() + READY;
    loop {
        if let Some(held) = watch.next(LOOK)? {
            return Ok(Some(held));
        }
        if node.is_ready() {
            return Ok(None);
        }
        if Instant::now() >= until {
            // With what it waits for.
            node.wait_ready(Duration::ZERO)?;
        }
    }
}

/// What the journal has that it had not: the names of its fields.
fn record(last: &mut Value, node: &Node) -> Result<String> {
    let text = fs::read_to_string(node.below_var(JOURNAL)).context("reading the journal")?;
    let now: Value = serde_json::from_str(&text).context("reading the journal")?;
    let member = |of: &Value| {
        let mut member = of["member"].clone();
        let promoted = member
            .as_object_mut()
            .and_then(|all| all.remove("promoted"));
        (member, promoted == Some(true.into()))
    };
    let mut changed = Vec::new();
    for (name, value) in now.as_object().into_iter().flatten() {
        let (was, is) = (member(last), member(&now));
        match name.as_str() {
            "member" if was.0 == is.0 && was.1 != is.1 => changed.push("member.promoted"),
            // Present from the beginning, with a value that says that it is not done.
            _ if *value == Value::Bool(false) => {}
            _ if last[name] != *value => changed.push(name),
            _ => {}
        }
    }
    ensure!(
        !changed.is_empty(),
        "a record says what the one before it said"
    );
    let name = changed.join("+");
    *last = now;
    Ok(name)
}

fn has(steps: &[String], name: &str) -> bool {
    steps
        .iter()
        .any(|step| step.split('+').any(|one| one == name))
}

/// What a node has shown between its cuts.
#[derive(Default)]
struct Life {
    /// What the journal recorded, and how often a cut came before its next record.
    recorded: Vec<String>,
    lost: usize,
    /// Keys and certificates, once they are written.
    keys: BTreeMap<PathBuf, Vec<u8>>,
    /// The cluster, once its API server answers.
    cluster: Option<String>,
    /// The end of the token, once there is one.
    expiry: Option<String>,
}

impl Life {
    /// Cuts the power of a node before and behind each record of so many steps, and lets it become Ready. One that is cut more often
    /// makes no progress.
    fn lead(node: &mut Node, lab: &Lab, steps: usize) -> Result<Self> {
        let mut life = Self::default();
        let mut last = Value::Null;
        for number in 0..=2 * steps {
            let side = if number % 2 == 0 {
                Side::Before
            } else {
                Side::Behind
            };
            let mut watch = JournalWatch::start(&node.below_var(FOLDER))?;
            node.start(&lab.hub)?;
            let met = loop {
                match next(node, &mut watch)? {
                    Some(held) if held.side != side => held.release()?,
                    met => break met,
                }
            };
            let Some(held) = met else {
                life.see(node)?;
                return Ok(life);
            };
            match side {
                Side::Before => life.lost += 1,
                Side::Behind => life.recorded.push(record(&mut last, node)?),
            }
            life.see(node)
                .with_context(|| format!("{side:?} {} records", life.recorded.len()))?;
            node.cut()?;
            drop((held, watch));
        }
        bail!("{steps} steps, and the node recorded {:?}", life.recorded)
    }

    /// Each step was cut before its record and behind it, and recorded once.
    fn has_recorded(&self, steps: &[String]) -> Result<()> {
        ensure!(
            self.recorded == steps && self.lost == steps.len(),
            "a whole run records {steps:?}; with cuts it was {:?}, after {} cuts before a record",
            self.recorded,
            self.lost
        );
        Ok(())
    }

    /// What was there stays as it was.
    fn see(&mut self, node: &Node) -> Result<()> {
        let folder = node.below_var(ETC_UPPER).join("kubernetes/pki");
        let mut keys = BTreeMap::new();
        read_below(&folder, &mut keys)?;
        for (path, text) in &self.keys {
            ensure!(
                keys.get(path) == Some(text),
                "{} is another one than before the cut",
                path.display()
            );
        }
        self.keys = keys;
        let uid = node
            .kubectl("get namespace kube-system -o jsonpath={.metadata.uid} --request-timeout=2s");
        same(&mut self.cluster, uid.ok(), "the cluster")?;
        same(
            &mut self.expiry,
            node.kubectl(EXPIRY).ok(),
            "the token's end",
        )
    }
}

/// Keeps what is seen first, and compares what is seen later with it.
fn same(first: &mut Option<String>, seen: Option<String>, what: &str) -> Result<()> {
    match (&first, seen) {
        (Some(first), Some(seen)) => {
            ensure!(*first == seen, "{what} is {seen}, and was {first}");
        }
        (None, seen) => *first = seen,
        _ => {}
    }
    Ok(())
}

/// The files below a folder that may not exist yet, but for those of interrupted writes.
fn read_below(folder: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let about = || format!("reading {}", folder.display());
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(about)? {
        let path = entry.with_context(about)?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() {
            read_below(&path, into)?;
        } else if !hidden {
            let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            into.insert(path, text);
        }
    }
    Ok(())
}

/// etcd has so many members, and all of them vote.
fn votes(on: &Node, count: usize) -> Result<()> {
    let members = on.run("slipway-node etcd")?;
    let votes = members.lines().filter(|line| line.contains("  votes  "));
    ensure!(
        votes.count() == count && members.lines().count() == count,
        "etcd has the members\n{members}"
    );
    Ok(())
}
