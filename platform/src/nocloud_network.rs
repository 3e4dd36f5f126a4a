//! NoCloud's `network-config` as OpenStack's network data, which every other part knows: version 1, as Proxmox VE writes it,
//! and version 2 (netplan's), as users of KubeVirt do.
//!
//! Devices with an Ethernet address, fixed addresses, DHCP, routers' advertisements, gateways, routes and name servers are
//! understood; bonds, VLANs and bridges are mistakes, and search domains are left out.
//! <https://docs.cloud-init.io/en/latest/reference/network-config-format-v1.html>,
//! <https://docs.cloud-init.io/en/latest/reference/network-config-format-v2.html>

use ignition::read::json::{self, Json};
use ignition::read::yaml;
use serde_json::{Map, Value, json};

use crate::network::Described;
use crate::vendor_yaml;

/// Reads a `network-config`; none if it gives no link an address, or has mistakes. `notes` gets these, all at once: the
/// user did not write the file, and the machine may boot without it.
pub(crate) fn read(text: &[u8], name: &str, notes: &mut Vec<String>) -> Option<Described> {
    let document = plain(vendor_yaml::parse(text, name, notes)?);
    // The installers' form has all below one key.
    let document = match &document["network"] {
        Value::Object(_) => &document["network"],
        _ => &document,
    };
    let mut data = Data::default();
    match text_of(document, "version") {
        "1" => data.version_1(document),
        "2" => data.version_2(document),
        other => data.wrong("version", other, "1 or 2"),
    }
    let described = match data.wrong.is_empty() {
        true => Described::read(data.into_text(), name),
        false => Err(data
            .wrong
            .iter()
            .map(|line| format!("{name}: {line}"))
            .collect()),
    };
    described
        .map_err(|lines: Vec<String>| {
            notes.extend(lines);
            notes.push(format!("ignoring {name}"));
        })
        .ok()
        .flatten()
}

/// The document with each scalar as its text.
fn plain(node: Json) -> Value {
    match node.value {
        json::Value::Null => Value::Null,
        json::Value::Plain(text) if yaml::is_null(&text) => Value::Null,
        json::Value::Bool(value) => Value::String(value.to_string()),
        json::Value::Number(text) | json::Value::Text(text) | json::Value::Plain(text) => {
            Value::String(text)
        }
        json::Value::List(items) => items.into_iter().map(plain).collect(),
        json::Value::Object(entries) => {
            let entries = entries.into_iter();
            Value::Object(entries.map(|(key, _, value)| (key, plain(value))).collect())
        }
    }
}

/// The network data so far, and the mistakes.
#[derive(Default)]
struct Data {
    links: Vec<Value>,
    networks: Vec<Value>,
    services: Vec<Value>,
    wrong: Vec<String>,
}

impl Data {
    fn wrong(&mut self, at: &str, found: &str, expected: &str) {
        self.wrong
            .push(format!("{at}: found {found:?}, expected {expected}"));
    }

    fn into_text(self) -> Vec<u8> {
        let Self {
            links,
            networks,
            services,
            ..
        } = self;
        json!({"links": links, "networks": networks, "services": services})
            .to_string()
            .into_bytes()
    }

    fn version_1(&mut self, document: &Value) {
        for (i, entry) in list(&document["config"]).enumerate() {
            let at = format!("config[{i}]");
            match text_of(entry, "type") {
                "physical" => self.device_1(entry, &at),
                "nameserver" => self.name_servers(&entry["address"]),
                other => self.wrong(&format!("{at}.type"), other, "physical or nameserver"),
            }
        }
    }

    fn device_1(&mut self, entry: &Value, at: &str) {
        let id = text_of(entry, "name");
        self.link(id, text_of(entry, "mac_address"), &entry["mtu"], at);
        for (i, subnet) in list(&entry["subnets"]).enumerate() {
            let routes = routes_1(subnet);
            self.name_servers(&subnet["dns_nameservers"]);
            let method = match text_of(subnet, "type") {
                "static" | "static6" => {
                    let (address, netmask) = (text_of(subnet, "address"), &subnet["netmask"]);
                    self.fixed(id, address, netmask, routes);
                    continue;
                }
                "manual" => continue,
                "dhcp" | "dhcp4" => "ipv4_dhcp",
                "dhcp6" => "ipv6_dhcpv6-stateful",
                same @ ("ipv6_slaac" | "ipv6_dhcpv6-stateless" | "ipv6_dhcpv6-stateful") => same,
                other => {
                    let at = format!("{at}.subnets[{i}].type");
                    self.wrong(&at, other, "static, dhcp, ipv6_slaac, …");
                    continue;
                }
            };
            self.networks
                .push(json!({"link": id, "type": method, "routes": routes}));
        }
    }

    fn version_2(&mut self, document: &Value) {
        for kind in ["bonds", "bridges", "vlans", "wifis", "tunnels"] {
            if document[kind]
                .as_object()
                .is_some_and(|some| !some.is_empty())
            {
                self.wrong(kind, "some", "ethernets only");
            }
        }
        for (id, device) in document["ethernets"].as_object().into_iter().flatten() {
            self.device_2(id, device);
        }
    }

    fn device_2(&mut self, id: &str, device: &Value) {
        let at = format!("ethernets.{id}.match");
        self.link(
            id,
            text_of(&device["match"], "macaddress"),
            &device["mtu"],
            &at,
        );
        let first = self.networks.len();
        if is_true(device, "dhcp4") {
            self.networks.push(json!({"link": id, "type": "ipv4_dhcp"}));
        }
        if is_true(device, "dhcp6") {
            self.networks.push(json!({"link": id, "type": "ipv6_dhcp"}));
        } else if is_true(device, "accept-ra") {
            self.networks
                .push(json!({"link": id, "type": "ipv6_slaac"}));
        }
        for address in list(&device["addresses"]) {
            // An address with options is a mapping with one key.
            let with_options = address.as_object().and_then(|map| map.keys().next());
            let address = address.as_str().or(with_options.map(String::as_str));
            self.fixed(id, address.unwrap_or_default(), &Value::Null, Vec::new());
        }
        self.name_servers(&device["nameservers"]["addresses"]);
        // They are the link's, whatever its addresses come from.
        if let Some(network) = self.networks.get_mut(first) {
            network["routes"] = Value::Array(routes_2(device));
        }
    }

    fn link(&mut self, id: &str, mac: &str, mtu: &Value, at: &str) {
        if mac.is_empty() {
            let expected = "the Ethernet address by which the device is known";
            return self.wrong(at, mac, expected);
        }
        self.links.push(
            json!({"id": id, "type": "phy", "ethernet_mac_address": mac.to_lowercase(), "mtu": mtu}),
        );
    }

    fn fixed(&mut self, link: &str, address: &str, netmask: &Value, routes: Vec<Value>) {
        let kind = if address.contains(':') {
            "ipv6"
        } else {
            "ipv4"
        };
        let mut network = Map::new();
        for (key, value) in [
            ("link", json!(link)),
            ("type", json!(kind)),
            ("ip_address", json!(address)),
            ("netmask", netmask.clone()),
            ("routes", Value::Array(routes)),
        ] {
            network.insert(key.to_owned(), value);
        }
        self.networks.push(Value::Object(network));
    }

    fn name_servers(&mut self, addresses: &Value) {
        let service = |address: &Value| json!({"type": "dns", "address": address});
        self.services.extend(list(addresses).map(service));
    }
}

/// The routes of a subnet in version 1.
fn routes_1(subnet: &Value) -> Vec<Value> {
    let own = list(&subnet["routes"]).map(|one| {
        let keys = ["network", "destination"];
        let network = keys
            .iter()
            .map(|key| text_of(one, key))
            .find(|text| !text.is_empty());
        let masks = ["netmask", "prefix"];
        let mask = masks
            .iter()
            .map(|key| text_of(one, key))
            .find(|text| !text.is_empty());
        route(network.unwrap_or_default(), mask, text_of(one, "gateway"))
    });
    gateway(text_of(subnet, "gateway"))
        .into_iter()
        .chain(own)
        .collect()
}

/// The routes of a device in version 2.
fn routes_2(device: &Value) -> Vec<Value> {
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

/// The default route by this gateway; none if there is none.
fn gateway(address: &str) -> Option<Value> {
    let all = if address.contains(':') {
        "::/0"
    } else {
        "0.0.0.0/0"
    };
    (!address.is_empty()).then(|| route(all, None, address))
}

/// A route to `ADDRESS/LENGTH`, or to an address with its mask; to one host without either.
fn route(to: &str, mask: Option<&str>, gateway: &str) -> Value {
    let host = if to.contains(':') { "128" } else { "32" };
    let (network, mask) = to.split_once('/').unwrap_or((to, mask.unwrap_or(host)));
    json!({"network": network, "netmask": mask, "gateway": gateway})
}

/// The text of a key; empty if it has none.
fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether a key is one of YAML's words for true.
fn is_true(value: &Value, key: &str) -> bool {
    let words = ["true", "yes", "on"];
    words.contains(&text_of(value, key).to_lowercase().as_str())
}

/// The entries of a list, or a text alone; nothing else has any.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    let (many, one) = match value {
        Value::Array(items) => (items.as_slice(), None),
        Value::String(_) => (&[][..], Some(value)),
        _ => (&[][..], None),
    };
    many.iter().chain(one)
}

#[cfg(test)]
mod tests;
