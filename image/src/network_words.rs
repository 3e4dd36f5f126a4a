//! Parser of the network keys on the kernel command line: `ip=`, `vlan=`, `bond=`, `ifname=`, `rd.route=` and
//! `nameserver=`, in the forms of dracut.cmdline(7) and systemd-network-generator(8).

use std::net::IpAddr;

use crate::bond;
use crate::mac::Mac;
use crate::network::{
    Bond, HOST_NAME_LENGTH, Interface, Method, Network, Route, Vlan, is_host_name, masked,
};

/// The kernel's limit on names of interfaces, without the final NUL (`IFNAMSIZ`).
const NAME_LENGTH: usize = 15;
/// The keys.
const KEYS: &[&str] = &["ip", "vlan", "bond", "ifname", "rd.route", "nameserver"];

impl Network {
    /// Whether a key of the command line belongs to the network.
    #[must_use]
    pub fn owns(key: &str) -> bool {
        KEYS.contains(&key)
    }

    /// Parses one word of the command line, `key=value`, whose key is one of the network keys.
    ///
    /// # Errors
    /// The invalid part of the value, and what was expected.
    pub fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        // `words` stores the word as it is, without quotes.
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"';
        if value.contains(odd) {
            let shown = value.escape_debug();
            return Err(format!(
                "{key}={shown}: it contains a space, a quote or a control character"
            ));
        }
        let taken = match key {
            "ip" => self.ip(value),
            "vlan" => vlan(value).map(|vlan| self.vlans.push(vlan)),
            "bond" => bonded(value).map(|bond| self.bonds.push(bond)),
            "rd.route" => route(value).map(|route| self.routes.push(route)),
            "nameserver" => address(value).map(|address| self.resolvers.push(address)),
            "ifname" => ifname(value).map(|pair| self.names.push(pair)),
            _ => Ok(()),
        };
        taken.map_err(|wrong| format!("{key}={value}: {wrong}"))?;
        self.words.push(format!("{key}={value}"));
        Ok(())
    }

    fn ip(&mut self, value: &str) -> Result<(), String> {
        let fields = split(value)?;
        let field = |at: usize| fields.get(at).map_or("", String::as_str);
        let mut one = Interface::default();
        match fields.len() {
            1 => one.method = method(field(0))?,
            // An interface and how it gets its address; an Ethernet address has colons of its own.
            _ if method(field(1)).is_ok() => {
                one.name = Some(name(field(0))?);
                one.method = method(field(1))?;
                one.mtu = optional(field(2), mtu)?;
                one.mac = optional(&fields[3.min(fields.len())..].join(":"), mac)?;
            }
            _ => self.long(&fields, &mut one)?,
        }
        // The image and a loader's script may both have the word.
        if self.interfaces.contains(&one) {
            return Ok(());
        }
        let double = |other: &Interface| other.name == one.name && other.name.is_none();
        if self.interfaces.iter().any(double) {
            return Err("a second one without an interface; expected its name".to_owned());
        }
        self.interfaces.push(one);
        Ok(())
    }

    /// `client:peer:gateway:netmask:hostname:interface:method[:mtu[:mac]]`, or with name servers as the last fields.
    fn long(&mut self, fields: &[String], one: &mut Interface) -> Result<(), String> {
        let field = |at: usize| fields.get(at).map_or("", String::as_str);
        if fields.len() < 6 {
            return Err(form());
        }
        let client = optional(field(0), address)?;
        one.peer = optional(field(1), address)?;
        one.gateway = optional(field(2), address)?;
        one.addresses = match (client, field(3)) {
            (None, "") => Vec::new(),
            (None, mask) => return Err(format!("a netmask {mask} without an address")),
            (Some(address), mask) => vec![(address, prefix(address, mask)?)],
        };
        if let (Some((address, _)), Some(gateway)) = (one.addresses.first(), one.gateway)
            && address.is_ipv4() != gateway.is_ipv4()
        {
            return Err(format!(
                "address {address} and gateway {gateway} are of different versions"
            ));
        }
        one.hostname = optional(field(4), hostname)?;
        one.name = optional(field(5), name)?;
        one.method = match field(6) {
            "" if !one.addresses.is_empty() => Method::Off,
            "" => Method::Dhcp4,
            word => method(word)?,
        };
        if let Ok(server) = address(field(7)) {
            self.resolvers.push(server);
            self.resolvers.extend(optional(field(8), address)?);
            // A time server may follow; systemd-timesyncd has its own.
            return Ok(());
        }
        one.mtu = optional(field(7), mtu)?;
        one.mac = optional(&fields[8.min(fields.len())..].join(":"), mac)?;
        Ok(())
    }
}

fn form() -> String {
    "expected METHOD, INTERFACE:METHOD[:MTU[:MAC]] or \
     ADDRESS:[PEER]:[GATEWAY]:NETMASK:[HOSTNAME]:[INTERFACE]:METHOD[:MTU[:MAC]]"
        .to_owned()
}

/// Splits at colons outside brackets, and removes the brackets.
fn split(value: &str) -> Result<Vec<String>, String> {
    let (mut out, mut field, mut inside) = (Vec::new(), String::new(), false);
    for c in value.chars() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            ':' if !inside => out.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    if inside {
        return Err("a bracket is not closed".to_owned());
    }
    out.push(field);
    Ok(out)
}

fn optional<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match text {
        "" => Ok(None),
        text => read(text).map(Some),
    }
}

fn hostname(text: &str) -> Result<String, String> {
    match text.len() <= HOST_NAME_LENGTH && is_host_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text} is not a host name")),
    }
}

fn method(text: &str) -> Result<Method, String> {
    Ok(match text {
        "dhcp" | "on" | "any" | "dhcp4" | "single-dhcp" => Method::Dhcp4,
        "dhcp6" => Method::Dhcp6,
        "auto6" => Method::Auto6,
        "either6" => Method::Either6,
        "both" => Method::Both,
        "off" | "none" | "static" | "link-local" | "link6" => Method::Off,
        _ => {
            return Err(format!(
                "{text:?} is not a method; expected dhcp, dhcp6, auto6, either6, both or off"
            ));
        }
    })
}

fn address(text: &str) -> Result<IpAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse()
        .map_err(|_| format!("{text:?} is not an address; expected as 192.0.2.1 or [2001:db8::1]"))
}

/// A netmask, as a mask or as the length of its prefix; without one, the full length of the address.
fn prefix(address: IpAddr, mask: &str) -> Result<u8, String> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let wrong =
        || format!("{mask:?} is not a netmask of {address}; expected as 24 or 255.255.255.0");
    if mask.is_empty() {
        return Ok(bits);
    }
    if let Ok(length) = mask.parse::<u8>() {
        return (length <= bits).then_some(length).ok_or_else(wrong);
    }
    let IpAddr::V4(mask) = mask.parse().map_err(|_| wrong())? else {
        return Err(wrong());
    };
    let mask = u32::from(mask);
    let length = mask.leading_ones();
    let whole = mask.checked_shl(length).unwrap_or(0) == 0;
    u8::try_from(length)
        .ok()
        .filter(|_| whole && bits == 32)
        .ok_or_else(wrong)
}

fn name(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text.len() <= NAME_LENGTH
        && text != "."
        && text != ".."
        && text
            .chars()
            .all(|c| c.is_ascii_graphic() && c != '/' && c != ':');
    if good {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not an interface name; expected 1 to {NAME_LENGTH} characters"
        ))
    }
}

fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ 68..=65_535) => Ok(mtu),
        _ => Err(format!("{text:?} is not an MTU; expected 68 to 65535")),
    }
}

fn mac(text: &str) -> Result<Mac, String> {
    text.parse()
}

fn vlan(value: &str) -> Result<Vlan, String> {
    let (own, parent) = value
        .split_once(':')
        .ok_or("expected NAME:INTERFACE, as vlan5:eth0 or eth0.5:eth0")?;
    let digits = own
        .rsplit_once('.')
        .map(|(_, digits)| digits)
        .or_else(|| own.strip_prefix("vlan"))
        .unwrap_or_default();
    let id = digits
        .parse()
        .ok()
        .filter(|id| (1..=4094).contains(id))
        .ok_or_else(|| {
            format!("{own:?} has no VLAN number (1 to 4094); expected as vlan5 or eth0.5")
        })?;
    Ok(Vlan {
        name: name(own)?,
        id,
        parent: name(parent)?,
    })
}

fn bonded(value: &str) -> Result<Bond, String> {
    let fields = split(value)?;
    let field = |at: usize| fields.get(at).map_or("", String::as_str);
    if fields.len() > 4 {
        return Err("expected NAME[:INTERFACES[:OPTIONS[:MTU]]]".to_owned());
    }
    let list = |text: &str, default: &str| -> Vec<String> {
        let text = if text.is_empty() { default } else { text };
        text.split(',').map(str::to_owned).collect()
    };
    let mut options = Vec::new();
    for option in list(field(2), "mode=balance-rr") {
        let (key, value) = option
            .split_once('=')
            .filter(|(key, value)| is_word(key) && !value.is_empty())
            .ok_or_else(|| {
                format!("{option:?} is not a bond option; expected as mode=active-backup")
            })?;
        options.push((key.to_owned(), bond::named(key, value)?));
    }
    Ok(Bond {
        name: name(if field(0).is_empty() {
            "bond0"
        } else {
            field(0)
        })?,
        members: list(field(1), "eth0,eth1")
            .iter()
            .map(|member| name(member))
            .collect::<Result<_, _>>()?,
        options,
        mtu: optional(field(3), mtu)?,
    })
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn route(value: &str) -> Result<Route, String> {
    let fields = split(value)?;
    let (to, gateway) = match fields.as_slice() {
        [to, gateway] | [to, gateway, _] => (to, address(gateway)?),
        _ => return Err("expected NETWORK/PREFIX:GATEWAY[:INTERFACE]".to_owned()),
    };
    let (network, mask) = to.split_once('/').unwrap_or((to, ""));
    let network = address(network)?;
    if network.is_ipv4() != gateway.is_ipv4() {
        return Err(format!(
            "network {network} and gateway {gateway} are of different versions"
        ));
    }
    let prefix = prefix(network, mask)?;
    Ok(Route {
        network: masked(network, prefix),
        prefix,
        gateway,
        interface: fields.get(2).map(|text| name(text)).transpose()?,
    })
}

fn ifname(value: &str) -> Result<(String, Mac), String> {
    let (own, mac) = value
        .split_once(':')
        .ok_or("expected NAME:ETHERNET-ADDRESS")?;
    Ok((name(own)?, mac.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Network, String> {
        let mut out = Network::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap();
            out.take(key, value)?;
        }
        Ok(out)
    }

    fn one(word: &str) -> Interface {
        read(&[word]).unwrap().interfaces.remove(0)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_forms_of_ip_are_read() {
        assert_eq!(one("ip=dhcp").method, Method::Dhcp4);
        assert_eq!(one("ip=eth0:dhcp6").method, Method::Dhcp6);
        assert_eq!(one("ip=either6").method, Method::Either6);
        assert_eq!(one("ip=both").method, Method::Both);
        let named = one("ip=eth0:dhcp6:9000:52:54:00:12:34:56");
        assert_eq!(named.name.as_deref(), Some("eth0"));
        assert_eq!((named.method, named.mtu), (Method::Dhcp6, Some(9000)));
        assert_eq!(named.mac.unwrap().to_string(), "52:54:00:12:34:56");
        let fixed = one("ip=192.0.2.7::192.0.2.1:255.255.255.0:node7:eth1:none:1400");
        assert_eq!(fixed.addresses, [(ip("192.0.2.7"), 24)]);
        assert_eq!(fixed.gateway, Some(ip("192.0.2.1")));
        assert_eq!(fixed.hostname.as_deref(), Some("node7"));
        assert_eq!((fixed.method, fixed.mtu), (Method::Off, Some(1400)));
        let six = one("ip=[2001:db8::7]::[2001:db8::1]:64::eth0:off");
        assert_eq!(six.addresses, [(ip("2001:db8::7"), 64)]);
        assert_eq!(six.gateway, Some(ip("2001:db8::1")));
        let mac = one("ip=192.0.2.7:::24::eth1:off::52-54-00-12-34-56");
        assert_eq!(mac.mac.unwrap().0[0], 0x52);
        let servers = read(&["ip=192.0.2.7:::24::eth1:off:192.0.2.53:[2001:db8::53]"]).unwrap();
        assert_eq!(servers.resolvers, [ip("192.0.2.53"), ip("2001:db8::53")]);
        assert_eq!(one("ip=:::::eth2:dhcp").method, Method::Dhcp4);
    }

    #[test]
    fn the_other_keys_are_read() {
        let network = read(&[
            "vlan=vlan0005:eth0",
            "vlan=bond0.12:bond0",
            "bond=bond0:eth0,eth1:mode=active-backup,miimon=100:1450",
            "bond=",
            "bond=bond2:eth0:mode=4,lacp_rate=1",
            "rd.route=198.51.100.9/24:192.0.2.1:eth0",
            "rd.route=[2001:db8:1::/48]:[fe80::1]",
            "nameserver=192.0.2.53",
            "nameserver=[2001:db8::53]",
            "ifname=uplink:52:54:00:12:34:56",
        ])
        .unwrap();
        assert_eq!(network.vlans[0].id, 5);
        assert_eq!(
            (network.vlans[1].id, network.vlans[1].parent.as_str()),
            (12, "bond0")
        );
        let bond = &network.bonds[0];
        assert_eq!(bond.members, ["eth0", "eth1"]);
        assert_eq!(bond.options[1], ("miimon".to_owned(), "100".to_owned()));
        assert_eq!(bond.mtu, Some(1450));
        assert_eq!(network.bonds[1].name, "bond0");
        let named: Vec<&str> = network.bonds[2]
            .options
            .iter()
            .map(|(_, value)| value.as_str())
            .collect();
        assert_eq!(named, ["802.3ad", "fast"]);
        assert_eq!(network.routes[0].interface.as_deref(), Some("eth0"));
        assert_eq!(network.routes[0].network.to_string(), "198.51.100.0");
        assert_eq!(
            (network.routes[1].prefix, network.routes[1].gateway),
            (48, ip("fe80::1"))
        );
        assert_eq!(network.resolvers.len(), 2);
        assert_eq!(network.names[0].0, "uplink");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (word, part) in [
            ("ip=dhpc", "not a method"),
            ("ip=192.0.2.7:255.255.255.0", "expected METHOD"),
            ("ip=192.0.2.7:::255.0.255.0::eth0:none", "not a netmask"),
            ("ip=192.0.2.7:::33::eth0:none", "not a netmask"),
            (
                "ip=192.0.2.7::[2001:db8::1]:24::eth0:none",
                "different versions",
            ),
            ("ip=:::24::eth0:none", "without an address"),
            ("ip=192.0.2.7:::24:-node7:eth0:off", "not a host name"),
            (
                "ip=192.0.2.7:::24:node7..example:eth0:off",
                "not a host name",
            ),
            ("ip=[2001:db8::7", "not closed"),
            ("ip=eth0:dhcp:67", "not an MTU"),
            ("ip=eth0:dhcp::12:34", "not an Ethernet address"),
            ("ip=a-name-that-is-too-long:dhcp", "not an interface name"),
            ("vlan=eth0", "expected NAME:INTERFACE"),
            ("vlan=vlan4095:eth0", "no VLAN number"),
            ("bond=bond0:eth0:mode", "not a bond option"),
            ("bond=bond0:eth0:mode=lacp", "not a mode"),
            ("rd.route=198.51.100.0/24", "expected NETWORK"),
            (
                "rd.route=198.51.100.0/24:[2001:db8::1]",
                "different versions",
            ),
            ("nameserver=dns.example", "not an address"),
            ("ifname=eth9:xx", "not an Ethernet address"),
            ("ifname=eth9:52:54:00:12:34:+6", "not an Ethernet address"),
        ] {
            let wrong = read(&[word]).unwrap_err();
            assert!(wrong.contains(part) && wrong.starts_with(word), "{wrong}");
        }
        assert!(read(&["ip=dhcp", "ip=auto6"]).is_err());
        let twice = read(&["ip=dhcp", "ip=eth0:dhcp6", "ip=dhcp"]).unwrap();
        assert_eq!(twice.interfaces.len(), 2);
        // Found by a fuzzer: a word with a space was written again as two words.
        for word in [
            "ip=::::)b\0\u{5}oi ip=::",
            "bond=bond0:eth0:a=\"b\"",
            "bond=bond0:eth0:mode=1\t2",
        ] {
            let wrong = read(&[word]).unwrap_err();
            assert!(wrong.contains("a control character"), "{wrong}");
            assert!(!wrong.contains(char::is_control), "{wrong:?}");
        }
    }

    #[test]
    fn interfaces_below_others_and_unnamed_ones_stay_off() {
        let network = read(&["vlan=vlan5:eth0", "ip=vlan5:dhcp"]).unwrap();
        assert_eq!(
            network.interface(&["vlan5".to_owned()]).method,
            Method::Dhcp4
        );
        assert_eq!(network.interface(&["eth0".to_owned()]).method, Method::Off);
        assert_eq!(network.interface(&["eth1".to_owned()]).method, Method::Off);
        let all = read(&["ip=auto6"]).unwrap();
        assert_eq!(all.interface(&["eth1".to_owned()]).method, Method::Auto6);
        assert_eq!(
            Network::default().interface(&["eth0".to_owned()]).method,
            Method::Both
        );
    }
}
