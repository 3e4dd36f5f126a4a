//! The cluster object of this node, read with what the image brings and what the machine is.

mod facts;

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::address::IpVersion;
use cluster::from_kubeadm::{self, Asked};
use cluster::host::Host;
use cluster::object::{self, Image, Object, Role};
use cluster::report::Report;
use image::kubelet::{
    FLANNEL_IMAGE, KUBE_PROXY_IMAGE, SHUTDOWN_CRITICAL_SECONDS, SHUTDOWN_GRACE_SECONDS, UNIT,
};
use image::node::EtcdGate;
use image::paths::{CLUSTER, KUBEADM_CONFIG, RUN_ETCD_GATE};
use linux::atomic_file;
use linux::waiter::Waiter;
use linux::world::World;
use serde_json::{Map, Value, json};

use crate::this_boot;
pub(crate) use facts::{addresses, name};
use facts::{default_address, host, host_name, source};

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
mod tests;
