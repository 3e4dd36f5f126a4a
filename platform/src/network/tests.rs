use super::*;

/// As Nova writes it for an instance: a port of Open vSwitch with a DHCP subnet and a fixed one of version 6.
const INSTANCE: &str = r#"{
  "links": [{"id": "tap68f096f7-81", "vif_id": "68f096f7-8155-4cfc-8b87-dedb565cc2eb", "type": "ovs", "mtu": 1450,
    "ethernet_mac_address": "fa:16:3e:99:59:c6"}],
  "networks": [
    {"id": "network0", "type": "ipv4_dhcp", "link": "tap68f096f7-81", "network_id": "dd30bcfe"},
    {"id": "network1", "type": "ipv6", "link": "tap68f096f7-81", "network_id": "dd30bcfe",
      "ip_address": "2001:db8:9:19::c", "netmask": "ffff:ffff:ffff::", "services": [],
      "routes": [{"network": "::", "netmask": "::", "gateway": "2001:db8:9::1"}]}
  ],
  "services": [{"type": "dns", "address": "192.0.2.53"}, {"type": "dns", "address": "2001:db8::53"}]
}"#;

/// The example of the specification behind the format (nova-specs, metadata-service-network-info), with the mode that
/// Nova's schema has: two devices as a bond, a VLAN over it.
const BARE_METAL: &str = r#"{
  "links": [
    {"id": "interface2", "type": "vif", "ethernet_mac_address": "a0:36:9f:2c:e8:70", "mtu": 1500},
    {"id": "interface0", "type": "phy", "ethernet_mac_address": "a0:36:9f:2c:e8:80", "mtu": 9000},
    {"id": "interface1", "type": "phy", "ethernet_mac_address": "A0:36:9F:2C:E8:81", "mtu": null},
    {"id": "bond0", "type": "bond", "bond_links": ["interface0", "interface1"],
      "ethernet_mac_address": "a0:36:9f:2c:e8:82", "bond_mode": "802.3ad", "bond_xmit_hash_policy": "layer3+4",
      "bond_miimon": 100},
    {"id": "vlan0", "type": "vlan", "vlan_link": "bond0", "vlan_id": 101, "vlan_mac_address": "a0:36:9f:2c:e8:80"}
  ],
  "networks": [
    {"id": "private-ipv4", "type": "ipv4", "link": "interface2", "ip_address": "10.184.0.244",
      "netmask": "255.255.240.0", "routes": [
        {"network": "10.9.0.0", "netmask": "255.0.0.0", "gateway": "11.0.0.1"},
        {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "23.253.157.1"}]},
    {"id": "private-ipv6", "type": "ipv6", "link": "interface2", "ip_address": "2001:cdba::3257:9652/24",
      "routes": [{"network": "::", "netmask": "ffff:ffff:ffff::", "gateway": "fd00::1:1"}]},
    {"id": "publicnet-ipv4", "type": "ipv4", "link": "vlan0", "ip_address": "23.253.157.244",
      "netmask": "255.255.255.0", "dns_nameservers": ["192.0.2.1", "192.0.2.2"], "routes": []},
    {"id": "six", "type": "ipv6_dhcpv6-stateful", "link": "vlan0"}
  ],
  "services": [{"type": "dns", "address": "192.0.2.2"}, {"type": "ntp", "address": "clock"}]
}"#;

fn told(text: &str) -> Network {
    read(text.as_bytes(), "network_data.json").unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_instances_network_is_read() {
    let network = told(INSTANCE);
    let [link] = network.links.as_slice() else {
        panic!("{network:?}");
    };
    assert_eq!((link.kind.clone(), link.mtu), (Kind::Physical, Some(1450)));
    assert_eq!(link.mac.unwrap().to_string(), "fa:16:3e:99:59:c6");
    assert_eq!(network.addressings[0].how, How::Dhcp4);
    let fixed = &network.addressings[1];
    assert_eq!(fixed.how, How::Fixed(ip("2001:db8:9:19::c"), 48));
    let default = Route {
        network: ip("::"),
        prefix: 0,
        gateway: ip("2001:db8:9::1"),
    };
    assert_eq!(fixed.routes, [default]);
    assert_eq!(network.resolvers, [ip("192.0.2.53"), ip("2001:db8::53")]);
}

#[test]
fn a_vlan_over_a_bond_is_read() {
    let network = told(BARE_METAL);
    let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        network.links[3].kind,
        Kind::Bond {
            members: vec!["interface0".to_owned(), "interface1".to_owned()],
            options: vec![
                option("mode", "802.3ad"),
                option("miimon", "100"),
                option("xmit_hash_policy", "layer3+4"),
            ],
        }
    );
    assert_eq!(
        network.links[4].kind,
        Kind::Vlan {
            parent: "bond0".to_owned(),
            number: 101
        }
    );
    let hows: Vec<How> = network.addressings.iter().map(|one| one.how).collect();
    assert_eq!(
        hows,
        [
            How::Fixed(ip("10.184.0.244"), 20),
            How::Fixed(ip("2001:cdba::3257:9652"), 24),
            How::Fixed(ip("23.253.157.244"), 24),
            How::Dhcp6,
        ]
    );
    let prefixes = network.addressings.iter().flat_map(|one| &one.routes);
    let prefixes: Vec<(IpAddr, u8)> = prefixes.map(|one| (one.network, one.prefix)).collect();
    assert_eq!(
        prefixes,
        [(ip("10.0.0.0"), 8), (ip("0.0.0.0"), 0), (ip("::"), 48)]
    );
    assert_eq!(network.resolvers, [ip("192.0.2.1"), ip("192.0.2.2")]);
}

#[test]
fn every_way_to_an_address_is_known() {
    for (kind, how) in [
        ("ipv4_dhcp", How::Dhcp4),
        ("ipv6_dhcp", How::Six),
        ("ipv6_slaac", How::Routers),
        ("ipv6_dhcpv6-stateless", How::Routers),
        ("ipv6_dhcpv6-stateful", How::Dhcp6),
    ] {
        let network = told(&INSTANCE.replace("ipv4_dhcp", kind));
        assert_eq!(network.addressings[0].how, how, "{kind}");
    }
    assert_eq!(told("null"), Network::default());
    // Nothing to wait for.
    let bare =
        r#"{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:0a"}]}"#;
    assert_eq!(Described::read(bare.into(), "n"), Ok(None));
    assert_eq!(
        told(r#"{"links": [], "networks": null}"#),
        Network::default()
    );
}

/// A text of the network data, its replacement, and the message about it.
type Mistakes = &'static [(&'static str, &'static str, &'static str)];

const OF_INSTANCE: Mistakes = &[
    (
        "fa:16:3e:99:59:c6",
        "fa:16",
        r#"links[0].ethernet_mac_address: found "fa:16", expected an Ethernet"#,
    ),
    (
        "\"ethernet_mac_address\"",
        "\"other\"",
        "links[0].ethernet_mac_address: found nothing",
    ),
    ("1450", "67", "links[0].mtu: found 67, expected 68 to 65535"),
    (
        "\"type\": \"ovs\"",
        "\"type\": 4",
        "links[0].type: found 4, expected a text",
    ),
    (
        "ipv4_dhcp",
        "ipx",
        r#"networks[0].type: found "ipx", expected ipv4"#,
    ),
    (
        "2001:db8:9:19::c",
        "192.0.2.7",
        r#"networks[1].ip_address: found "192.0.2.7", expected an IPv6"#,
    ),
    (
        "2001:db8:9:19::c",
        "2001:db8::c/129",
        "expected ADDRESS/LENGTH",
    ),
    (
        "ffff:ffff:ffff::",
        "ffff:0:ffff::",
        "networks[1].netmask: found",
    ),
    (
        "ffff:ffff:ffff::",
        "255.255.255.0",
        "networks[1].netmask: found",
    ),
    (
        "\"gateway\": \"2001:db8:9::1\"",
        "\"gateway\": \"192.0.2.1\"",
        "routes[0].gateway: found 192.0.2.1",
    ),
    (
        "\"netmask\": \"::\"",
        "\"other\": 1",
        "networks[1].routes[0].netmask: found nothing",
    ),
    (
        "192.0.2.53",
        "dns.example",
        r#"services[0].address: found "dns.example""#,
    ),
    (
        "\"link\": \"tap68f096f7-81\", \"network_id\": \"dd30bcfe\"}",
        "\"link\": \"tap0\"}",
        r#"networks[0].link: found "tap0""#,
    ),
    ("[{\"id\"", "[7, {\"id\"", "links[0].id: found null"),
];

const OF_BARE_METAL: Mistakes = &[
    (
        "802.3ad",
        "802.1ad",
        r#"links[3].bond_mode: found "802.1ad""#,
    ),
    (
        "[\"interface0\", \"interface1\"]",
        "[\"vlan0\"]",
        r#"the link "bond0", bond_links: found "vlan0""#,
    ),
    (
        "[\"interface0\", \"interface1\"]",
        "[]",
        "links[3].bond_links: found nothing",
    ),
    (
        "\"bond_miimon\": 100",
        "\"bond_../../x\": 1",
        "links[3].bond_../../x: found 1",
    ),
    (
        "\"bond_miimon\": 100",
        "\"bond_miimon\": [1]",
        "links[3].bond_miimon: found [1]",
    ),
    (
        "101",
        "4095",
        "links[4].vlan_id: found 4095, expected 1 to 4094",
    ),
    (
        "\"vlan_link\": \"bond0\"",
        "\"vlan_link\": \"vlan0\"",
        r#"the link "vlan0", vlan_link: found "vlan0""#,
    ),
    (
        "\"id\": \"interface0\"",
        "\"id\": \"interface2\"",
        "links[1].id: found a second link",
    ),
    (
        "2c:e8:70",
        "2c:e8:80",
        "links[1].ethernet_mac_address: found a second device with",
    ),
];

#[test]
fn every_mistake_is_told_with_its_place() {
    for (whole, mistakes) in [(INSTANCE, OF_INSTANCE), (BARE_METAL, OF_BARE_METAL)] {
        for (from, to, expected) in mistakes {
            let text = whole.replace(from, to);
            assert_ne!(text, whole, "{from}");
            let wrong = read(text.as_bytes(), "network_data.json").unwrap_err();
            let wrong = wrong.join("\n");
            assert!(wrong.contains(expected), "{from}: {wrong}");
            assert!(wrong.starts_with("network_data.json: "), "{wrong}");
        }
    }
    // All mistakes at once.
    let text = INSTANCE.replace("1450", "1").replace("ipv4_dhcp", "ipx");
    assert_eq!(read(text.as_bytes(), "n").unwrap_err().len(), 2);
    for (text, expected) in [
        ("{", "n:1:1: not JSON"),
        ("[]", "n: found no object"),
        ("{\"links\": 1}", "n: links: found 1"),
    ] {
        assert_eq!(
            read(text.as_bytes(), "n").unwrap_err()[0].find(expected),
            Some(0),
            "{text}"
        );
    }
}
