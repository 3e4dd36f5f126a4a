//! Parser of `network_data.json`: all mistakes at once, each with its position.

use std::fmt::Display;
use std::net::IpAddr;

use image::bond::{self, MODE, MODES};
use image::mac::Mac;
use image::network::masked;
use serde_json::{Map, Value};

use super::{Addressing, How, Kind, Link, Network, Route};

/// The size limit of network data, in bytes.
const LIMIT: usize = 1 << 20;

/// Reads `network_data.json`; `name` is its name in messages.
///
/// # Errors
/// Every mistake, each as one line: the file, the position in it, what was found and what was expected.
pub fn read(text: &[u8], name: &str) -> Result<Network, Vec<String>> {
    if text.len() > LIMIT {
        return Err(vec![format!("{name}: it is longer than {LIMIT} bytes")]);
    }
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        vec![format!("{name}:{line}:{column}: not JSON")]
    })?;
    let mut reader = Reader::default();
    let mut network = Network::default();
    // Nova writes null where a machine has no network.
    if !value.is_null() {
        let entries = |reader: &mut Reader, key: &str| reader.list(&value[key], key);
        for (at, link) in entries(&mut reader, "links") {
            if let Some(link) = reader.link(&link, &at) {
                reader.add_link(&mut network, link, &at);
            }
        }
        reader.check_links(&network);
        for (at, one) in entries(&mut reader, "networks") {
            let addressing = reader.addressing(&one, &at, &network);
            network.addressings.extend(addressing);
            reader.name_servers(&one, &at, &mut network.resolvers);
        }
        reader.name_servers(&value, "", &mut network.resolvers);
    }
    if !value.is_null() && !value.is_object() {
        reader.wrong("", &"no object", "links, networks and services");
    }
    match reader.wrong.is_empty() {
        true => Ok(network),
        false => {
            let whole = |line: String| format!("{name}: {line}");
            Err(reader.wrong.into_iter().map(whole).collect())
        }
    }
}

/// The mistakes so far.
#[derive(Default)]
struct Reader {
    wrong: Vec<String>,
}

impl Reader {
    fn wrong(&mut self, at: &str, found: &dyn Display, expected: &str) {
        let place = if at.is_empty() {
            String::new()
        } else {
            format!("{at}: ")
        };
        self.wrong
            .push(format!("{place}found {found}, expected {expected}"));
    }

    /// The entries of a list with their positions; absent and null are empty.
    fn list(&mut self, value: &Value, at: &str) -> Vec<(String, Value)> {
        match value {
            Value::Null => Vec::new(),
            Value::Array(entries) => {
                let place = |(i, one): (usize, &Value)| (format!("{at}[{i}]"), one.clone());
                entries.iter().enumerate().map(place).collect()
            }
            other => {
                self.wrong(at, other, "a list");
                Vec::new()
            }
        }
    }

    fn text(&mut self, value: &Value, at: &str, key: &str) -> Option<String> {
        match &value[key] {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            other => {
                self.wrong(&format!("{at}.{key}"), other, "a text");
                None
            }
        }
    }

    /// A text that may be absent, read by `parse`.
    fn parsed<T>(
        &mut self,
        value: &Value,
        at: &str,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let found = match &value[key] {
            Value::Null => return None,
            Value::String(text) => parse(text),
            Value::Number(number) => parse(&number.to_string()),
            _ => None,
        };
        if found.is_none() {
            self.wrong(&format!("{at}.{key}"), &value[key], expected);
        }
        found
    }

    /// As `parsed`, but absence is a mistake.
    fn needed<T>(
        &mut self,
        value: &Value,
        at: &str,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        if value[key].is_null() {
            self.wrong(&format!("{at}.{key}"), &"nothing", expected);
        }
        self.parsed(value, at, key, parse, expected)
    }

    fn mac(&mut self, value: &Value, at: &str, key: &str) -> Option<Mac> {
        let expected = "an Ethernet address as 52:54:00:12:34:56";
        self.parsed(value, at, key, |text| text.parse().ok(), expected)
    }

    fn link(&mut self, value: &Value, at: &str) -> Option<Link> {
        let id = self.text(value, at, "id");
        let mtu = |text: &str| text.parse().ok().filter(|mtu| (68..=65_535).contains(mtu));
        let mtu = self.parsed(value, at, "mtu", mtu, "68 to 65535 bytes");
        let mut name = None;
        let (mac, kind) = match self.text(value, at, "type")?.as_str() {
            "bond" => (
                self.mac(value, at, "ethernet_mac_address"),
                self.bond(value, at),
            ),
            "vlan" => (
                self.mac(value, at, "vlan_mac_address"),
                self.vlan(value, at),
            ),
            // The hypervisor's type of the device: phy, vif, ovs, bridge, tap, …
            _ => {
                let mac = self.mac(value, at, "ethernet_mac_address");
                if value["ethernet_mac_address"].is_null() {
                    name = self.interface(value, at);
                }
                (mac, Some(Kind::Physical))
            }
        };
        Some(Link {
            id: id?,
            mac,
            name,
            mtu,
            kind: kind?,
        })
    }

    /// The name of a device without an Ethernet address.
    fn interface(&mut self, value: &Value, at: &str) -> Option<String> {
        if value["name"].is_null() {
            let expected = "the Ethernet address by which the device is known";
            self.wrong(&format!("{at}.ethernet_mac_address"), &"nothing", expected);
        }
        let own = |text: &str| is_interface_name(text).then(|| text.to_owned());
        self.parsed(value, at, "name", own, "the name of one interface")
    }

    fn bond(&mut self, value: &Value, at: &str) -> Option<Kind> {
        let mode = |text: &str| bond::named(MODE, text).ok();
        let mode = self.needed(value, at, "bond_mode", mode, &MODES.join(", "));
        let mut members = Vec::new();
        for (at, member) in self.list(&value["bond_links"], &format!("{at}.bond_links")) {
            match member {
                Value::String(member) => members.push(member),
                other => self.wrong(&at, &other, "the id of a link"),
            }
        }
        if members.is_empty() {
            self.wrong(&format!("{at}.bond_links"), &"nothing", "the ids of links");
        }
        // Before all others, as the kernel wants it.
        let mut options = vec![(MODE.to_owned(), mode?)];
        for (key, option) in value.as_object().into_iter().flat_map(Map::iter) {
            let Some(own) = key
                .strip_prefix("bond_")
                .filter(|own| !["mode", "links"].contains(own))
            else {
                continue;
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-+.,:".contains(c);
            let word = |text: &str| !text.is_empty() && text.chars().all(plain);
            let text = match option {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => String::new(),
            };
            let is_name = own.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') && word(own);
            match bond::named(own, &text)
                .ok()
                .filter(|_| is_name && word(&text))
            {
                Some(text) => options.push((own.to_owned(), text)),
                None => self.wrong(&format!("{at}.{key}"), option, "an option of a bond"),
            }
        }
        Some(Kind::Bond { members, options })
    }

    fn vlan(&mut self, value: &Value, at: &str) -> Option<Kind> {
        let number = |text: &str| text.parse().ok().filter(|id| (1..=4094).contains(id));
        let number = self.needed(value, at, "vlan_id", number, "1 to 4094");
        Some(Kind::Vlan {
            parent: self.text(value, at, "vlan_link")?,
            number: number?,
        })
    }

    fn add_link(&mut self, network: &mut Network, link: Link, at: &str) {
        let same = |other: &&Link| other.id == link.id;
        if network.links.iter().any(|other| same(&other)) {
            let found = format!("a second link {:?}", link.id);
            return self.wrong(&format!("{at}.id"), &found, "another id");
        }
        let twin = |other: &Link| {
            other.kind == Kind::Physical
                && link.kind == Kind::Physical
                && (&other.mac, &other.name) == (&link.mac, &link.name)
        };
        if let Some(name) = link
            .name
            .as_ref()
            .filter(|_| network.links.iter().any(twin))
        {
            let found = format!("a second device {name:?}");
            self.wrong(&format!("{at}.name"), &found, "another name");
        }
        if let Some(mac) = link.mac.filter(|_| network.links.iter().any(twin)) {
            let found = format!("a second device with {mac}");
            self.wrong(
                &format!("{at}.ethernet_mac_address"),
                &found,
                "another address",
            );
        }
        network.links.push(link);
    }

    /// Checks that members and parents of links exist, and are of a kind that the kernel accepts.
    fn check_links(&mut self, network: &Network) {
        let find = |id: &String| network.links.iter().find(|link| link.id == *id);
        let is_device = |id: &String| find(id).is_some_and(|link| link.kind == Kind::Physical);
        let is_vlan = |link: &Link| matches!(link.kind, Kind::Vlan { .. });
        let may_be_below = |id: &String| find(id).is_some_and(|link| !is_vlan(link));
        for link in &network.links {
            let (below, key, expected): (Vec<&String>, _, _) = match &link.kind {
                Kind::Physical => continue,
                Kind::Bond { members, .. } => {
                    let wrong = members.iter().filter(|id| !is_device(id)).collect();
                    (wrong, "bond_links", "ids of devices")
                }
                Kind::Vlan { parent, .. } => {
                    let wrong = Some(parent)
                        .into_iter()
                        .filter(|id| !may_be_below(id))
                        .collect();
                    (wrong, "vlan_link", "the id of a device or a bond")
                }
            };
            for id in below {
                let place = format!("the link {:?}, {key}", link.id);
                self.wrong(&place, &format!("{id:?}"), expected);
            }
        }
    }

    fn addressing(&mut self, value: &Value, at: &str, network: &Network) -> Option<Addressing> {
        let link = self.text(value, at, "link");
        if let Some(link) = link
            .as_ref()
            .filter(|id| network.links.iter().all(|l| l.id != **id))
        {
            self.wrong(
                &format!("{at}.link"),
                &format!("{link:?}"),
                "the id of a link",
            );
        }
        let how = match self.text(value, at, "type")?.as_str() {
            "ipv4" => self.fixed(value, at, true),
            "ipv6" => self.fixed(value, at, false),
            "ipv4_dhcp" => Some(How::Dhcp4),
            "ipv6_dhcp" => Some(How::Six),
            "ipv6_dhcpv6-stateful" => Some(How::Dhcp6),
            "ipv6_slaac" | "ipv6_dhcpv6-stateless" => Some(How::Routers),
            other => {
                let expected = "ipv4, ipv4_dhcp, ipv6, ipv6_dhcp, ipv6_slaac, \
                                ipv6_dhcpv6-stateless or ipv6_dhcpv6-stateful";
                self.wrong(&format!("{at}.type"), &format!("{other:?}"), expected);
                None
            }
        };
        let mut routes = Vec::new();
        for (at, route) in self.list(&value["routes"], &format!("{at}.routes")) {
            routes.extend(self.route(&route, &at));
        }
        Some(Addressing {
            link: link?,
            how: how?,
            routes,
        })
    }

    fn fixed(&mut self, value: &Value, at: &str, four: bool) -> Option<How> {
        let text = self.text(value, at, "ip_address")?;
        let (address, length) = text.split_once('/').unwrap_or((&text, ""));
        let parsed: Option<IpAddr> = address.parse().ok();
        let Some(address) = parsed.filter(|address| address.is_ipv4() == four) else {
            let expected = if four {
                "an IPv4 address"
            } else {
                "an IPv6 address"
            };
            self.wrong(&format!("{at}.ip_address"), &format!("{text:?}"), expected);
            return None;
        };
        let found = match length {
            "" => self.prefix(value, at, address)?,
            length => length
                .parse()
                .ok()
                .filter(|length| *length <= bits(address))
                .or_else(|| {
                    self.wrong(
                        &format!("{at}.ip_address"),
                        &format!("{text:?}"),
                        "ADDRESS/LENGTH",
                    );
                    None
                })?,
        };
        Some(How::Fixed(address, found))
    }

    /// `netmask`: a mask or the length of a prefix.
    fn prefix(&mut self, value: &Value, at: &str, of: IpAddr) -> Option<u8> {
        let length = |text: &str| match text.parse::<u8>() {
            Ok(length) => Some(length).filter(|length| *length <= bits(of)),
            Err(_) => mask_length(text.parse().ok()?, of),
        };
        self.needed(value, at, "netmask", length, &format!("a netmask for {of}"))
    }

    fn route(&mut self, value: &Value, at: &str) -> Option<Route> {
        let address = |text: &str| text.parse::<IpAddr>().ok();
        let network = self.needed(value, at, "network", address, "an address");
        let gateway = self.needed(value, at, "gateway", address, "an address");
        let prefix = network.and_then(|network| self.prefix(value, at, network));
        let (network, gateway) = (network?, gateway?);
        if network.is_ipv4() != gateway.is_ipv4() {
            let expected = format!("an address of the version of {network}");
            self.wrong(&format!("{at}.gateway"), &gateway, &expected);
            return None;
        }
        let prefix = prefix?;
        Some(Route {
            network: masked(network, prefix),
            prefix,
            gateway,
        })
    }

    /// `services` and `dns_nameservers`, at the top level or of one network. Services of other types are ignored.
    fn name_servers(&mut self, value: &Value, at: &str, out: &mut Vec<IpAddr>) {
        let below = |key: &str| match at {
            "" => key.to_owned(),
            at => format!("{at}.{key}"),
        };
        let mut found = Vec::new();
        for (at, service) in self.list(&value["services"], &below("services")) {
            if service["type"] == "dns" {
                found.push((format!("{at}.address"), service["address"].clone()));
            }
        }
        found.extend(self.list(&value["dns_nameservers"], &below("dns_nameservers")));
        for (at, server) in found {
            match server.as_str().and_then(|text| text.parse().ok()) {
                Some(server) if out.contains(&server) => {}
                Some(server) => out.push(server),
                None => self.wrong(&at, &server, "the address of a name server"),
            }
        }
    }
}

/// Whether a text is the name of an interface, at most 15 bytes (`IFNAMSIZ` in `linux/if.h`), and no pattern for names.
fn is_interface_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=15).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(plain)
}

/// Length of an address in bits.
fn bits(of: IpAddr) -> u8 {
    if of.is_ipv4() { 32 } else { 128 }
}

/// The length of the prefix of a mask; none if it is not a mask for such an address.
fn mask_length(mask: IpAddr, of: IpAddr) -> Option<u8> {
    let (ones, zeros) = match mask {
        IpAddr::V4(mask) if of.is_ipv4() => (
            mask.to_bits().leading_ones(),
            mask.to_bits().trailing_zeros(),
        ),
        IpAddr::V6(mask) if of.is_ipv6() => (
            mask.to_bits().leading_ones(),
            mask.to_bits().trailing_zeros(),
        ),
        _ => return None,
    };
    // In a mask without a one bit, all bits are trailing zeros.
    let whole = ones + zeros == u32::from(bits(of));
    u8::try_from(ones).ok().filter(|_| whole)
}
