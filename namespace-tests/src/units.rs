//! The units of a node that its services stand for: what systemd runs on a machine, but for what needs systemd.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use image::kubelet::{
    ADDONS_COMMAND, AHEAD_COMMAND, BALANCER_COMMAND, CERTS_COMMAND, CLUSTER_COMMAND, CONTAINER,
    ELECTION_COMMAND, GATE_COMMAND, PREPARE_COMMAND, REQUESTS_COMMAND, ROUTES_COMMAND,
    RUNTIME_SOCKET,
};
use image::paths::{BUNDLE_FILE, NODE_PROGRAM, RUN_KUBELET_BUNDLE};
use nix::sys::resource::{Resource, getrlimit};

use crate::service::{Restart, Unit};

/// A script of the lab on the node that waits for containerd's socket.
const WAIT: &str = "/run/wait-containerd";
/// One that waits for the kubelet's health check, with which it says READY to systemd.
const WAIT_KUBELET: &str = "/run/wait-kubelet";

/// Shell commands that write the scripts of these units.
pub(crate) fn scripts() -> String {
    format!(
        "echo 'for i in {{1..1000}}; do [ ! -S {RUNTIME_SOCKET} ] || exit 0; sleep 0.02; done; exit 1' > {WAIT}
echo 'for i in {{1..3000}}; do 2>/dev/null exec 3<>/dev/tcp/127.0.0.1/10248 && exit 0; sleep 0.02; done; exit 1' > {WAIT_KUBELET}"
    )
}

/// containerd's.
pub(crate) fn containerd() -> Unit {
    Unit {
        name: "containerd",
        before: Vec::new(),
        start: "/usr/bin/containerd".to_owned(),
        after: None,
        restart: Restart::Always(Duration::from_secs(5)),
    }
}

/// The kubelet's: its gate, its preparation, its container. containerd's socket is waited for, as systemd waits for
/// containerd's notification.
///
/// # Errors
/// If this host's limits cannot be read.
pub(crate) fn kubelet() -> Result<Unit> {
    // A host that is itself a container may have neither the limit of open files nor the capability to raise it.
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).context("reading a limit")?;
    let files = files.min(1_048_576);
    let lacks = match has_resource_capability()? {
        true => "",
        false => "-e /CAP_SYS_RESOURCE/d",
    };
    Ok(Unit {
        name: "kubelet",
        before: vec![
            format!("/bin/bash {WAIT}"),
            format!("{NODE_PROGRAM} {GATE_COMMAND}"),
            format!("{NODE_PROGRAM} {PREPARE_COMMAND}"),
            format!("-{NODE_PROGRAM} {AHEAD_COMMAND}"),
            format!("/bin/sed -i -e s/1048576/{files}/ {lacks} {RUN_KUBELET_BUNDLE}/{BUNDLE_FILE}"),
            format!("-/usr/bin/crun delete --force {CONTAINER}"),
        ],
        start: format!(
            "/usr/bin/crun --cgroup-manager=disabled run --bundle {RUN_KUBELET_BUNDLE} {CONTAINER}"
        ),
        after: None,
        restart: Restart::Always(Duration::from_secs(2)),
    })
}

/// The bring-up's, once the kubelet serves.
pub(crate) fn cluster() -> Unit {
    Unit {
        before: vec![format!("/bin/bash {WAIT_KUBELET}")],
        ..own(
            "cluster",
            CLUSTER_COMMAND,
            Restart::OnFailure(Duration::from_secs(5)),
        )
    }
}

/// The load balancer's.
pub(crate) fn balancer() -> Unit {
    let second = Restart::OnFailure(Duration::from_secs(1));
    own("balancer", BALANCER_COMMAND, second)
}

/// The election's.
pub(crate) fn election() -> Unit {
    let second = Restart::OnFailure(Duration::from_secs(1));
    own("election", ELECTION_COMMAND, second)
}

/// Those that keep a cluster as it should be: addons and timers.
pub(crate) fn upkeep() -> [Unit; 4] {
    let half_a_minute = Duration::from_secs(30);
    let daily = Restart::Every(Duration::from_secs(24 * 3600));
    [
        own("addons", ADDONS_COMMAND, Restart::OnFailure(half_a_minute)),
        own(
            "routes",
            ROUTES_COMMAND,
            Restart::OnFailure(Duration::from_secs(5)),
        ),
        own(
            "requests",
            REQUESTS_COMMAND,
            Restart::OnFailure(Duration::from_secs(5)),
        ),
        own("certs", CERTS_COMMAND, daily),
    ]
}

/// A unit that runs a command of `slipway-node`.
fn own(name: &'static str, command: &str, restart: Restart) -> Unit {
    Unit {
        name,
        before: Vec::new(),
        start: format!("{NODE_PROGRAM} {command}"),
        after: None,
        restart,
    }
}

/// Whether this process has CAP_SYS_RESOURCE (capabilities(7)), number 24.
fn has_resource_capability() -> Result<bool> {
    let text = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let all = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let all = all.context("finding the capabilities in /proc/self/status")?;
    Ok(u64::from_str_radix(all.trim(), 16)? & (1 << 24) != 0)
}
