//! Version 2, which is netplan's: devices by kind and name.

use serde_json::Value;

use super::bond;
use super::data::{Data, gateway, is_true, list, route, text_of};

/// The kernel's name of the loopback device, which is no way to anywhere.
const LOOPBACK: &str = "lo";

pub(super) fn read(document: &Value, data: &mut Data) {
    for kind in ["bridges", "wifis", "tunnels"] {
        if document[kind]
            .as_object()
            .is_some_and(|some| !some.is_empty())
        {
            data.wrong(kind, "some", "ethernets, bonds and vlans only");
        }
    }
    let of_kind = |kind: &str| document[kind].as_object().into_iter().flatten();
    for (id, device) in of_kind("ethernets") {
        let Some(known) = known_by(id, &device["match"], data) else {
            continue;
        };
        if known == ("", LOOPBACK) {
            data.name_servers(&device["nameservers"]["addresses"]);
            continue;
        }
        data.device(id, known, &device["mtu"]);
        addresses(id, device, data);
    }
    for (id, device) in of_kind("bonds") {
        let options = bond::version_2(&device["parameters"], &format!("bonds.{id}"), data);
        let own = (text_of(device, "macaddress"), &device["mtu"]);
        data.bond(id, own, &device["interfaces"], options);
        addresses(id, device, data);
    }
    for (id, device) in of_kind("vlans") {
        let own = (text_of(device, "macaddress"), &device["mtu"]);
        data.vlan(id, own, &device["link"], &device["id"]);
        addresses(id, device, data);
    }
}

/// The Ethernet address and the name by which a device is known: the key is its name where nothing else is given
/// (<https://netplan.readthedocs.io/en/stable/netplan-yaml/#properties-for-physical-device-types>). None for devices that are known
/// by a pattern or a driver: which they are, only the running node knows.
fn known_by<'d>(id: &'d str, matched: &'d Value, data: &mut Data) -> Option<(&'d str, &'d str)> {
    if !matched.is_object() {
        return Some(("", id));
    }
    let (mac, name) = (text_of(matched, "macaddress"), text_of(matched, "name"));
    let is_open = name.is_empty() || name.contains(['*', '?', '[']);
    if mac.is_empty() && is_open {
        data.left_out.push(format!(
            "ethernets.{id} is left out: its match names neither one interface nor a macaddress"
        ));
        return None;
    }
    Some((mac, name))
}

/// How a device of any kind gets its addresses, and its routes and name servers.
fn addresses(id: &str, device: &Value, data: &mut Data) {
    let first = data.networks();
    let has = |key: &str| is_true(text_of(device, key));
    if has("dhcp4") {
        data.network(id, "ipv4_dhcp", Vec::new());
    }
    if has("dhcp6") {
        data.network(id, "ipv6_dhcp", Vec::new());
    } else if has("accept-ra") {
        data.network(id, "ipv6_slaac", Vec::new());
    }
    for address in list(&device["addresses"]) {
        // An address with options is a mapping with one key.
        let with_options = address.as_object().and_then(|map| map.keys().next());
        let address = address.as_str().or(with_options.map(String::as_str));
        data.fixed(id, address.unwrap_or_default(), &Value::Null, Vec::new());
    }
    data.name_servers(&device["nameservers"]["addresses"]);
    // They are the link's, whatever its addresses come from.
    data.set_routes(first, routes(device));
}

fn routes(device: &Value) -> Vec<Value> {
    let own = list(&device["routes"]).filter_map(|one| {
        let via = text_of(one, "via");
        match text_of(one, "to") {
            "default" => gateway(via),
            to => Some(route(to, None, via)),
        }
    });
    let keys = ["gateway4", "gateway6"];
    let gateways = keys.iter().filter_map(|key| gateway(text_of(device, key)));
    gateways.chain(own).collect()
}
