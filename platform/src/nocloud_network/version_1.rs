//! Version 1: a list of devices, each with its subnets.

use serde_json::Value;

use super::bond;
use super::data::{Data, gateway, list, route, text_of};

pub(super) fn read(document: &Value, data: &mut Data) {
    for (i, entry) in list(&document["config"]).enumerate() {
        let at = format!("config[{i}]");
        let id = text_of(entry, "name");
        let mac = text_of(entry, "mac_address");
        let mtu = &entry["mtu"];
        match text_of(entry, "type") {
            "physical" => data.device(id, (mac, id), mtu),
            "bond" => {
                let options = bond::version_1(&entry["params"], &at, data);
                data.bond(id, (mac, mtu), &entry["bond_interfaces"], options);
            }
            "vlan" => data.vlan(id, (mac, mtu), &entry["vlan_link"], &entry["vlan_id"]),
            "nameserver" => {
                data.name_servers(&entry["address"]);
                continue;
            }
            // Its own addresses are the kernel's; tools write name servers there.
            "loopback" => {
                for subnet in list(&entry["subnets"]) {
                    data.name_servers(&subnet["dns_nameservers"]);
                }
                continue;
            }
            other => {
                let expected = "physical, bond, vlan, loopback or nameserver";
                data.wrong(&format!("{at}.type"), other, expected);
                continue;
            }
        }
        subnets(id, entry, &at, data);
    }
}

fn subnets(id: &str, entry: &Value, at: &str, data: &mut Data) {
    for (i, subnet) in list(&entry["subnets"]).enumerate() {
        let routes = routes(subnet);
        data.name_servers(&subnet["dns_nameservers"]);
        let method = match text_of(subnet, "type") {
            "static" | "static6" => {
                let (address, netmask) = (text_of(subnet, "address"), &subnet["netmask"]);
                data.fixed(id, address, netmask, routes);
                continue;
            }
            "manual" => continue,
            "dhcp" | "dhcp4" => "ipv4_dhcp",
            "dhcp6" => "ipv6_dhcpv6-stateful",
            same @ ("ipv6_slaac" | "ipv6_dhcpv6-stateless" | "ipv6_dhcpv6-stateful") => same,
            other => {
                let at = format!("{at}.subnets[{i}].type");
                data.wrong(&at, other, "static, dhcp, ipv6_slaac, …");
                continue;
            }
        };
        data.network(id, method, routes);
    }
}

fn routes(subnet: &Value) -> Vec<Value> {
    let first = |one: &Value, keys: [&str; 2]| {
        let texts = keys.map(|key| text_of(one, key).to_owned());
        texts.into_iter().find(|text| !text.is_empty())
    };
    let own = list(&subnet["routes"]).map(|one| {
        let network = first(one, ["network", "destination"]);
        let mask = first(one, ["netmask", "prefix"]);
        route(
            &network.unwrap_or_default(),
            mask.as_deref(),
            text_of(one, "gateway"),
        )
    });
    gateway(text_of(subnet, "gateway"))
        .into_iter()
        .chain(own)
        .collect()
}
