//! The kubelet's container: the one table of mounts that makes both the OCI spec and the mount targets in the image.
//!
//! The container's root file system is read-only, so whatever is mounted must have its target in the image already:
//! the builder makes [`MOUNTS`]' targets and [`LINKS`], the init makes the [`crate::runtime_spec`] of the same table.
//! A comment at each row names its purpose, and what breaks without it. Files of the host that programs replace by
//! rename (`/etc/hosts` and the like) are reached by links through a bound folder: a bound file would go stale.

/// Whether and how mounts cross a bind, as in `mount_namespaces(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// From the host into the container only.
    Slave,
    /// Neither way.
    Private,
}

impl Propagation {
    /// The mount option, for the mount and those below it.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::Shared => "rshared",
            Self::Slave => "rslave",
            Self::Private => "rprivate",
        }
    }
}

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This folder of the host, with the mounts below it.
    Folder(&'static str),
    /// This file of the host.
    File(&'static str),
    /// A new file system of this type with these options.
    New(&'static str, &'static [&'static str]),
}

/// One mount of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    pub source: Source,
    /// Where, inside the container.
    pub target: &'static str,
    /// How mounts cross it.
    pub propagation: Propagation,
    /// Whether the container may not write to it.
    pub read_only: bool,
    /// Whether the container starts without it when the host has no such path.
    pub optional: bool,
}

impl Mount {
    const fn folder(path: &'static str, propagation: Propagation) -> Self {
        Self {
            source: Source::Folder(path),
            target: path,
            propagation,
            read_only: false,
            optional: false,
        }
    }

    const fn at(mut self, target: &'static str) -> Self {
        self.target = target;
        self
    }

    const fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    const fn file(path: &'static str) -> Self {
        Self {
            source: Source::File(path),
            ..Self::folder(path, Propagation::Private).read_only()
        }
    }

    const fn new(
        kind: &'static str,
        target: &'static str,
        options: &'static [&'static str],
    ) -> Self {
        Self {
            source: Source::New(kind, options),
            ..Self::folder(target, Propagation::Private)
        }
    }
}

use Propagation::Slave;

/// The folder that the kubelet and its pods share mounts by; the only one whose mounts go back to the host.
pub const STATE: &str = "/var/lib/kubelet";
/// Where the container sees the host's `/etc`.
pub const HOST_ETC: &str = "/host/etc";

/// Every mount of the kubelet's container, a folder before what is mounted inside it.
pub const MOUNTS: &[Mount] = &[
    // The kubelet sets kernel.panic and vm.overcommit_memory, so it is not masked.
    Mount::new("proc", "/proc", &["nosuid", "noexec", "nodev"]),
    // Block devices that appear later must be seen by volume drivers.
    Mount::folder("/dev", Slave),
    // With pods' control groups below it. Volumes by iSCSI and Fibre Channel have their hosts scanned by a file in /sys/class/scsi_host.
    Mount::folder("/sys", Slave),
    Mount::new("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777"]),
    // containerd's socket, D-Bus for the shutdown inhibitor, the notify socket, resolved's file, xtables.lock.
    Mount::folder("/run", Slave),
    // The kubelet checks and creates hostPath volumes with a type in its own mount namespace: a path that is missing
    // there hangs the pod. Also containerd's images for the file system's statistics, the pods' logs, and CNI's
    // programs.
    Mount::folder("/var", Slave),
    // Secrets, projected and CSI volumes are mounted here by the kubelet and must reach the host.
    Mount::folder(STATE, Propagation::Shared),
    // Client certificates are rotated, static pods and kubeadm's files written.
    Mount::folder("/etc/kubernetes", Slave),
    Mount::folder("/etc", Slave).read_only().at(HOST_ETC),
    // ipvs, rbd and nfs load their modules.
    Mount::folder("/usr/lib/modules", Slave).read_only(),
    // The node's status shows the host's system, not the container's.
    Mount::file("/usr/lib/os-release"),
    // The kubelet trusts the same registries, cloud interfaces and credential plugins as the host.
    Mount::folder("/etc/ssl/certs", Slave)
        .read_only()
        .optional(),
    Mount::folder("/usr/share/ca-certificates", Slave)
        .read_only()
        .optional(),
    // Credential provider plugins of the host.
    Mount::folder("/usr/libexec/kubernetes", Slave)
        .read_only()
        .optional(),
    // NFS clients in the container follow the host's settings where it has any.
    Mount::file("/etc/nfs.conf").optional(),
    Mount::file("/etc/nfsmount.conf").optional(),
];

/// Whether the container has the file of the host at this path, at the same path.
#[must_use]
pub fn has_of_host(path: &str) -> bool {
    MOUNTS.iter().any(|mount| match mount.source {
        Source::Folder(folder) => {
            let below = path.strip_prefix(folder);
            mount.target == folder && below.is_some_and(|rest| rest.starts_with('/'))
        }
        Source::File(file) => mount.target == file && path == file,
        Source::New(..) => false,
    })
}

/// Whether the container reaches the same file of the host by this path, each link on the way followed as it is there. `read_link` gives
/// the target of a link of the host.
///
/// The end of the way alone does not decide: `/usr/libexec/kubernetes/login` may be a link to one in `/etc/alternatives`, which the
/// container does not have, and only that to a file which it has.
#[must_use]
pub fn reaches_on_host(path: &str, read_link: impl Fn(&str) -> Option<String>) -> bool {
    // As in the kernel (path_resolution(7)); more are a circle.
    const LINKS: usize = 40;
    let mut rest: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let (mut done, mut links) = (String::new(), 0);
    while let Some(part) = rest.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                if !has_folder(&done) {
                    return false;
                }
                done.truncate(done.rfind('/').unwrap_or_default());
                continue;
            }
            _ => done = format!("{done}/{part}"),
        }
        let Some(target) = read_link(&done) else {
            continue;
        };
        links += 1;
        let is_var_link = crate::paths::VAR_LINKS
            .iter()
            .any(|(link, _)| *link == done);
        if links > LINKS || !(is_var_link || has_of_host(&done)) {
            return false;
        }
        match target.starts_with('/') {
            true => done.clear(),
            false => done.truncate(done.rfind('/').unwrap_or_default()),
        }
        rest.extend(target.split('/').rev().map(str::to_owned));
    }
    has_of_host(&done)
}

/// Whether the container has a folder at this path of the host: one of the host's, or one in which something is mounted.
fn has_folder(path: &str) -> bool {
    let holds = |target: &str| {
        let rest = target.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    has_of_host(path) || MOUNTS.iter().any(|mount| holds(mount.target))
}

/// Links of the container's image into what is mounted: (link, target). [`crate::paths::VAR_LINKS`] are links there as
/// they are on the host, so that a path means the same on both sides.
pub const LINKS: &[(&str, &str)] = &[
    ("/etc/hosts", "../host/etc/hosts"),
    (crate::paths::HOSTNAME, "../host/etc/hostname"),
    // Without it the node would have a wrong or another node's MachineID.
    ("/etc/machine-id", "../host/etc/machine-id"),
    ("/etc/cni", "../host/etc/cni"),
    // The servers themselves: the stub at 127.0.0.53 is out of reach for pods.
    ("/etc/resolv.conf", "../run/systemd/resolve/resolv.conf"),
];

/// Folders of the host, under `/var` and `/etc`, that must be there before the container starts: (path, mode).
pub const FOLDERS: &[(&str, u32)] = &[
    (STATE, 0o700),
    ("/var/lib/kubelet/volumeplugins", 0o700),
    (POD_LOGS, 0o755),
    ("/var/log/containers", 0o755),
    ("/var/lib/cni", 0o755),
    ("/var/opt/cni/bin", 0o755),
    ("/etc/kubernetes", 0o755),
    (STATIC_PODS, 0o755),
    ("/etc/cni/net.d", 0o755),
];

/// Root file systems of pinned kubelet containers: a folder for each, named by the hexadecimal digest of its image.
pub const PINNED: &str = "/var/lib/slipway/kubelet";
/// The link in [`PINNED`] to the one in use; there is none while the image's own is.
pub const PINNED_CURRENT: &str = "current";
/// The kubelet inside its container.
pub const PROGRAM: &str = "/usr/bin/kubelet";
/// The container's name for crun.
pub const CONTAINER: &str = "kubelet";
/// The folder of crun's records, one for each container.
pub const CRUN_RECORDS: &str = "/run/crun";
/// Its unit.
pub const UNIT: &str = "kubelet.service";
/// The kubelet's configuration; the image has a default that runs without an API server.
pub const CONFIG: &str = "/etc/kubernetes/kubelet.yaml";
/// Where pods have their logs.
pub const POD_LOGS: &str = "/var/log/pods";
/// The kubelet's configuration on a node of a cluster, where kubeadm has it: it takes the place of [`CONFIG`].
pub const JOINED_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// The kubelet's arguments on a node of a cluster, where kubeadm has them (systemd.exec(5), `EnvironmentFile=`).
pub const JOINED_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// The kubelet's configuration of credential provider plugins, which give it credentials of registries. With this file it
/// gets the two arguments for them; the recipe or a node's config brings it.
pub const CREDENTIAL_PROVIDERS: &str = "/etc/kubernetes/credential-providers.yaml";
/// The folder of those plugins, in the verified root: only a recipe brings programs that get credentials.
pub const CREDENTIAL_PROVIDER_PROGRAMS: &str = "/usr/libexec/kubernetes/credential-providers";
/// The kubelet's identity towards an API server; it runs without one when absent.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
/// The credentials with which it requests its identity (TLS bootstrapping).
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// The administrator's kubeconfig on a control plane.
pub const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";
/// The kubeconfig of the first administrator, which works before any role is bound.
pub const FIRST_KUBECONFIG: &str = "/etc/kubernetes/super-admin.conf";
/// Manifests of static pods.
pub const STATIC_PODS: &str = "/etc/kubernetes/manifests";
/// The file of etcd's static pod there.
pub const ETCD_POD: &str = "etcd.yaml";
/// How long the kubelet holds up a shutdown while it ends the pods, unless its configuration says otherwise; in seconds.
pub const SHUTDOWN_GRACE_SECONDS: u64 = 45;
/// How much of it is for critical pods.
pub const SHUTDOWN_CRITICAL_SECONDS: u64 = 30;
/// How long systemd waits for the kubelet's unit to stop before it kills it; in seconds.
pub const STOP_SECONDS: u64 = 60;
/// The unit that knows how long a shutdown may be held up.
pub const LOGIN_UNIT: &str = "systemd-logind.service";
/// The file with its limit where the kubelet's configuration has a longer time than the image's default (logind.conf(5)).
pub const RUN_LOGIN_LIMIT: &str = "/run/systemd/logind.conf.d/60-kubelet.conf";
/// containerd's socket.
pub const RUNTIME_SOCKET: &str = "/run/containerd/containerd.sock";
/// The image of a pod's first container, baked in.
pub const PAUSE_IMAGE: &str = "slipway.local/pause:baked";
/// The image of etcd, baked in.
pub const ETCD_IMAGE: &str = "slipway.local/etcd:baked";
/// The image of kube-proxy, baked in. A DaemonSet that named its version would be without a pod on nodes whose root has another one, in the
/// middle of each update of a cluster.
pub const KUBE_PROXY_IMAGE: &str = "slipway.local/kube-proxy:baked";
/// The image of flannel, baked in, likewise.
pub const FLANNEL_IMAGE: &str = "slipway.local/flannel:baked";
/// The subcommand of [`crate::paths::NODE_PROGRAM`] that refuses to start the kubelet without the proven etcd volume.
pub const GATE_COMMAND: &str = "kubelet-gate";
/// The subcommand that makes folders and writes the bundle before each start.
pub const PREPARE_COMMAND: &str = "kubelet-prepare";
/// The command of `slipway-node` that starts static pods ahead of the kubelet.
pub const AHEAD_COMMAND: &str = "static-pods";
/// The unit that takes the counter off the boot entry, once the kubelet is READY and the static pods run.
pub const BLESS_UNIT: &str = "slipway-bless.service";
/// Its subcommand.
pub const BLESS_COMMAND: &str = "bless";
/// The command for people that examines the container, and its subcommand.
pub const KUBELET_COMMAND: &str = "kubelet";
/// See [`KUBELET_COMMAND`].
pub const LINT_COMMAND: &str = "lint";
/// The unit that brings a node of a cluster up, once the kubelet runs.
pub const CLUSTER_UNIT: &str = "slipway-cluster.service";
/// Its subcommand.
pub const CLUSTER_COMMAND: &str = "cluster-up";
/// The unit that applies the cluster's addons, on control planes.
pub const ADDONS_UNIT: &str = "slipway-addons.service";
/// Its subcommand.
pub const ADDONS_COMMAND: &str = "addons-up";
/// Its exit code where another attempt is of no use.
pub const PERMANENT: u8 = 3;
/// The unit that renews a control plane's certificates.
pub const CERTS_UNIT: &str = "slipway-certs.service";
/// What starts it every day.
pub const CERTS_TIMER: &str = "slipway-certs.timer";
/// Its subcommand.
pub const CERTS_COMMAND: &str = "certs-renew";
/// The unit that approves kubelets' requests for serving certificates, on control planes.
pub const REQUESTS_UNIT: &str = "slipway-requests.service";
/// Its subcommand.
pub const REQUESTS_COMMAND: &str = "csr-approve";
/// The unit that completes the boot's timeline.
pub const TIMELINE_UNIT: &str = "slipway-timeline.service";
/// Its subcommand.
pub const TIMELINE_COMMAND: &str = "timeline";
/// The unit that moves the ends of bootstrap tokens that were made before the clock was set.
pub const CLOCK_UNIT: &str = "slipway-clock.service";
/// What starts it once a time server has answered.
pub const CLOCK_PATH: &str = "slipway-clock.path";
/// What starts it when anything else sets the clock.
pub const CLOCK_TIMER: &str = "slipway-clock.timer";
/// Its subcommand.
pub const CLOCK_COMMAND: &str = "clock-set";
/// The units that the init writes at every boot of a node with a kubelet.
pub const INIT_UNITS: [&str; 8] = [
    UNIT,
    CLUSTER_UNIT,
    ADDONS_UNIT,
    TIMELINE_UNIT,
    BLESS_UNIT,
    CLOCK_UNIT,
    CLOCK_PATH,
    CLOCK_TIMER,
];
/// What the names of all scopes of containers begin with (systemd.unit(5): a drop-in for such a prefix is for each of them).
pub const CONTAINER_SCOPES: &str = "cri-containerd-.scope";
/// The unit of the node-local balancer of the API servers.
pub const BALANCER_UNIT: &str = "slipway-balancer.service";
/// Its subcommand.
pub const BALANCER_COMMAND: &str = "balance";
/// The unit that shortens the election of etcd's only member.
pub const ELECTION_UNIT: &str = "slipway-election.service";
/// Its subcommand.
pub const ELECTION_COMMAND: &str = "election";
/// The unit that keeps the routes to the pods of other nodes.
pub const ROUTES_UNIT: &str = "slipway-routes.service";
/// Its subcommand.
pub const ROUTES_COMMAND: &str = "routes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stands_before_what_is_mounted_inside_it() {
        for (at, mount) in MOUNTS.iter().enumerate() {
            let prefix = format!("{}/", mount.target);
            assert!(
                !MOUNTS[..at].iter().any(|m| m.target.starts_with(&prefix)),
                "{} would hide what is mounted below it",
                mount.target
            );
            assert!(
                !MOUNTS[..at].iter().any(|m| m.target == mount.target),
                "{} is there twice",
                mount.target
            );
        }
    }

    #[test]
    fn links_lead_into_mounts() {
        for (link, target) in LINKS {
            let folder = link.rsplit_once('/').unwrap().0;
            assert_eq!(folder.matches('/').count(), 1, "{link}");
            let absolute = target.strip_prefix("..").unwrap();
            assert!(
                MOUNTS
                    .iter()
                    .any(|m| absolute.starts_with(&format!("{}/", m.target))),
                "{link} leads to {absolute}, which no mount holds"
            );
            assert!(
                !MOUNTS.iter().any(|m| m.target.starts_with(link)),
                "{link} is a link and a mount target"
            );
        }
    }

    #[test]
    fn the_container_sees_the_credential_providers() {
        for path in [CREDENTIAL_PROVIDERS, CREDENTIAL_PROVIDER_PROGRAMS] {
            let seen = MOUNTS
                .iter()
                .any(|mount| path.starts_with(&format!("{}/", mount.target)));
            assert!(seen, "{path}");
        }
    }

    #[test]
    fn the_container_has_files_of_the_host_where_their_folder_is_mounted() {
        for (path, has) in [
            ("/usr/libexec/kubernetes/credential-providers/login", true),
            ("/var/usrlocal/bin/login", true),
            ("/usr/lib/os-release", true),
            ("/usr/bin/login", false),
            ("/usr/libexec/kubernetes-login", false),
            ("/usr/lib/os-release.d", false),
            // At other paths inside, or not at all.
            ("/etc/login", false),
            ("/host/etc/login", false),
            ("/tmp/login", false),
        ] {
            assert_eq!(has_of_host(path), has, "{path}");
        }
    }

    #[test]
    fn every_link_on_the_way_to_a_file_is_in_the_container_too() {
        const LOGIN: &str = "/usr/libexec/kubernetes/credential-providers/login";
        let file = "/usr/libexec/kubernetes/login-v2";
        for (links, reaches) in [
            (&[][..], true),
            (&[(LOGIN, "../login-v2")], true),
            (&[(LOGIN, file)], true),
            (&[(LOGIN, "../../.././libexec//kubernetes/login-v2")], true),
            (&[(LOGIN, "/usr/bin/login")], false),
            // The container lacks the link in the middle.
            (
                &[
                    (LOGIN, "/etc/alternatives/login"),
                    ("/etc/alternatives/login", file),
                ],
                false,
            ),
            (
                &[
                    (LOGIN, "/etc/kubernetes/login"),
                    ("/etc/kubernetes/login", file),
                ],
                true,
            ),
            // A folder on the way up.
            (
                &[(LOGIN, "/usr/share/login/../../libexec/kubernetes/l")],
                false,
            ),
            // Links that the container has too.
            (
                &[
                    (LOGIN, "/usr/local/bin/login"),
                    ("/usr/local", "../var/usrlocal"),
                ],
                true,
            ),
            (
                &[(LOGIN, "/usr/bin/login"), ("/usr/bin", "../var/bin")],
                false,
            ),
            (&[(LOGIN, "login")], false),
        ] {
            let read_link = |path: &str| {
                let mut links = links.iter();
                let found = links.find(|(link, _)| *link == path);
                found.map(|(_, target)| (*target).to_owned())
            };
            assert_eq!(reaches_on_host(LOGIN, read_link), reaches, "{links:?}");
        }
    }

    #[test]
    fn only_the_kubelets_folder_is_shared() {
        let shared: Vec<_> = MOUNTS
            .iter()
            .filter(|m| m.propagation == Propagation::Shared)
            .map(|m| m.target)
            .collect();
        assert_eq!(shared, [STATE]);
    }
}
