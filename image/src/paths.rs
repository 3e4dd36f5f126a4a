//! Every path that the builder writes and the node reads, or that two parts of the node share.
//! Paths of the image are absolute inside the root; nothing here is a path of the building host.

/// The manifest inside the initramfs.
pub const INITRD_MANIFEST: &str = "/etc/slipway/manifest.json";
/// The config that the recipe bakes in, inside the initramfs.
pub const INITRD_CONFIG: &str = "/etc/slipway/base.ign";
/// Kernel modules inside the initramfs; below it a folder per release, with the index of [`INITRD_MODULES_INDEX`].
pub const INITRD_MODULES: &str = "/lib/modules";
/// File in a release's module folder: which modules there are, their dependencies and aliases (our own JSON form).
pub const INITRD_MODULES_INDEX: &str = "slipway-modules.json";

/// Where the init assembles the root before the handoff.
pub const SYSROOT: &str = "/sysroot";

/// Node settings, written by the config.
pub const NODE_SETTINGS: &str = "/etc/slipway/node.toml";
/// The cluster object of a node, written by the config or baked in by the recipe. Without it the kubelet runs alone.
pub const CLUSTER: &str = "/etc/slipway/cluster.toml";
/// Addons of the image, a folder of manifests each, in the verified root. The recipe brings them.
pub const ADDONS: &str = "/usr/lib/slipway/addons";
/// Addons of the config; one hides that of the image with the same name.
pub const CONFIG_ADDONS: &str = "/etc/slipway/addons";
/// Files for the running node: manifest, report, the kubelet's bundle.
pub const RUN: &str = "/run/slipway";
/// The manifest as the running node sees it.
pub const RUN_MANIFEST: &str = "/run/slipway/manifest.json";
/// The kubelet's OCI bundle, made before each of its starts.
pub const RUN_KUBELET_BUNDLE: &str = "/run/slipway/kubelet";
/// What became of the pinned container of the kubelet on this boot (JSON).
pub const RUN_PINNED_KUBELET: &str = "/run/slipway/pinned-kubelet.json";
/// The file of a bundle that the runtime reads (OCI runtime specification, bundle.md).
pub const BUNDLE_FILE: &str = "config.json";
/// The timeline of this boot as JSON lines.
pub const RUN_TIMELINE: &str = "/run/slipway/timeline.jsonl";
/// Where the init mounts an etcd disk to examine it, before it is known to be this node's.
pub const RUN_ETCD_LOOK: &str = "/run/slipway/etcd-look";
/// Where the loader's partition is mounted while its boot entry is blessed.
pub const RUN_ESP: &str = "/run/slipway/esp";
/// The name of the boot entry once it is blessed on this boot: its counter in the loader's variables is that of the start.
pub const RUN_BLESSED: &str = "/run/slipway/blessed";
/// Files of a config that do not fit into memory, until they are at their paths: only on a first boot.
pub const SPOOL: &str = "/var/lib/slipway/spool";
/// Keys of encrypted volumes while programs of the root need them.
pub const RUN_KEYS: &str = "/run/slipway/keys";
/// The resolver's servers: a file in the initramfs, a link in the root.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where that link leads.
pub const RUN_RESOLVER: &str = "/run/systemd/resolve/stub-resolv.conf";
/// The conditions on the etcd mount under which the kubelet may start (JSON, [`crate::node::EtcdGate`]).
pub const RUN_ETCD_GATE: &str = "/run/slipway/etcd-gate.json";
/// What the bring-up of the cluster waits for: one line, as long as it waits.
pub const RUN_CLUSTER: &str = "/run/slipway/cluster";
/// The steps of the bring-up that have ended on this boot (JSON lines, [`crate::timeline::Span`]).
pub const RUN_CLUSTER_STEPS: &str = "/run/slipway/cluster-steps.jsonl";
/// An empty file: the API server of this control plane has answered on this boot.
pub const RUN_API_SERVER: &str = "/run/slipway/api-server";
/// Locked while `slipway-node` decides on keys, certificates and static pods, and writes them.
pub const RUN_NODE_LOCK: &str = "/run/slipway/keys.lock";
/// The uid of the Node that was marked as a control plane.
pub const NODE_MARKED: &str = "/var/lib/slipway/marked";
/// What was given its end by a clock that was not synchronised (JSON): it moves once the clock is set. There is no file where nothing was.
pub const UNSET_CLOCK: &str = "/var/lib/slipway/unset-clock.json";
/// Locked while `slipway-node` makes or moves something of [`UNSET_CLOCK`].
pub const RUN_CLOCK_LOCK: &str = "/run/slipway/clock.lock";
/// The file that systemd-timesyncd makes once a time server has answered and the clock is set by it, and touches after each other answer
/// (systemd-timesyncd.service(8)).
pub const TIME_SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";
/// What the addons of the cluster wait for: one line, as long as they wait.
pub const RUN_ADDONS: &str = "/run/slipway/addons";
/// How the addons came out when they were applied last on this boot (JSON).
pub const RUN_ADDON_STATES: &str = "/run/slipway/addons.json";
/// What the balancer of the API servers knows of them (JSON).
pub const RUN_BALANCER: &str = "/run/slipway/balancer.json";
/// Requests of kubelets for serving certificates that are left, with the reason that the journal has.
pub const RUN_REQUESTS: &str = "/run/slipway/requests.json";
/// udev's rules for the links to the disk that the root is on, written at every boot.
pub const RUN_BOOT_DISK: &str = "/run/udev/rules.d/70-slipway-boot-disk.rules";
/// The platform's metadata as an environment file, with the names of Afterburn (<https://coreos.github.io/afterburn/>).
pub const RUN_METADATA: &str = "/run/metadata/afterburn";

/// The same by the names of Container Linux, which templates of Cluster API read.
pub const RUN_METADATA_COREOS: &str = "/run/metadata/coreos";
/// A link to it, by its younger name.
pub const RUN_METADATA_FLATCAR: &str = "/run/metadata/flatcar";
/// The unit that such templates require before they read it.
pub const METADATA_UNIT: &str = "coreos-metadata.service";
/// Its subcommand of [`NODE_PROGRAM`].
pub const METADATA_COMMAND: &str = "coreos-metadata";
/// The configuration that a kubeadm bootstrap provider of Cluster API brings, until kubeadm has succeeded with it.
pub const KUBEADM_CONFIG: &str = "/etc/kubeadm.yml";
/// By this file a bootstrap provider says that the node is in its cluster
/// (<https://cluster-api.sigs.k8s.io/developer/providers/contracts/bootstrap-config>).
pub const SENTINEL: &str = "/run/cluster-api/bootstrap-success.complete";

/// Mount point of the `state` partition on the running node.
pub const STATE: &str = "/var/lib/slipway/state";
/// The marker below [`STATE`] of a node that was provisioned with this disk.
pub const STATE_PROVISIONED: &str = "provisioned.json";
/// The folder below [`STATE`] that keeps the timelines of the last boots.
pub const STATE_TIMELINES: &str = "timelines";
/// The failure ledger below [`STATE`].
pub const STATE_LEDGER: &str = "failures.jsonl";
/// The machine id below [`STATE`].
pub const STATE_MACHINE_ID: &str = "machine-id";
/// The platform's metadata of the first boot, below [`STATE`]: later boots need no metadata service.
pub const STATE_METADATA: &str = "metadata.env";
/// An empty file below [`STATE`]: the platform's vendor has not yet taken the report that the node is provisioned.
pub const STATE_REPORT: &str = "report-due";
/// The journal of the first boot's disks below [`STATE`].
pub const STATE_DISKS: &str = "disks.json";
/// The journal of the first boot's files below [`STATE`].
pub const STATE_FILES: &str = "files.json";
/// The file system of the config at `/var`, if it has one, below [`STATE`].
pub const STATE_VAR: &str = "var.json";
/// The machine's network as the platform describes it, below [`STATE`]: network data, or words of the command line.
pub const STATE_NETWORK: &str = "network_data.json";
/// The etcd volume of this node.
pub const STATE_ETCD: &str = "etcd-volume.json";

/// Folder below [`STATE`] with the keys of the volumes that `/var` is on.
pub const STATE_KEYS: &str = "keys";

/// Ignition's result file: that this node was provisioned, when, and by how many configs.
pub const IGNITION_RESULT: &str = "/etc/.ignition-result.json";
/// The table by which the running system opens encrypted volumes (crypttab(5)).
pub const CRYPTTAB: &str = "/etc/crypttab";
/// Folder of the key files that `CRYPTTAB` names.
pub const LUKS_KEYS: &str = "/etc/luks";

/// Mount point of the etcd disk.
pub const ETCD: &str = "/var/lib/etcd";
/// The identity file at the root of the etcd file system.
pub const ETCD_IDENTITY: &str = ".slipway-etcd.json";

/// The kubelet container's root file system, a plain folder in the verified root.
pub const KUBELET_ROOTFS: &str = "/usr/lib/slipway/kubelet/rootfs";
/// The files of the container images, a folder for each, and their list ([`crate::container_images::INDEX`]).
pub const CONTAINER_IMAGES: &str = "/usr/lib/slipway/images";
/// The files that the init copies to `/var`, at their paths below it. [`crate::var_list`] has their modes and owners, and folders and
/// links.
pub const FACTORY: &str = "/usr/share/factory";
/// What packages and the build put below `/var` ([`crate::var_list`]).
pub const VAR_PACKAGES: &str = "/usr/lib/slipway/var-packages.conf";
/// What layers put there: the recipe's files.
pub const VAR_LAYERS: &str = "/usr/lib/slipway/var-layers.conf";
/// Where `state` is mounted before `/var` is.
pub const RUN_STATE: &str = "/run/slipway/state";
/// An empty file at the root of `state`: it distinguishes the mounted partition from the folder in the read-only root.
pub const STATE_MARK: &str = ".slipway-state";
/// Root hash of the root whose factory files were copied last, below the root.
pub const VAR_SEEDED: &str = "var/lib/slipway/seeded";
/// Paths below `/var` that a root has brought to this node, a line each, below the root: none of them is brought again.
pub const VAR_BROUGHT: &str = "var/lib/slipway/brought";
/// What is there of them that follows the image ([`crate::var_list::FOLLOWING`]), below the root: a line each, the hash of the entry that
/// was brought, or the word `folder`, and its path.
pub const VAR_FOLLOWS: &str = "var/lib/slipway/follows";
/// The name of a node (hostname(5)).
pub const HOSTNAME: &str = "/etc/hostname";
/// The folder of Slipway's files in the root.
pub const SLIPWAY: &str = "/usr/lib/slipway";
/// What the init executes at the handoff.
pub const INIT: &core::ffi::CStr = c"/sbin/init";
/// systemd's command. It is there: it is the normal init's.
pub const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// `slipway-node` in the root: the commands that units run after the handoff.
pub const NODE_PROGRAM: &str = "/usr/lib/slipway/slipway-node";
/// The unit that shows the node's status on the consoles.
pub const CONSOLE_UNIT: &str = "slipway-console.service";
/// Its subcommand of [`NODE_PROGRAM`].
pub const CONSOLE_COMMAND: &str = "console";
/// The unit that takes the counter off the boot entry of a node whose kubelet does not start, once the boot is complete.
pub const BLESS_BOOT_UNIT: &str = "slipway-bless-boot.service";
/// Its subcommand of [`NODE_PROGRAM`].
pub const BLESS_BOOT_COMMAND: &str = "bless-boot";

/// What systemd executes with the kind of the shutdown, as the last thing before the kernel's (systemd-shutdown(8)): it ends with a
/// reset if the kernel's reboot waits for a device without end.
pub const RESET_SCRIPT: &str = "/usr/lib/systemd/system-shutdown/slipway-reset";
/// Its subcommand of [`NODE_PROGRAM`].
pub const RESET_COMMAND: &str = "reset-later";

/// The folder in which OpenSSL looks for certificates, by the hashes of their subjects.
pub const CERTIFICATES: &str = "/etc/ssl/certs";
/// The trusted certificates in one file, where most programs look for them; in the initramfs those of the recipe alone.
pub const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The certificate authorities of the recipe. The kubelet's container has what is above it.
pub const CA_FOLDER: &str = "/usr/share/ca-certificates/slipway";

/// Root-level folders that are links into `/var`: (link, target).
pub const VAR_LINKS: &[(&str, &str)] = &[
    ("/home", "var/home"),
    ("/root", "var/roothome"),
    ("/opt", "var/opt"),
    ("/srv", "var/srv"),
    ("/mnt", "var/mnt"),
    ("/usr/local", "../var/usrlocal"),
];

/// Upper and work folder of the `/etc` overlay, below `/var`.
pub const ETC_UPPER: &str = "/var/lib/slipway/etc/upper";
/// See [`ETC_UPPER`].
pub const ETC_WORK: &str = "/var/lib/slipway/etc/work";
