//! The facts of this machine: its name, its addresses, its resolver, its id in a cloud.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use cluster::address::{IpVersion, is_global_unicast};
use cluster::host::{CA_FOLDERS, Host};
use image::kubelet::{MOUNTS, RUNTIME_SOCKET};
use image::paths::{HOSTNAME, RESOLV_CONF, RUN_METADATA, VAR_LINKS};
use linux::atomic_file;
use linux::world::World;
use nix::ifaddrs::getifaddrs;

/// The part of the path of systemd-resolved's files.
const RESOLVED: &str = "systemd/resolve/";

/// All of them, with this address as the default one.
pub(super) fn host(world: &World, address: Option<IpAddr>) -> Result<Host> {
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
pub(super) fn provider_id(world: &World) -> Result<Option<String>> {
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
pub(super) fn host_name(world: &World) -> Result<String> {
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
pub(super) fn default_address(
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
pub(super) fn source(version: IpVersion) -> Option<IpAddr> {
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
