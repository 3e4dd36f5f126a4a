//! The network of a node's own pods: a bridge, addresses of the node's subnets, and ports of the host. [`crate::routes`] leads to
//! the pods of other nodes.

use std::fs;
use std::io;

use anyhow::{Context, Result};
use cluster::address::Subnet;
use cluster::flannel::SUBNET_FILE;
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde_json::{Value, json};

/// The folder of CNI configurations.
const FOLDER: &str = "/etc/cni/net.d";
/// The configuration list.
pub(crate) const FILE: &str = "/etc/cni/net.d/10-slipway.conflist";

/// Writes the configuration for these subnets, if it is another one. Returns whether it was. With flannel it has the largest packet that
/// VXLAN carries, bytes, and flannel gives packets that leave the cluster the node's address.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write(world: &World, subnets: &[Subnet], flannel: Option<u32>) -> Result<bool> {
    let file = world.in_initrd(FILE);
    let about = || format!("writing {}", file.display());
    let mut text = serde_json::to_vec_pretty(&bridge(subnets, flannel)).with_context(about)?;
    text.push(b'\n');
    if atomic_file::read(&file).with_context(about)?.as_ref() == Some(&text) {
        return Ok(false);
    }
    folder(&world.in_initrd(FOLDER), 0o755)?;
    atomic_file::write(&file, &text, 0o644).with_context(about)?;
    Ok(true)
}

/// Takes back what an earlier boot wrote for flannel, until flannel works in this one: the kubelet says Ready by this file alone, and pods
/// would start without a way to those of other nodes.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn withdraw(world: &World) -> Result<()> {
    if world.in_run(SUBNET_FILE).exists() {
        return Ok(());
    }
    let file = world.in_initrd(FILE);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// The plugins `bridge`, `host-local` and `portmap` (<https://www.cni.dev/plugins/current/>).
fn bridge(subnets: &[Subnet], flannel: Option<u32>) -> Value {
    let range = |subnet: &Subnet| json!([{"subnet": subnet.to_string()}]);
    let route = |subnet: &Subnet| {
        let everywhere = if subnet.first.is_ipv4() {
            "0.0.0.0/0"
        } else {
            "::/0"
        };
        json!({"dst": everywhere})
    };
    let mut list = json!({
        "cniVersion": "1.0.0",
        "name": "slipway",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                // A Node that was deleted and registered anew has other subnets. Without this the plugin refuses every pod until somebody
                // takes the gateway's earlier address from the bridge.
                "forceAddress": true,
                "isGateway": true,
                "hairpinMode": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": subnets.iter().map(range).collect::<Vec<_>>(),
                    "routes": subnets.iter().map(route).collect::<Vec<_>>(),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    if let Some(mtu) = flannel {
        list["plugins"][0]["mtu"] = mtu.into();
        list["plugins"][0]["ipMasq"] = false.into();
    }
    list
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;

    #[test]
    fn each_subnet_is_a_range_with_a_default_route_and_a_second_write_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let subnets: Vec<_> = ["10.244.0.0/24", "fd00:1::/64"]
            .iter()
            .filter_map(|text| Subnet::parse(text))
            .collect();
        assert!(write(&world, &subnets, None).unwrap());
        assert!(!write(&world, &subnets, None).unwrap());
        let text = std::fs::read(world.in_initrd(FILE)).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let ipam = &value["plugins"][0]["ipam"];
        let ranges = json!([[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
        assert_eq!(ipam["ranges"], ranges);
        assert_eq!(
            ipam["routes"],
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])
        );
        // A node's subnets may be others later, while its bridge has the address of before.
        assert_eq!(value["plugins"][0]["forceAddress"], true);
        assert!(write(&world, &subnets[..1], None).unwrap());
        assert!(write(&world, &subnets[..1], Some(1450)).unwrap());
        let text = std::fs::read(world.in_initrd(FILE)).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let bridge = &value["plugins"][0];
        assert_eq!(
            (&bridge["mtu"], &bridge["ipMasq"]),
            (&json!(1450), &json!(false))
        );
    }

    #[test]
    fn what_an_earlier_boot_wrote_for_flannel_stays_while_flannel_works() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let subnets: Vec<Subnet> = Subnet::parse("10.5.0.0/24").into_iter().collect();
        withdraw(&world).unwrap();
        write(&world, &subnets, Some(1450)).unwrap();
        let works = world.in_run(SUBNET_FILE);
        fs::create_dir_all(works.parent().unwrap()).unwrap();
        fs::write(&works, "FLANNEL_MTU=1450\n").unwrap();
        withdraw(&world).unwrap();
        assert!(world.in_initrd(FILE).exists());
        fs::remove_file(&works).unwrap();
        withdraw(&world).unwrap();
        assert!(!world.in_initrd(FILE).exists());
    }
}
