//! The network data that is read so far, in OpenStack's form, and what both versions read alike.

use serde_json::{Map, Value, json};

/// The network data so far, and the mistakes.
#[derive(Default)]
pub(super) struct Data {
    links: Vec<Value>,
    networks: Vec<Value>,
    services: Vec<Value>,
    pub(super) wrong: Vec<String>,
    /// What is left out, with its place.
    pub(super) left_out: Vec<String>,
}

impl Data {
    pub(super) fn wrong(&mut self, at: &str, found: &str, expected: &str) {
        self.wrong
            .push(format!("{at}: found {found:?}, expected {expected}"));
    }

    pub(super) fn into_text(self) -> Vec<u8> {
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

    /// A device, by its Ethernet address, else by its interface's name.
    pub(super) fn device(&mut self, id: &str, (mac, name): (&str, &str), mtu: &Value) {
        let mut link = json!({"id": id, "type": "phy", "mtu": mtu});
        match lower(mac) {
            Some(mac) => link["ethernet_mac_address"] = Value::String(mac),
            None => link["name"] = Value::String(name.to_owned()),
        }
        self.links.push(link);
    }

    /// A bond with options by the kernel's names, one of which is its mode.
    pub(super) fn bond(
        &mut self,
        id: &str,
        (mac, mtu): (&str, &Value),
        members: &Value,
        options: Vec<(String, String)>,
    ) {
        let members: Vec<&Value> = list(members).collect();
        let mut link = json!({"id": id, "type": "bond", "bond_links": members, "mtu": mtu,
            "ethernet_mac_address": lower(mac)});
        for (name, value) in options {
            link[format!("bond_{name}")] = Value::String(value);
        }
        self.links.push(link);
    }

    /// A VLAN with this number above another link.
    pub(super) fn vlan(
        &mut self,
        id: &str,
        (mac, mtu): (&str, &Value),
        below: &Value,
        number: &Value,
    ) {
        self.links.push(
            json!({"id": id, "type": "vlan", "vlan_link": below, "vlan_id": number,
            "mtu": mtu, "vlan_mac_address": lower(mac)}),
        );
    }

    /// How a link gets an address.
    pub(super) fn network(&mut self, link: &str, kind: &str, routes: Vec<Value>) {
        self.networks
            .push(json!({"link": link, "type": kind, "routes": routes}));
    }

    /// A fixed address, with the length of its prefix or a netmask beside it.
    pub(super) fn fixed(&mut self, link: &str, address: &str, netmask: &Value, routes: Vec<Value>) {
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

    /// The number of networks so far.
    pub(super) fn networks(&self) -> usize {
        self.networks.len()
    }

    /// Gives a network its routes.
    pub(super) fn set_routes(&mut self, network: usize, routes: Vec<Value>) {
        if let Some(network) = self.networks.get_mut(network) {
            network["routes"] = Value::Array(routes);
        }
    }

    pub(super) fn name_servers(&mut self, addresses: &Value) {
        let service = |address: &Value| json!({"type": "dns", "address": address});
        self.services.extend(list(addresses).map(service));
    }
}

/// An Ethernet address as it is compared; none if none is given.
fn lower(mac: &str) -> Option<String> {
    (!mac.is_empty()).then(|| mac.to_lowercase())
}

/// The default route by this gateway; none if there is none.
pub(super) fn gateway(address: &str) -> Option<Value> {
    let all = if address.contains(':') {
        "::/0"
    } else {
        "0.0.0.0/0"
    };
    (!address.is_empty()).then(|| route(all, None, address))
}

/// A route to `ADDRESS/LENGTH`, or to an address with its mask; to one host without either.
pub(super) fn route(to: &str, mask: Option<&str>, gateway: &str) -> Value {
    let host = if to.contains(':') { "128" } else { "32" };
    let (network, mask) = to.split_once('/').unwrap_or((to, mask.unwrap_or(host)));
    json!({"network": network, "netmask": mask, "gateway": gateway})
}

/// The text of a key; empty if it has none.
pub(super) fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether a text is one of YAML's words for true.
pub(super) fn is_true(text: &str) -> bool {
    ["true", "yes", "on"].contains(&text.to_lowercase().as_str())
}

/// The entries of a list, or a text alone; nothing else has any.
pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    let (many, one) = match value {
        Value::Array(items) => (items.as_slice(), None),
        Value::String(_) => (&[][..], Some(value)),
        _ => (&[][..], None),
    };
    many.iter().chain(one)
}
