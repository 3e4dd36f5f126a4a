//! What the init hands over to the services of a node.

use std::fs;

use anyhow::{Context, Result};
use image::node::EtcdGate;
use image::paths::{RUN_ETCD_GATE, RUN_MANIFEST};

use crate::disks::Disks;
use crate::image_root::ImageRoot;
use crate::units;

/// A script that leaves on a node what the init leaves: its files below `/run`, the network (address and gateway of both IP versions), the
/// kernel's settings of the recipe. `etcd` are the disks of a node that requires an etcd volume.
///
/// # Errors
/// If the manifest or the volume cannot be read.
pub(crate) fn script(
    image: &ImageRoot,
    (address, gateway): (&str, &str),
    (address_6, gateway_6): (&str, &str),
    etcd: Option<&Disks>,
) -> Result<String> {
    let manifest = fs::read_to_string(&image.manifest).context("reading the manifest")?;
    let gate = serde_json::to_string(&EtcdGate {
        required: etcd.is_some(),
        device: etcd.map(Disks::etcd_device).transpose()?,
        filesystem: None,
        reason: None,
    })?;
    let scripts = units::scripts();
    Ok(format!(
        "mkdir -p /run/slipway /run/systemd/resolve /run/systemd/timesync /run/lock
cat > {RUN_MANIFEST} <<'END'\n{manifest}\nEND
cat > {RUN_ETCD_GATE} <<'END'\n{gate}\nEND
echo 'nameserver {gateway}' | tee /run/systemd/resolve/resolv.conf > /run/systemd/resolve/stub-resolv.conf
touch /run/systemd/timesync/synchronized
{scripts}
ip link set lo up
ip addr add {address}/24 dev eth0 || {{ ip -d link; exit 1; }}
ip addr add {address_6}/64 dev eth0 nodad
ip link set eth0 up
ip route add default via {gateway}
ip -6 route add default via {gateway_6}
for file in /etc/sysctl.d/50-kubernetes.conf; do grep ^net. $file | tr -d ' ' > /run/sysctl; done
sysctl -q -p /run/sysctl
systemd-tmpfiles --create --prefix=/var 2>/run/tmpfiles || true"
    ))
}
