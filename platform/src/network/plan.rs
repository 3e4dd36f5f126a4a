//! Plan: converts the machine's network data to the type that the kernel command line is parsed to.

use std::collections::BTreeMap;

use super::{How, Kind, Link, Network};
use data_encoding::HEXLOWER;
use image::bond::PRIMARY;
use image::network::{Bond, Interface, Method, Network as Plan, Route, Vlan};

/// The plan of a machine's network data. A device gets a name made of its Ethernet address, whatever the kernel calls
/// it, or has that by which it is known; bonds are called `bond0`, `bond1`, …, VLANs by their numbers.
pub fn plan(described: &Network) -> Plan {
    let names = names(described);
    let name = |id: &String| names.get(id).cloned().unwrap_or_default();
    // The one option whose value is a link.
    let renamed = |(key, value): &(String, String)| match names.get(value) {
        Some(name) if key == PRIMARY => (key.clone(), name.clone()),
        _ => (key.clone(), value.clone()),
    };
    let mut out = Plan {
        resolvers: described.resolvers.clone(),
        ..Plan::default()
    };
    for link in &described.links {
        let own = name(&link.id);
        match &link.kind {
            Kind::Physical => out.aliases.extend(link.mac.map(|mac| (own.clone(), mac))),
            Kind::Bond { members, options } => out.bonds.push(Bond {
                name: own.clone(),
                members: members.iter().map(name).collect(),
                options: options.iter().map(renamed).collect(),
                mtu: link.mtu,
            }),
            Kind::Vlan { parent, number } => out.vlans.push(Vlan {
                name: own.clone(),
                id: *number,
                parent: name(parent),
            }),
        }
        out.interfaces.push(interface(described, link, &own));
        let routes = of(described, link).flat_map(|one| &one.routes);
        out.routes.extend(routes.map(|route| Route {
            network: route.network,
            prefix: route.prefix,
            gateway: route.gateway,
            interface: Some(own.clone()),
        }));
    }
    out
}

fn of<'a>(described: &'a Network, link: &'a Link) -> impl Iterator<Item = &'a super::Addressing> {
    let all = described.addressings.iter();
    all.filter(move |one| one.link == link.id)
}

fn interface(described: &Network, link: &Link, name: &str) -> Interface {
    let hows: Vec<How> = of(described, link).map(|one| one.how).collect();
    let has = |wanted: How| hows.contains(&wanted);
    let six = match (has(How::Six), has(How::Dhcp6), has(How::Routers)) {
        (false, false, false) => None,
        (false, true, false) => Some(Method::Dhcp6),
        (false, false, true) => Some(Method::Auto6),
        _ => Some(Method::Either6),
    };
    let fixed = hows.iter().filter_map(|how| match how {
        How::Fixed(address, prefix) => Some((*address, *prefix)),
        _ => None,
    });
    Interface {
        name: Some(name.to_owned()),
        method: match (has(How::Dhcp4), six) {
            (false, six) => six.unwrap_or(Method::Off),
            (true, None) => Method::Dhcp4,
            (true, Some(_)) => Method::Both,
        },
        addresses: fixed.collect(),
        mtu: link.mtu,
        // A physical device is identified by its address and keeps it.
        mac: link.mac.filter(|_| link.kind != Kind::Physical),
        ..Interface::default()
    }
}

/// The name of each link by its id. The hypervisor chooses the ids, which may be too long or invalid as interface
/// names.
fn names(described: &Network) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    let mut bonds = 0;
    for link in &described.links {
        let own = match &link.kind {
            Kind::Physical => {
                let by_address = |mac: image::mac::Mac| format!("enx{}", HEXLOWER.encode(&mac.0));
                let name = link.mac.map(by_address).or_else(|| link.name.clone());
                name.unwrap_or_default()
            }
            Kind::Bond { .. } => {
                bonds += 1;
                format!("bond{}", bonds - 1)
            }
            Kind::Vlan { number, .. } => {
                let first = format!("vlan{number}");
                // The same number on two links.
                let more = (1..).map(|again| format!("{first}.{again}"));
                let mut tried = std::iter::once(first.clone()).chain(more);
                let free = tried.find(|name| out.values().all(|taken| taken != name));
                free.unwrap_or(first)
            }
        };
        out.insert(link.id.clone(), own);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Plan {
        plan(&crate::network::read(text.as_bytes(), "n").unwrap())
    }

    fn words(text: &str) -> Plan {
        image::cmdline::Cmdline::parse(text).unwrap().network
    }

    const BONDED: &str = r#"{"links": [
        {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:0a", "mtu": 9000},
        {"id": "b", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:0b", "mtu": 9000},
        {"id": "c", "type": "bond", "bond_links": ["a", "b"], "bond_mode": "active-backup", "bond_miimon": 100,
            "bond_primary": "b", "ethernet_mac_address": "52:54:00:00:00:0a"},
        {"id": "d", "type": "vlan", "vlan_link": "c", "vlan_id": 7, "vlan_mac_address": null},
        {"id": "e", "type": "vlan", "vlan_link": "b", "vlan_id": 7, "vlan_mac_address": null}],
      "networks": [
        {"id": "n0", "link": "d", "type": "ipv4", "ip_address": "192.0.2.7", "netmask": "255.255.255.0",
            "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.1"}]},
        {"id": "n1", "link": "d", "type": "ipv6_slaac"}],
      "services": [{"type": "dns", "address": "192.0.2.53"}]}"#;

    #[test]
    fn a_description_makes_what_words_make() {
        let mut found = described(BONDED);
        let (a, b) = ("enx52540000000a", "enx52540000000b");
        let mut same = words(&format!(
            "bond=bond0:{a},{b}:mode=active-backup,miimon=100,primary={b} vlan=vlan7:bond0 vlan=e.7:{b} \
             ip=192.0.2.7:::24::vlan7:auto6 rd.route=0.0.0.0/0:192.0.2.1:vlan7 nameserver=192.0.2.53"
        ));
        // The command line cannot express this name.
        same.vlans[1].name = "vlan7.1".to_owned();
        let aliases = std::mem::take(&mut found.aliases);
        assert_eq!(aliases.len(), 2);
        assert_eq!(
            aliases[0],
            (a.to_owned(), "52:54:00:00:00:0a".parse().unwrap())
        );
        assert_eq!((&found.bonds, &found.vlans), (&same.bonds, &same.vlans));
        assert_eq!(
            (&found.routes, &found.resolvers),
            (&same.routes, &same.resolvers)
        );
        let wanting = found.interfaces.iter().filter(|one| one.wants_address());
        assert_eq!(wanting.cloned().collect::<Vec<_>>(), same.interfaces);
        assert_eq!(found.interface(&[a.to_owned()]).mtu, Some(9000));
        let bond = found.interface(&["bond0".to_owned()]);
        assert_eq!(bond.mac, Some("52:54:00:00:00:0a".parse().unwrap()));
        assert!(!found.is_default() && found.is_below(&[b.to_owned()]));
    }

    #[test]
    fn every_pair_of_ways_has_its_method() {
        for (ways, method) in [
            ("", Method::Off),
            ("ipv4_dhcp", Method::Dhcp4),
            ("ipv6_dhcp", Method::Either6),
            ("ipv6_slaac", Method::Auto6),
            ("ipv6_dhcpv6-stateful", Method::Dhcp6),
            ("ipv6_dhcpv6-stateful ipv6_slaac", Method::Either6),
            ("ipv4_dhcp ipv6_dhcp", Method::Both),
            ("ipv4_dhcp ipv6_slaac", Method::Both),
        ] {
            let networks = ways.split_whitespace();
            let networks = networks.map(|way| format!(r#"{{"link": "a", "type": "{way}"}}"#));
            let networks = networks.collect::<Vec<_>>().join(",");
            let text = format!(
                r#"{{"links": [{{"id": "a", "type": "vif", "ethernet_mac_address": "52:54:00:00:00:0a"}}],
                    "networks": [{networks}]}}"#
            );
            let found = described(&text);
            assert_eq!(found.interfaces[0].method, method, "{ways}");
        }
    }
}
