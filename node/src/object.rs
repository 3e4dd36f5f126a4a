//! The cluster object of this node, read with what the image brings and what the machine is.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::address::{IpVersion, is_global_unicast};
use cluster::from_kubeadm::{self, Asked};
use cluster::host::{CA_FOLDERS, Host};
use cluster::object::{self, Image, Object, Role};
use cluster::report::Report;
use image::kubelet::{
    FLANNEL_IMAGE, KUBE_PROXY_IMAGE, MOUNTS, RUNTIME_SOCKET, SHUTDOWN_CRITICAL_SECONDS,
    SHUTDOWN_GRACE_SECONDS, UNIT,
};
use image::node::EtcdGate;
use image::paths::{
    CLUSTER, HOSTNAME, KUBEADM_CONFIG, RESOLV_CONF, RUN_ETCD_GATE, RUN_METADATA, VAR_LINKS,
};
use linux::atomic_file;
use linux::waiter::Waiter;
use linux::world::World;
use nix::ifaddrs::getifaddrs;
use serde_json::{Map, Value, json};

use crate::this_boot;

/// How long a machine whose object names no address may be without a default route.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a node of a cluster of both IP versions may be without an address of the other one: a router's advertisement follows the link
/// by some seconds.
const SECOND: Duration = Duration::from_secs(20);
/// How often it is asked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The field of the cluster object that the default route decides otherwise, and the same of kubeadm's documents.
const ADDRESS: [&str; 3] = [
    "node.address",
    "localAPIEndpoint.advertiseAddress",
    "controlPlane.localAPIEndpoint.advertiseAddress",
];
/// The part of the path of systemd-resolved's files.
const RESOLVED: &str = "systemd/resolve/";
/// A folder for plugins of volumes; `/usr` is never writable.
const PLUGINS: &str = "/var/lib/kubelet/volumeplugins";
/// The slice of the kubelet's unit.
const SLICE: &str = "/podruntime.slice";
/// The longest name of a node: the kubelet gives it its Node as the value of the label `kubernetes.io/hostname`
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
const LONGEST_NAME: usize = 63;

/// What a bootstrap begins with.
#[derive(Debug)]
pub(crate) struct Bootstrap {
    /// The cluster object.
    pub(crate) object: Object,
    /// The machine.
    pub(crate) host: Host,
}

/// The cluster object, if this node has one. A machine without a default route is waited for so long, unless the object
/// names its address.
///
/// # Errors
/// All mistakes of the object, each with its position.
pub(crate) fn read(world: &World, patience: Duration) -> Result<Option<Bootstrap>> {
    let path = world.in_initrd(CLUSTER);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let text = String::from_utf8(text).with_context(|| format!("{CLUSTER} is not UTF-8"))?;
    let of_kubeadm = from_kubeadm::is(&text);
    // A bootstrap provider's config on an image with an object: one of them would destroy what the other began. Where `slipway-node
    // kubeadm` has put that config here, it stays at its own place too until the provider's script has ended.
    ensure!(
        of_kubeadm || !world.in_initrd(KUBEADM_CONFIG).exists(),
        "this node has {CLUSTER} and {KUBEADM_CONFIG}: expected one of them; without the former kubeadm brings it up, without the latter Slipway does"
    );
    let (image, role) = (image(world)?, role(world)?);
    let read = |host: &Host| match of_kubeadm {
        true => from_kubeadm::read(&text, &image, host, role).map(|asked| asked.object),
        false => object::read(&text, &image, host, role),
    };
    let mut wait = Wait {
        name: CLUSTER,
        waiter: Waiter::until(world, patience),
        second: SECOND,
        source: &source,
    };
    let (mut object, host) = wait.until_read(world, read, |object| object)?;
    let given = host_name(world)?;
    let lowered = object::lowered("the host name", &given, &host.name);
    object.notes.extend(lowered);
    Ok(Some(Bootstrap { object, host }))
}

/// What kubeadm's documents ask of this node; `name` is what has them. A machine without a default route is waited for so long, where
/// kubeadm fails, unless the documents have its address: a provider's unit starts before there is a lease.
///
/// # Errors
/// All mistakes of the documents, each with its position.
pub(crate) fn asked(
    world: &World,
    name: &str,
    text: &str,
    patience: Duration,
) -> Result<(Asked, Host)> {
    let (image, role) = (image(world)?, role(world)?);
    let read = |host: &Host| from_kubeadm::read(text, &image, host, role);
    let mut wait = Wait {
        name,
        waiter: Waiter::until(world, patience),
        // The kubelet's start waits for it.
        second: Duration::ZERO,
        source: &source,
    };
    wait.until_read(world, read, |asked| &asked.object)
}

/// A wait for the addresses that a text asks of the machine.
struct Wait<'a> {
    /// What has the text.
    name: &'a str,
    /// Until its deadline there is to be a default address, on a control plane one of the version of services.
    waiter: Waiter<'a>,
    /// How long an address of the other IP version is waited for.
    second: Duration,
    /// The kernel's source address of packets to other networks.
    source: &'a dyn Fn(IpVersion) -> Option<IpAddr>,
}

impl Wait<'_> {
    /// Reads the text for the machine as it is, again until it has the addresses or the wait is over.
    ///
    /// A default address comes of the IP version of the first subnet of services, if the machine has one: where networks have both,
    /// a router's advertisement is often there before the lease, and an API server whose address is of another version than its services
    /// ends at its start.
    fn until_read<T>(
        &mut self,
        world: &World,
        read: impl Fn(&Host) -> Result<T, Report>,
        object: impl Fn(&T) -> &Object,
    ) -> Result<(T, Host)> {
        let mut first = IpVersion::V4;
        loop {
            let host = host(world, default_address(first, self.source))?;
            let awaited = match read(&host) {
                Ok(found) => {
                    refuse_long_name(self.name, object(&found))?;
                    let wanted = object(&found).wanted_version();
                    // An address of the text stays what it is.
                    let without = Host {
                        address: None,
                        ..host.clone()
                    };
                    let wanted = wanted.filter(|_| read(&without).is_err());
                    if let Some(version) = wanted
                        && version != first
                    {
                        first = version;
                        continue;
                    }
                    match self.lacks(object(&found), wanted) {
                        Some(awaited) => awaited,
                        None => return Ok((found, host)),
                    }
                }
                Err(report) => {
                    let lacks_address = lacks_address(&report, &host);
                    if !lacks_address || self.waiter.is_over() {
                        return Err(refused(self.name, &report, lacks_address).into());
                    }
                    "a default route".to_owned()
                }
            };
            self.waiter.say(&awaited);
            self.waiter.examined();
            self.waiter.sleep(LOOK_EVERY);
        }
    }

    /// The address that is still waited for, if there is one; `wanted` is the version that the default one should have and does not.
    fn lacks(&self, object: &Object, wanted: Option<IpVersion>) -> Option<String> {
        let waits = !self.waiter.is_over();
        let waits_briefly = waits && self.waiter.elapsed() < self.second;
        // A control plane's certificates and its member of etcd keep its address; a worker's is another one at its kubelet's next start.
        let waits_for_default = match object.join {
            Some(_) => waits_briefly,
            None => waits,
        };
        match wanted {
            Some(version) if waits_for_default => Some(format!("a default route of {version}")),
            _ if waits_briefly && object.lacks_second.is_some() => {
                Some("an address of the other IP version".to_owned())
            }
            _ => None,
        }
    }
}

/// Refuses a name with which no kubelet registers its node: the API server would refuse the label, again and again.
fn refuse_long_name(text: &str, object: &Object) -> Result<(), Refused> {
    let name = &object.config.init.node_registration.name;
    match name.len() {
        ..=LONGEST_NAME => Ok(()),
        length => Err(Refused {
            text: format!(
                "{text} is refused:\n  the node's name {name:?} has {length} characters; expected {LONGEST_NAME} at most, by another host \
                 name or another name in {text}"
            ),
            lacks_address: false,
        }),
    }
}

/// Whether nothing is wrong but that the machine has no address yet.
fn lacks_address(report: &Report, host: &Host) -> bool {
    host.address.is_none()
        && report
            .mistakes
            .iter()
            .all(|mistake| ADDRESS.contains(&mistake.field.as_str()))
}

/// A cluster object that is refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// All its mistakes.
    pub(crate) text: String,
    /// Whether only the machine's address is missing, which its network may still bring.
    pub(crate) lacks_address: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

fn refused(name: &str, report: &Report, lacks_address: bool) -> Refused {
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    Refused {
        text: format!("{name} is refused:\n  {}", lines.join("\n  ")),
        lacks_address,
    }
}

/// The role of this node: slipway-init requires the etcd volume of a control plane alone.
fn role(world: &World) -> Result<Role> {
    let file = world.in_run(RUN_ETCD_GATE);
    let about = || format!("reading {}", file.display());
    let text = fs::read(&file).with_context(about)?;
    let gate: EtcdGate = serde_json::from_slice(&text).with_context(about)?;
    Ok(match gate.required {
        true => Role::ControlPlane,
        false => Role::Worker,
    })
}

/// What the image brings, by its manifest.
fn image(world: &World) -> Result<Image> {
    let kubernetes = this_boot::manifest(world)?.kubernetes;
    let (version, images) = kubernetes.map_or_else(Default::default, |kubernetes| {
        (kubernetes.version, kubernetes.images)
    });
    let baked = [("kube-proxy", KUBE_PROXY_IMAGE), ("flannel", FLANNEL_IMAGE)];
    let baked = baked
        .into_iter()
        .filter(|(name, _)| images.contains_key(*name));
    Ok(Image {
        version,
        has_kubelet: true,
        baked: baked
            .map(|(name, image)| (name.to_owned(), image.to_owned()))
            .collect(),
        images,
        known: true,
        kubelet: kubelet(),
        flexvolume: PLUGINS.to_owned(),
    })
}

/// The fields of the kubelet's configuration that this system needs: those of the image's default that kubeadm does not
/// set.
fn kubelet() -> Map<String, Value> {
    let fields = [
        ("kubeletCgroups", json!(format!("{SLICE}/{UNIT}"))),
        (
            "shutdownGracePeriod",
            json!(format!("{SHUTDOWN_GRACE_SECONDS}s")),
        ),
        (
            "shutdownGracePeriodCriticalPods",
            json!(format!("{SHUTDOWN_CRITICAL_SECONDS}s")),
        ),
        ("volumePluginDir", json!(PLUGINS)),
    ];
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// The facts of this machine.
fn host(world: &World, address: Option<IpAddr>) -> Result<Host> {
    Ok(Host {
        name: name(world)?,
        address,
        interfaces: interfaces()?,
        cri_socket: format!("unix://{RUNTIME_SOCKET}"),
        ca_folders: CA_FOLDERS
            .iter()
            .filter(|path| is_seen(path) && world.in_initrd(path).is_dir())
            .map(ToString::to_string)
            .collect(),
        resolved: is_resolved(world),
        provider_id: provider_id(world)?,
        proxies: Vec::new(),
    })
}

/// What Amazon calls this machine, as its cloud controller has it: `aws:///ZONE/INSTANCE`
/// (<https://github.com/kubernetes/cloud-provider-aws/blob/v1.36.2/pkg/providers/v1/instances.go>). By it the controller finds the machine of
/// a node whatever that is called.
fn provider_id(world: &World) -> Result<Option<String>> {
    let file = world.in_run(RUN_METADATA);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    let value = |name: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found
            .map(|value| value.trim_matches('"'))
            .filter(|value| !value.is_empty())
    };
    let zone = value("AFTERBURN_AWS_AVAILABILITY_ZONE");
    let instance = value("AFTERBURN_AWS_INSTANCE_ID");
    Ok(zone
        .zip(instance)
        .map(|(zone, instance)| format!("aws:///{zone}/{instance}")))
}

/// The name of the machine as a node: the host name in lower case, as kubeadm and the kubelet have it.
pub(crate) fn name(world: &World) -> Result<String> {
    Ok(host_name(world)?.to_lowercase())
}

/// The host name: the kernel's, which systemd sets before units start.
fn host_name(world: &World) -> Result<String> {
    let file = world.proc.join("sys/kernel/hostname");
    let name = fs::read_to_string(&file)
        .or_else(|_| fs::read_to_string(world.in_initrd(HOSTNAME)))
        .with_context(|| format!("reading {}", file.display()))?;
    Ok(name.trim().to_owned())
}

/// Whether systemd-resolved is this system's resolver. The link counts, and not what runs: the kubelet's configuration
/// must be the same at every boot.
fn is_resolved(world: &World) -> bool {
    let target = fs::read_link(world.in_initrd(RESOLV_CONF));
    target.is_ok_and(|target| target.to_string_lossy().contains(RESOLVED))
}

/// Whether the kubelet's container has the host's folder at the same path. The kubelet checks the type of a pod's folder
/// in its own mount namespace, and a missing one hangs the pod.
fn is_seen(path: &str) -> bool {
    let below = |folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    MOUNTS.iter().any(|mount| below(mount.target)) || VAR_LINKS.iter().any(|(link, _)| below(link))
}

/// The addresses that other machines can reach, each with its interface, in the kernel's order.
pub(crate) fn addresses() -> Result<Vec<(String, IpAddr)>> {
    let all = getifaddrs().context("listing the addresses")?;
    let reachable = all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
        let any = v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()));
        let reachable = any.filter(|address| is_global_unicast(*address))?;
        Some((interface.interface_name, reachable))
    });
    Ok(reachable.collect())
}

/// The same by interface.
fn interfaces() -> Result<Vec<Vec<IpAddr>>> {
    let mut interfaces: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (interface, address) in addresses()? {
        interfaces.entry(interface).or_default().push(address);
    }
    Ok(interfaces.into_values().collect())
}

/// The address of the interface with the default route, of this IP version before the other one. One that other machines cannot reach
/// is none: a router's advertisement brings the route first, and until the address of its prefix is proven to be unique, packets go out
/// with the link-local one.
fn default_address(
    first: IpVersion,
    source: &dyn Fn(IpVersion) -> Option<IpAddr>,
) -> Option<IpAddr> {
    let versions = match first {
        IpVersion::V4 => [IpVersion::V4, IpVersion::V6],
        IpVersion::V6 => [IpVersion::V6, IpVersion::V4],
    };
    let mut found = versions.into_iter().filter_map(source);
    found.find(|address| is_global_unicast(*address))
}

/// The address that the kernel gives packets to other networks. A connected UDP socket sends nothing.
fn source(version: IpVersion) -> Option<IpAddr> {
    // Networks for documentation (RFC 5737, RFC 3849): no route but the default one leads there.
    let (any, there): (IpAddr, IpAddr) = match version {
        IpVersion::V4 => (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        ),
        IpVersion::V6 => (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(there, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Says that the default address is of another IP version than the first subnet of services, as kubeadm takes it too.
pub(crate) fn warn_of_version(object: &Object) {
    let Some((version, address)) = object.wanted_version().zip(object.address()) else {
        return;
    };
    let effect = match object.join {
        Some(_) => "",
        None => ": an API server with such an address ends at its start",
    };
    tracing::warn!(
        "the first subnet of services is of {version}, and this node's address is {address}{effect}; expected a default route of \
         {version}, or an address of {version} in the node's config"
    );
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;
    use crate::samples::{machine, put, worker};

    /// kubeadm's documents of a first node, without its address, and those of nodes that join.
    const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n";
    const JOIN: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery:\n  bootstrapToken:\n    \
        token: abcdef.0123456789abcdef\n    apiServerEndpoint: api.example.test:6443\n    caCertHashes: \
        [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";
    const PLANE: &str = "controlPlane: {}\n";
    const CLUSTER_V4: &str = "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: api.example.test\nnetworking: { serviceSubnet: 10.96.0.0/12 }\n";
    const CLUSTER_V6: &str = "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: api.example.test\nnetworking: { serviceSubnet: \"fd00:6::/112\" }\n";
    /// A cluster object of a worker.
    const WORKER: &str = "endpoint = \"api.example.test:6443\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\n\
        ca-hashes = [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";

    /// The address that a text has on a machine whose kernel has these source addresses from so many seconds on, and after how many it is
    /// known.
    fn settled(text: &str, addresses: &[(i64, &str)]) -> (Result<IpAddr>, i64) {
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), text);
        let seconds = || world.micros() / 1_000_000;
        let source = |version| {
            let now = addresses.iter().filter(|(since, _)| *since <= seconds());
            let mut all = now.map(|(_, text)| text.parse().unwrap());
            all.rfind(|address| IpVersion::of(*address) == version)
        };
        let (image, role) = (image(&world).unwrap(), Role::Worker);
        let read = |host: &Host| match from_kubeadm::is(text) {
            true => from_kubeadm::read(text, &image, host, role).map(|asked| asked.object),
            false => object::read(text, &image, host, role),
        };
        let mut wait = Wait {
            name: CLUSTER,
            waiter: Waiter::until(&world, PATIENCE),
            second: SECOND,
            source: &source,
        };
        let found = wait.until_read(&world, read, |object| object);
        let address = found.map(|(object, _)| object.address().unwrap());
        (address, seconds())
    }

    /// A router's advertisement brings its route before the address is proven to be unique; a lease comes later still.
    #[test]
    fn an_address_that_other_machines_cannot_reach_does_not_end_the_wait() {
        for (addresses, expected) in [
            (&[(0, "fe80::5"), (3, "10.0.0.5")][..], 3),
            (&[(2, "169.254.7.5"), (4, "10.0.0.5")], 4),
            (&[(0, "fe80::5"), (1, "fd00::5"), (9, "10.0.0.5")], 9),
        ] {
            let (address, after) = settled(INIT, addresses);
            let own: IpAddr = "10.0.0.5".parse().unwrap();
            assert_eq!((address.unwrap(), after), (own, expected), "{addresses:?}");
        }
        let text = format!("{INIT}{CLUSTER_V6}");
        let (address, after) = settled(&text, &[(0, "fe80::5"), (2, "fd00::5")]);
        assert_eq!(
            (address.unwrap().to_string().as_str(), after),
            ("fd00::5", 2)
        );
        let (address, after) = settled(INIT, &[(0, "fe80::5")]);
        let error = address.unwrap_err();
        assert_eq!(after, 60);
        assert!(error.downcast_ref::<Refused>().unwrap().lacks_address);
        assert!(
            error.to_string().contains("only a link-local address"),
            "{error}"
        );
    }

    /// A kubelet would try to register its node for ever: the API server refuses the name as a label.
    #[test]
    fn a_name_that_is_too_long_for_a_label_is_refused_before_anything_is_written() {
        for (length, is_taken) in [(63, true), (64, false)] {
            let folder = tempfile::tempdir().unwrap();
            let world = machine(folder.path(), "[node]\naddress = \"10.0.0.7\"\n");
            put(&world.in_initrd(HOSTNAME), &"n".repeat(length));
            match read(&world, Duration::ZERO) {
                Ok(_) => assert!(is_taken, "{length}"),
                Err(error) => {
                    assert!(!is_taken && !error.downcast_ref::<Refused>().unwrap().lacks_address);
                    let said = format!("{error:#}");
                    assert!(
                        said.contains("has 64 characters; expected 63 at most"),
                        "{said}"
                    );
                }
            }
        }
        let text = format!("{INIT}nodeRegistration: {{ name: {} }}\n", "n".repeat(64));
        let (address, after) = settled(&text, &[(0, "10.0.0.5")]);
        assert!(address.is_err() && after == 0);
    }

    /// The API server ends at its start where its address is of another version than its services.
    #[test]
    fn the_default_address_is_of_the_version_of_services_where_the_machine_gets_one() {
        let both = &[(0, "10.0.0.5"), (0, "fd00::5")][..];
        let (late_v4, late_v6) = (
            &[(0, "fd00::5"), (8, "10.0.0.5")][..],
            &[(0, "10.0.0.5"), (8, "fd00::5")][..],
        );
        let own = format!("{INIT}localAPIEndpoint: {{ advertiseAddress: \"fd00::5\" }}\n");
        let plane = format!("{JOIN}{PLANE}");
        let named = format!("{WORKER}[networks]\nservices = \"10.96.0.0/12\"\n");
        let given = format!("{named}[kubelet]\nargs = {{ node-ip = \"fd00::5\" }}\n");
        for (text, addresses, expected) in [
            (INIT, both, ("10.0.0.5", 0)),
            (INIT, late_v4, ("10.0.0.5", 8)),
            (&format!("{INIT}{CLUSTER_V6}"), both, ("fd00::5", 0)),
            (&format!("{INIT}{CLUSTER_V6}"), late_v6, ("fd00::5", 8)),
            // As kubeadm, if there is no other one.
            (INIT, &late_v4[..1], ("fd00::5", 60)),
            (
                &format!("{INIT}{CLUSTER_V6}"),
                &late_v6[..1],
                ("10.0.0.5", 60),
            ),
            // Of the text.
            (&own, late_v4, ("fd00::5", 0)),
            // The cluster's subnets are not known before it is asked.
            (&plane, late_v4, ("fd00::5", 0)),
            (&format!("{plane}{CLUSTER_V4}"), late_v4, ("10.0.0.5", 8)),
            (JOIN, late_v4, ("fd00::5", 0)),
            (WORKER, late_v4, ("fd00::5", 0)),
            (&named, late_v4, ("10.0.0.5", 8)),
            // A worker's next start takes what has come since.
            (
                &format!("{JOIN}{CLUSTER_V4}"),
                &late_v4[..1],
                ("fd00::5", 20),
            ),
            (&given, late_v4, ("fd00::5", 0)),
        ] {
            let (address, after) = settled(text, addresses);
            let address = address.unwrap_or_else(|error| panic!("{text}: {error:#}"));
            let found = (address.to_string(), after);
            assert_eq!((found.0.as_str(), found.1), expected, "{text}");
        }
    }

    /// The controller finds the machine of a node by it; half of it would be that of another one.
    #[test]
    fn amazons_machines_have_the_id_that_their_cloud_calls_them_by() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(provider_id(&world).unwrap(), None);
        let file = world.in_run(RUN_METADATA);
        let said = |text: &str| {
            put(&file, text);
            provider_id(&world).unwrap()
        };
        let whole = "SLIPWAY_PLATFORM=aws\nAFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\nAFTERBURN_AWS_INSTANCE_ID=\"i-0abc\"\n";
        assert_eq!(said(whole).as_deref(), Some("aws:///eu-central-1a/i-0abc"));
        for half in [
            "AFTERBURN_AWS_INSTANCE_ID=i-0abc\n",
            "AFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\nAFTERBURN_AWS_INSTANCE_ID=\n",
            "AFTERBURN_GCP_INSTANCE_ID=1\n",
        ] {
            assert_eq!(said(half), None, "{half}");
        }
        let object = "[node]\naddress = \"10.0.0.7\"\n[cloud]\nprovider = \"external\"\n";
        let world = machine(folder.path(), object);
        said(whole);
        let read = read(&world, Duration::ZERO).unwrap().unwrap();
        assert_eq!(
            read.object.config.provider_id.as_deref(),
            Some("aws:///eu-central-1a/i-0abc")
        );
    }
}
