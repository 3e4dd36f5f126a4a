//! The files that Slipway itself writes into the root, as far as they follow from the recipe alone: configuration of containerd
//! and the kubelet, etcd's static pod, `slipway-node`, and the units that run its commands.
//!
//! The build lays them over the packages, and the check of a recipe refuses files at their paths: both ask [`entries`].

mod instead;
mod iscsi;

pub(crate) use instead::{instead, refusal};

use image::kubelet::{
    ADMIN_KUBECONFIG, BALANCER_COMMAND, BALANCER_UNIT, CERTS_COMMAND, CERTS_TIMER, CERTS_UNIT,
    CLUSTER_UNIT, CONFIG, CONTAINER_SCOPES, CREDENTIAL_PROVIDER_PROGRAMS, ELECTION_COMMAND,
    ELECTION_UNIT, ETCD_IMAGE, ETCD_POD, FOLDERS, INIT_UNITS, KUBECONFIG, PAUSE_IMAGE,
    REQUESTS_COMMAND, REQUESTS_UNIT, ROUTES_COMMAND, ROUTES_UNIT, RUN_LOGIN_LIMIT, RUNTIME_SOCKET,
    SHUTDOWN_CRITICAL_SECONDS, SHUTDOWN_GRACE_SECONDS, STATIC_PODS, UNIT,
};
use image::paths::{
    BLESS_BOOT_UNIT, CLUSTER, CONSOLE_COMMAND, CONSOLE_UNIT, ETCD, INIT, METADATA_COMMAND,
    METADATA_UNIT, NODE_PROGRAM, RESET_COMMAND, RESET_SCRIPT, SLIPWAY, VAR_LINKS,
};

use crate::layer::Entry;

/// containerd's configuration.
pub const CONTAINERD: &str = "/etc/containerd/config.toml";
/// The folder of containerd's further configuration, which the recipe and the config bring.
pub const CONTAINERD_DROP_INS: &str = "/etc/containerd/conf.d";
/// The folder of containerd's registries (hosts.toml(5) in a folder for each), which the recipe and the config bring.
pub const CONTAINERD_REGISTRIES: &str = "/etc/containerd/certs.d";
/// The image's `os-release`.
pub const OS_RELEASE: &str = "/usr/lib/os-release";
/// The recipe's presets: the name sorts before every package's (systemd.preset(5)).
pub const PRESET: &str = "/usr/lib/systemd/system-preset/00-slipway.preset";
/// The list of what packages have put into `/var`.
pub const PACKAGES_SEED: &str = crate::layer::merge::PACKAGES_SEED;
/// The mark by which systemd knows that `/etc` is up to date with `/usr`.
pub const UPDATED: &str = "/etc/.updated";
/// The table of mounts where old programs look for it.
pub const MTAB: &str = "/etc/mtab";

/// What the build writes without a layer.
const FIXED: &[&str] = &[PRESET, UPDATED, MTAB];
/// Units below `/usr`.
const UNITS: &str = "/usr/lib/systemd/system";

/// What decides which files the node has.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Whether it has a kubelet.
    pub kubernetes: bool,
    /// Whether it has the image of etcd and its pod.
    pub etcd: bool,
    /// Whether it has an iSCSI daemon.
    pub iscsi: bool,
}

/// The contents that are made elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents<'a> {
    /// `slipway-node`.
    pub program: &'a [u8],
    /// The text of [`OS_RELEASE`].
    pub os_release: &'a str,
}

/// The paths that no layer shows: what the build writes beside them, what the init executes, its units, which are in `/run`, and
/// the links into `/var`.
#[must_use]
pub fn fixed(features: Features) -> Vec<String> {
    let links = VAR_LINKS.iter().map(|(link, _)| (*link).to_owned());
    let units = INIT_UNITS.iter().filter(|_| features.kubernetes);
    let units = units.copied().chain([BLESS_BOOT_UNIT]);
    let units = units.map(|unit| format!("{UNITS}/{unit}"));
    let fixed = FIXED.iter().map(|path| (*path).to_owned());
    let init = INIT.to_string_lossy().into_owned();
    links.chain(units).chain(fixed).chain([init]).collect()
}

/// The files and folders, in no order.
#[must_use]
pub fn entries(features: Features, contents: Contents<'_>) -> Vec<Entry> {
    let mut entries = vec![
        Entry::file(OS_RELEASE, 0o644, contents.os_release),
        Entry::directory(SLIPWAY, 0o755),
        Entry::file(NODE_PROGRAM, 0o755, contents.program),
        // For people: `slipway-node status`.
        Entry::symlink("/usr/bin/slipway-node", NODE_PROGRAM),
        Entry::directory("/usr/lib/sysctl.d", 0o755),
        Entry::file(
            "/usr/lib/sysctl.d/50-slipway.conf",
            0o644,
            include_str!("node_files/sysctl.conf"),
        ),
        Entry::directory("/usr/lib/systemd/resolved.conf.d", 0o755),
        Entry::file(
            "/usr/lib/systemd/resolved.conf.d/50-slipway.conf",
            0o644,
            include_str!("node_files/resolved.conf"),
        ),
        // It would mount the boot loader's partition at /boot, writable, whenever somebody looks there. The init mounts all
        // that the image has; `slipway-node` mounts that partition where nobody sees it, while it needs it.
        Entry::directory("/usr/lib/systemd/system-generators", 0o755),
        Entry::symlink(
            "/usr/lib/systemd/system-generators/systemd-gpt-auto-generator",
            "/dev/null",
        ),
        Entry::directory("/usr/lib/systemd/system-shutdown", 0o755),
        Entry::file(
            RESET_SCRIPT,
            0o755,
            format!("#!{NODE_PROGRAM} {RESET_COMMAND}\n"),
        ),
        // Here for each recipe, and enabled by those that want it.
        Entry::file(format!("{UNITS}/{CONSOLE_UNIT}"), 0o644, console()),
        // Started by units of a config that require it, as those of Cluster API's templates do.
        Entry::file(format!("{UNITS}/{METADATA_UNIT}"), 0o644, metadata()),
    ];
    if features.kubernetes {
        let etc = FOLDERS.iter().filter(|(path, _)| path.starts_with("/etc/"));
        entries.extend(etc.map(|(path, mode)| Entry::directory(*path, *mode)));
        entries.extend([
            // kubeadm's controller-manager mounts the folder below by a hostPath, which it cannot create on a read-only
            // root.
            Entry::directory("/usr/libexec/kubernetes", 0o755),
            Entry::directory(CREDENTIAL_PROVIDER_PROGRAMS, 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins", 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins/volume", 0o755),
            Entry::directory("/usr/libexec/kubernetes/kubelet-plugins/volume/exec", 0o755),
            Entry::directory("/etc/cni", 0o755),
            Entry::directory("/etc/containerd", 0o755),
            Entry::file(CONTAINERD, 0o644, containerd()),
            Entry::directory(format!("{UNITS}/containerd.service.d"), 0o755),
            Entry::file(
                format!("{UNITS}/containerd.service.d/50-slipway.conf"),
                0o644,
                include_str!("node_files/containerd.conf"),
            ),
            Entry::file(
                format!("{UNITS}/podruntime.slice"),
                0o644,
                include_str!("node_files/podruntime.slice"),
            ),
            Entry::file(CONFIG, 0o644, kubelet()),
            Entry::directory(format!("{UNITS}/timers.target.wants"), 0o755),
        ]);
        entries.extend(shutdown());
        entries.extend(timed());
        entries.extend(enabled());
        if features.etcd {
            let pod = format!("{STATIC_PODS}/{ETCD_POD}");
            entries.push(Entry::file(pod, 0o600, etcd_pod()));
        }
    }
    if features.iscsi {
        entries.extend(iscsi::entries());
    }
    entries
}

/// The units of the balancer of API servers, of etcd's election, of the pods' routes and of kubelets' requests, which are enabled on each
/// node.
fn enabled() -> Vec<Entry> {
    let wants = format!("{UNITS}/multi-user.target.wants");
    let units = [
        (BALANCER_UNIT, balancer()),
        (ELECTION_UNIT, election()),
        (ROUTES_UNIT, routes()),
        (REQUESTS_UNIT, requests()),
    ];
    let files = units.into_iter().flat_map(|(name, text)| {
        let unit = format!("{UNITS}/{name}");
        [
            Entry::file(unit, 0o644, text),
            Entry::symlink(format!("{wants}/{name}"), format!("../{name}")),
        ]
    });
    [Entry::directory(wants.as_str(), 0o755)]
        .into_iter()
        .chain(files)
        .collect()
}

/// The unit that a timer starts again and again, and the timer.
fn timed() -> Vec<Entry> {
    let units = [
        (
            CERTS_TIMER,
            certs(include_str!("node_files/slipway-certs.timer")),
        ),
        (
            CERTS_UNIT,
            certs(include_str!("node_files/slipway-certs.service")),
        ),
    ];
    let files = units.map(|(name, text)| Entry::file(format!("{UNITS}/{name}"), 0o644, text));
    let link = format!("{UNITS}/timers.target.wants/{CERTS_TIMER}");
    let link = Entry::symlink(link, format!("../{CERTS_TIMER}"));
    files.into_iter().chain([link]).collect()
}

/// The unit of the page on the consoles.
fn console() -> String {
    include_str!("node_files/slipway-console.service")
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", CONSOLE_COMMAND)
}

/// The unit of the metadata by other names.
fn metadata() -> String {
    include_str!("node_files/coreos-metadata.service")
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", METADATA_COMMAND)
}

/// containerd 1.7's configuration: crun as the runtime, systemd's control groups, the baked pause image.
#[must_use]
pub fn containerd() -> String {
    include_str!("node_files/containerd.toml")
        .replace("@PAUSE@", PAUSE_IMAGE)
        .replace("@DROP_INS@", CONTAINERD_DROP_INS)
        .replace("@REGISTRIES@", CONTAINERD_REGISTRIES)
}

/// The kubelet's configuration until the config replaces it: no API server, no access to the kubelet's API.
fn kubelet() -> String {
    include_str!("node_files/kubelet.yaml")
        .replace("@SOCKET@", RUNTIME_SOCKET)
        .replace("@STATIC_PODS@", STATIC_PODS)
        .replace("@UNIT@", UNIT)
        .replace("@GRACE@", &SHUTDOWN_GRACE_SECONDS.to_string())
        .replace("@CRITICAL@", &SHUTDOWN_CRITICAL_SECONDS.to_string())
}

/// How long a shutdown waits for pods, by either way.
fn shutdown() -> [Entry; 4] {
    let scopes_folder = format!("{UNITS}/{CONTAINER_SCOPES}.d");
    let scopes_file = format!("{scopes_folder}/50-slipway.conf");
    [
        Entry::directory(scopes_folder, 0o755),
        Entry::file(scopes_file, 0o644, scopes()),
        Entry::directory("/usr/lib/systemd/logind.conf.d", 0o755),
        Entry::file(
            "/usr/lib/systemd/logind.conf.d/50-slipway.conf",
            0o644,
            logind(),
        ),
    ]
}

/// How long systemd waits for a container that it stops itself.
fn scopes() -> String {
    include_str!("node_files/scopes.conf")
        .replace("@GRACE@", &SHUTDOWN_CRITICAL_SECONDS.to_string())
}

/// How long logind lets the kubelet hold up a shutdown.
fn logind() -> String {
    include_str!("node_files/logind.conf")
        .replace("@LIMIT@", RUN_LOGIN_LIMIT)
        .replace("@GRACE@", &SHUTDOWN_GRACE_SECONDS.to_string())
}

/// The unit of the routes to other nodes' pods.
fn routes() -> String {
    include_str!("node_files/slipway-routes.service")
        .replace("@CLUSTER@", CLUSTER)
        .replace("@KUBECONFIG@", KUBECONFIG)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", ROUTES_COMMAND)
}

/// The unit of the balancer of the API servers.
fn balancer() -> String {
    include_str!("node_files/slipway-balancer.service")
        .replace("@CLUSTER@", CLUSTER)
        .replace("@CLUSTER_UNIT@", CLUSTER_UNIT)
        .replace("@UNIT@", UNIT)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", BALANCER_COMMAND)
}

/// The unit of etcd's election.
fn election() -> String {
    include_str!("node_files/slipway-election.service")
        .replace("@CLUSTER@", CLUSTER)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", ELECTION_COMMAND)
}

/// A unit of the renewal of certificates.
fn certs(text: &str) -> String {
    text.replace("@CLUSTER@", CLUSTER)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", CERTS_COMMAND)
}

/// The unit of the approval of requests.
fn requests() -> String {
    include_str!("node_files/slipway-requests.service")
        .replace("@CLUSTER@", CLUSTER)
        .replace("@KUBECONFIG@", ADMIN_KUBECONFIG)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@COMMAND@", REQUESTS_COMMAND)
}

/// The pod of a single-member etcd, reachable from this machine only.
fn etcd_pod() -> String {
    include_str!("node_files/etcd.yaml")
        .replace("@IMAGE@", ETCD_IMAGE)
        .replace("@DATA@", ETCD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left() {
        let console = console().replace("@system-service", "");
        for text in [containerd(), kubelet(), etcd_pod(), logind(), console] {
            assert!(!text.contains('@'), "{text}");
        }
        let units = [
            routes(),
            balancer(),
            certs(include_str!("node_files/slipway-certs.service")),
            requests(),
            metadata(),
        ];
        for unit in units.map(|text| text.replace("@system-service", "")) {
            assert!(!unit.contains('@'), "{unit}");
        }
        toml::from_str::<toml::Table>(&containerd()).unwrap();
    }

    #[test]
    fn logind_waits_as_long_as_the_kubelet_ends_pods() {
        let limit = logind();
        let limit = limit
            .lines()
            .find_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
        let limit: u64 = limit.unwrap().parse().unwrap();
        let text = kubelet();
        let seconds = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field));
            let found = line.and_then(|rest| rest.strip_prefix(": ")?.strip_suffix('s'));
            found.unwrap().parse::<u64>().unwrap()
        };
        assert!(limit >= seconds("shutdownGracePeriod"));
        let critical = seconds("shutdownGracePeriodCriticalPods");
        assert!(seconds("shutdownGracePeriod") > critical);
        assert!(scopes().ends_with(&format!("[Scope]\nTimeoutStopSec={critical}s\n")));
    }
}
