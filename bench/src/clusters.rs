//! From the handoff to a Ready control plane, natively in namespaces: ours and `kubeadm init` in turns, with the same root, programs
//! and container images. Both begin with containerd not started and no image known to it.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use api::Api;
use clap::ValueEnum;
use image::paths::ETC_UPPER;
use namespace_tests::lab::{KUBEADM_DOCUMENTS, Lab};
use namespace_tests::node::Node;
use slipway::format::time::rfc3339;

use crate::control_plane::{
    KUBEADM, KUBEADM_FILE, KubeadmNode, NETWORK, NETWORK_FILE, OF_FIRST, PATCH_FILE, PATCH_FOR_35,
    PEER, is_ready_since, kubeadm_config,
};
use crate::import;
use crate::table::{Goal, Row, Table, Unit, median};

const GROUP: &str = "clusters";
const OBJECT: &str = "name = \"bench\"\n[node]\ntaints = []\n";
const PATIENCE: Duration = Duration::from_secs(300);
/// The kubeconfig of a cluster's first moments, below `/etc`: it works as soon as the API server serves.
const FIRST: &str = "kubernetes/super-admin.conf";
/// The administrator's, whose role is an object of the cluster.
const ADMINISTRATOR: &str = "kubernetes/admin.conf";
/// How often the API server is asked: by one connection, since a program for each question would take a processor from the node.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Prints the time at which the kubelet's health check answers, in seconds since 1970, without a program that is started for each look.
const HEALTHZ: &str = r#"exec 9<> <(:)
for i in {1..15000}; do
  if exec 3<>/dev/tcp/127.0.0.1/10248; then
    printf "GET /healthz HTTP/1.0\r\n\r\n" >&3
    read -rt 1 line <&3
    exec 3>&-
    [[ $line != *" 200 "* ]] || { echo $EPOCHREALTIME; exit; }
  fi
  read -rt 0.02 -u 9
done"#;

/// The etcd of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Etcd {
    /// Debian's.
    #[value(name = "3.5")]
    Of35,
    /// That of the release of Kubernetes, compiled from its Go module.
    #[value(name = "3.6")]
    Of36,
}

impl Etcd {
    /// The image of the nodes, a path in the repository.
    const fn recipe(self) -> &'static str {
        match self {
            Self::Of35 => "namespace-tests/node.toml",
            Self::Of36 => "namespace-tests/etcd-3.6.toml",
        }
    }

    /// What the rows of the table are called after.
    const fn name(self) -> &'static str {
        match self {
            Self::Of35 => "etcd 3.5",
            Self::Of36 => "etcd 3.6",
        }
    }
}

/// What the API server is asked, by whose kubeconfig.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// Whether its health checks answer: `/livez`, `/readyz`.
    Healthy(&'static str),
    /// Whether the node is Ready.
    Ready,
    /// The same, by the administrator's.
    Shown,
}

/// All that is asked at a first start; kubeadm's administrator is the one of the first moments.
const ALL: [Question; 4] = [
    Question::Healthy("/livez"),
    Question::Healthy("/readyz"),
    Question::Ready,
    Question::Shown,
];

/// A first start, in seconds from the handoff.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// The kubelet's health check.
    healthz: f64,
    /// The API server's.
    livez: f64,
    readyz: f64,
    /// The node is Ready for whoever may do everything.
    ready: f64,
    /// The same for the administrator.
    shown: f64,
}

/// What a row shows of a start.
type Pick = fn(&Start) -> f64;

/// Measures both in turns.
///
/// # Errors
/// If a node does not become Ready.
pub(crate) fn measure(etcd: Etcd, repeats: usize, table: &mut Table) -> Result<()> {
    let mut lab = Lab::open(etcd.recipe())?;
    let (mut first, mut whole, mut second) = (Vec::new(), Vec::new(), Vec::new());
    let (mut theirs, mut theirs_again) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let mut node = lab.control_plane("ours", 11, OBJECT)?;
        node.start(&lab.hub)?;
        first.push(start(&lab, &node)?);
        whole.push(node.wait_ready(PATIENCE)?.as_secs_f64());
        node.cut()?;
        node.start(&lab.hub)?;
        second.push(second_start(&lab, &node)?);
        drop(node);
        let (ready, again) = kubeadm(&mut lab, etcd)?;
        theirs.push(ready);
        theirs_again.push(again);
    }
    let name = etcd.name();
    let of = |starts: &[Start], time: Pick| starts.iter().map(time).collect::<Vec<_>>();
    let most = OF_FIRST * median(&of(&first, |start| start.shown));
    let both: [(&str, Pick, Vec<Goal>); 5] = [
        (
            "handoff → kubelet's healthz",
            |start| start.healthz,
            Vec::new(),
        ),
        (
            "handoff → API server's livez",
            |start| start.livez,
            Vec::new(),
        ),
        (
            "handoff → API server's readyz",
            |start| start.readyz,
            Vec::new(),
        ),
        (
            "handoff → node Ready, first start",
            |start| start.ready,
            vec![Goal::Times(2.0), Goal::AtMost(2.9)],
        ),
        (
            "the same by the administrator's kubeconfig, whose role is an object",
            |start| start.shown,
            Vec::new(),
        ),
    ];
    let both = both.map(|(what, time, goals)| {
        let (ours, theirs) = (of(&first, time), of(&theirs, time));
        (what, ours, Some(theirs), goals)
    });
    let more = [
        (
            "handoff → every object of the cluster applied",
            whole,
            None,
            Vec::new(),
        ),
        (
            "handoff → node Ready, second start (at most 0.7 of the first by the administrator's)",
            second,
            Some(theirs_again),
            vec![Goal::AtMost(most)],
        ),
    ];
    let rows = both.into_iter().chain(more);
    table.rows.extend(rows.map(|(what, ours, peer, goals)| Row {
        group: GROUP,
        what: format!("{name}: {what}"),
        unit: Unit::Seconds,
        ours,
        peer: peer.map(|peer| (PEER, peer)),
        goals,
    }));
    import::measure(&mut lab, repeats, table)?;
    table.notes.push(
        "clusters: kubeadm without its preflight checks and addons; ours applies kube-proxy and CoreDNS too".to_owned(),
    );
    Ok(())
}

/// Asks all of a node's first start.
fn start(lab: &Lab, node: &Node) -> Result<Start> {
    node.run(&format!(
        "bash -c '{HEALTHZ}' > /run/healthz 2> /dev/null &"
    ))?;
    let [livez, readyz, ready, shown] = asked(lab, node, ALL)?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)? - node.since_handoff();
    let said = node.run_within(
        "until [ -s /run/healthz ]; do sleep 0.1; done; cat /run/healthz",
        PATIENCE,
    )?;
    let answered: f64 = said.trim().parse().with_context(|| said.clone())?;
    Ok(Start {
        healthz: answered - wall.as_secs_f64(),
        livez,
        readyz,
        ready,
        shown,
    })
}

/// The administrator's view of a second start.
fn second_start(lab: &Lab, node: &Node) -> Result<f64> {
    let [shown] = asked(lab, node, [Question::Shown])?;
    Ok(shown)
}

/// Asks the API server until it has answered all questions as they should be, the node's by a report of this start: at a second start
/// that of the first is still there. Gives the seconds since the handoff.
fn asked<const N: usize>(lab: &Lab, node: &Node, questions: [Question; N]) -> Result<[f64; N]> {
    let begun = SystemTime::now() - node.since_handoff();
    let begun = rfc3339(begun.duration_since(UNIX_EPOCH)?.as_secs());
    let server = format!("https://{}:6443", node.address());
    let path = format!("/api/v1/nodes/{}", node.hostname());
    let api = |name: &str| -> Result<Api> {
        let file = node.below_var(ETC_UPPER).join(name);
        Api::new(&fs::read_to_string(&file)?, &server)
    };
    let wait = || -> Result<[f64; N]> {
        lab.hub.enter()?;
        // One connection for each: the files appear at different moments.
        let (mut first, mut administrator) = (None, None);
        let mut reached = [None; N];
        loop {
            first = first.or_else(|| api(FIRST).ok());
            administrator = administrator.or_else(|| api(ADMINISTRATOR).ok());
            for (question, reached) in questions.iter().zip(&mut reached) {
                let by = match question {
                    Question::Shown => &administrator,
                    _ => &first,
                };
                let (None, Some(by)) = (*reached, by) else {
                    continue;
                };
                let is_so = match question {
                    Question::Healthy(path) => by.healthy(path).is_ok(),
                    _ => by
                        .get(&path)
                        .is_ok_and(|node| is_ready_since(&node.unwrap_or_default(), &begun)),
                };
                if is_so {
                    *reached = Some(node.since_handoff().as_secs_f64());
                }
            }
            if reached.iter().all(Option::is_some) {
                return Ok(reached.map(Option::unwrap_or_default));
            }
            ensure!(
                node.since_handoff() < PATIENCE,
                "of {questions:?} these are reached: {reached:?}\n{}",
                node.logs()
            );
            sleep(ASK_EVERY);
        }
    };
    match std::thread::scope(|scope| scope.spawn(wait).join()) {
        Ok(reached) => reached,
        Err(_) => bail!("the thread that asks panicked"),
    }
}

/// One `kubeadm init` on a new node: its times from its containerd's start, and Ready of the node's second start, where containerd and
/// the kubelet start at once.
fn kubeadm(lab: &mut Lab, etcd: Etcd) -> Result<(Start, f64)> {
    let mut node = lab.runtime("kubeadm", 11, true)?;
    let made = KubeadmNode {
        name: PEER,
        address: &node.address(),
        more: "",
        documents: KUBEADM_DOCUMENTS,
    };
    let config = kubeadm_config(&lab.image.manifest, &made)?;
    let patch = match etcd {
        Etcd::Of35 => PATCH_FOR_35,
        Etcd::Of36 => "[]\n",
    };
    for (path, text) in [
        (NETWORK_FILE, NETWORK),
        (KUBEADM_FILE, &config),
        (PATCH_FILE, patch),
    ] {
        node.write_etc(path, text)?;
    }
    node.start(&lab.hub)?;
    node.run(&format!(
        "rm -f /etc/kubernetes/manifests/*
(bash /run/wait-containerd && if {KUBEADM}; then echo code 0; else echo code 1; fi) > /run/kubeadm.log 2>&1 &"
    ))?;
    let written = "for i in {1..1000}; do [ ! -e /var/lib/kubelet/config.yaml ] || exit 0; sleep 0.01; done; exit 1";
    node.run_within(written, PATIENCE)?;
    node.start_kubelet()?;
    let first = start(lab, &node)?;
    node.wait_for("kubeadm", "grep -q '^code' /run/kubeadm.log", PATIENCE)?;
    let said = node.run("cat /run/kubeadm.log")?;
    ensure!(said.contains("\ncode 0\n"), "kubeadm failed:\n{said}");
    node.cut()?;
    node.start(&lab.hub)?;
    node.start_kubelet()?;
    Ok((first, second_start(lab, &node)?))
}
