//! From the handoff to a Ready control plane, natively in namespaces: ours and `kubeadm init` in turns, with the same root, programs
//! and container images. Both begin with containerd not started and no image known to it.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
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

/// Measures both in turns.
///
/// # Errors
/// If a node does not become Ready.
pub(crate) fn measure(etcd: Etcd, repeats: usize, table: &mut Table) -> Result<()> {
    let mut lab = Lab::open(etcd.recipe())?;
    let (mut first, mut shown, mut whole, mut second) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut theirs, mut theirs_again) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let mut node = lab.control_plane("ours", 11, OBJECT)?;
        node.start(&lab.hub)?;
        first.push(asked(&lab, &node, FIRST)?.as_secs_f64());
        shown.push(asked(&lab, &node, ADMINISTRATOR)?.as_secs_f64());
        whole.push(node.wait_ready(PATIENCE)?.as_secs_f64());
        node.cut()?;
        node.start(&lab.hub)?;
        second.push(asked(&lab, &node, ADMINISTRATOR)?.as_secs_f64());
        drop(node);
        let (ready, again) = kubeadm(&mut lab, etcd)?;
        theirs.push(ready.as_secs_f64());
        theirs_again.push(again.as_secs_f64());
    }
    let name = etcd.name();
    let most = OF_FIRST * median(&shown);
    let rows = [
        (
            "handoff → node Ready, first start",
            first,
            Some(theirs),
            vec![Goal::Times(2.0), Goal::AtMost(2.9)],
        ),
        (
            "the same by the administrator's kubeconfig, whose role is an object",
            shown,
            None,
            Vec::new(),
        ),
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
    table.rows.extend(rows.map(|(what, ours, peer, goals)| Row {
        group: GROUP,
        what: format!("{name}: {what}"),
        unit: Unit::Seconds,
        ours,
        peer: peer.map(|peer| (PEER, peer)),
        goals,
    }));
    table.notes.push(
        "clusters: kubeadm without its preflight checks and addons; ours applies kube-proxy and CoreDNS too".to_owned(),
    );
    Ok(())
}

/// Asks the API server until the node is Ready, by a report of this start: at a second start that of the first is still there.
/// Gives the time since the handoff.
fn asked(lab: &Lab, node: &Node, kubeconfig: &str) -> Result<Duration> {
    let begun = SystemTime::now() - node.since_handoff();
    let begun = rfc3339(begun.duration_since(UNIX_EPOCH)?.as_secs());
    let file = node.below_var(ETC_UPPER).join(kubeconfig);
    let server = format!("https://{}:6443", node.address());
    let path = format!("/api/v1/nodes/{}", node.hostname());
    let is_ready = || -> Result<bool> {
        let api = Api::new(&fs::read_to_string(&file)?, &server)?;
        loop {
            if is_ready_since(&api.get(&path)?.unwrap_or_default(), &begun) {
                return Ok(true);
            }
            if node.since_handoff() > PATIENCE {
                return Ok(false);
            }
            sleep(ASK_EVERY);
        }
    };
    let wait = || -> Result<Duration> {
        lab.hub.enter()?;
        while !is_ready().unwrap_or_default() {
            ensure!(
                node.since_handoff() < PATIENCE,
                "not Ready:\n{}",
                node.logs()
            );
            sleep(ASK_EVERY);
        }
        Ok(node.since_handoff())
    };
    match std::thread::scope(|scope| scope.spawn(wait).join()) {
        Ok(ready) => ready,
        Err(_) => bail!("the thread that asks panicked"),
    }
}

/// One `kubeadm init` on a new node: the time from its containerd's start to Ready, and the same of the node's second start, where
/// containerd and the kubelet start at once.
fn kubeadm(lab: &mut Lab, etcd: Etcd) -> Result<(Duration, Duration)> {
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
    let ready = asked(lab, &node, FIRST)?;
    node.wait_for("kubeadm", "grep -q '^code' /run/kubeadm.log", PATIENCE)?;
    let said = node.run("cat /run/kubeadm.log")?;
    ensure!(said.contains("\ncode 0\n"), "kubeadm failed:\n{said}");
    node.cut()?;
    node.start(&lab.hub)?;
    node.start_kubelet()?;
    Ok((ready, asked(lab, &node, ADMINISTRATOR)?))
}
