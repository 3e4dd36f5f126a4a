//! Files as Proxmox VE and users of KubeVirt write them.

use std::net::IpAddr;

use crate::network::{How, Network, Route};

use super::*;

fn read_text(text: &str) -> Result<Described, Vec<String>> {
    let mut notes = Vec::new();
    read(text.as_bytes(), "the drive's network-config", &mut notes).ok_or(notes)
}

/// What the network data of a file says.
fn data(text: &str) -> Network {
    crate::network::read(&read_text(text).unwrap().text, "n").unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn default(gateway: &str) -> Route {
    let gateway = address(gateway);
    let all = if gateway.is_ipv4() { "0.0.0.0" } else { "::" };
    Route {
        network: address(all),
        prefix: 0,
        gateway,
    }
}

const PROXMOX: &str = "\
version: 1
config:
    - type: physical
      name: eth0
      mac_address: 'BC:24:11:00:00:01'
      subnets:
      - type: static
        address: '192.0.2.5'
        netmask: '255.255.255.0'
        gateway: '192.0.2.1'
      - type: static6
        address: '2001:db8::5/64'
        gateway: '2001:db8::1'
    - type: physical
      name: eth1
      mac_address: 'bc:24:11:00:00:02'
      subnets:
      - type: dhcp4
      - type: ipv6_slaac
    - type: nameserver
      address:
      - '198.51.100.53'
      search:
      - 'nodes.example'
";

#[test]
fn version_1_is_what_proxmox_writes() {
    let network = data(PROXMOX);
    let macs: Vec<String> = network
        .links
        .iter()
        .map(|link| link.mac.unwrap().to_string())
        .collect();
    assert_eq!(macs, ["bc:24:11:00:00:01", "bc:24:11:00:00:02"]);
    let ways: Vec<(&str, How)> = network
        .addressings
        .iter()
        .map(|one| (one.link.as_str(), one.how))
        .collect();
    assert_eq!(
        ways,
        [
            ("eth0", How::Fixed(address("192.0.2.5"), 24)),
            ("eth0", How::Fixed(address("2001:db8::5"), 64)),
            ("eth1", How::Dhcp4),
            ("eth1", How::Routers),
        ]
    );
    assert_eq!(network.addressings[0].routes, [default("192.0.2.1")]);
    assert_eq!(network.addressings[1].routes, [default("2001:db8::1")]);
    assert_eq!(network.resolvers, [address("198.51.100.53")]);
    // What is kept for later boots says the same.
    let kept = read_text(PROXMOX).unwrap();
    let again = Described::read(kept.text.clone(), "n").unwrap().unwrap();
    assert_eq!(again, kept);
}

#[test]
fn version_2_is_netplans() {
    let text = "\
network:
  version: 2
  ethernets:
    uplink:
      match:
        macaddress: '52:54:00:00:00:0a'
      mtu: 1400
      addresses:
        - 192.0.2.6/24
        - 2001:db8::6/64: {lifetime: 0}
      gateway6: 2001:db8::1
      routes:
        - to: default
          via: 192.0.2.1
        - to: 198.51.100.0/24
          via: 192.0.2.2
      nameservers:
        addresses: [198.51.100.53]
    other:
      match: {macaddress: '52:54:00:00:00:0b'}
      dhcp4: true
      dhcp6: yes
";
    let network = data(text);
    let uplink = network.links.iter().find(|link| link.id == "uplink");
    assert_eq!(uplink.unwrap().mtu, Some(1400));
    let ways: Vec<(&str, How)> = network
        .addressings
        .iter()
        .map(|one| (one.link.as_str(), one.how))
        .collect();
    let fixed = |text: &str, length| How::Fixed(address(text), length);
    for way in [
        ("uplink", fixed("192.0.2.6", 24)),
        ("uplink", fixed("2001:db8::6", 64)),
        ("other", How::Dhcp4),
        ("other", How::Six),
    ] {
        assert!(ways.contains(&way), "{ways:?}");
    }
    let routes = &network
        .addressings
        .iter()
        .find(|one| !one.routes.is_empty())
        .unwrap()
        .routes;
    let subnet = Route {
        network: address("198.51.100.0"),
        prefix: 24,
        gateway: address("192.0.2.2"),
    };
    assert_eq!(
        *routes,
        [default("2001:db8::1"), default("192.0.2.1"), subnet]
    );
    assert_eq!(network.resolvers, [address("198.51.100.53")]);
}

#[test]
fn a_device_without_an_address_is_known_by_its_name() {
    // KubeVirt's example, netplan's `match`, and version 1.
    for (text, name) in [
        (
            "version: 2\nethernets:\n  enp1s0:\n    addresses: [192.0.2.6/24]\n    gateway4: 192.0.2.1\n",
            "enp1s0",
        ),
        (
            "version: 2\nethernets:\n  id0:\n    match: {name: ens192}\n    addresses: [192.0.2.6/24]\n    gateway4: 192.0.2.1\n",
            "ens192",
        ),
        (
            "version: 1\nconfig:\n- type: physical\n  name: eth0\n  subnets:\n  - {type: static, address: 192.0.2.6/24, gateway: 192.0.2.1}\n",
            "eth0",
        ),
    ] {
        let kept = read_text(text).unwrap();
        let plan = kept.plan();
        assert_eq!(plan.aliases, []);
        assert_eq!(plan.interfaces[0].name.as_deref(), Some(name));
        assert_eq!(plan.interfaces[0].addresses, [(address("192.0.2.6"), 24)]);
        assert_eq!(plan.routes[0].interface.as_deref(), Some(name));
        let again = Described::read_kept(kept.text.clone(), "n").unwrap();
        assert_eq!(again, Some(kept));
    }
    // A VLAN above it, and an address in `match`, which is the stricter of two.
    let text = "version: 2\nethernets: {ens192: {}, b: {match: {name: x, macaddress: '52:54:00:00:00:0B'}, dhcp4: true}}\n\
                vlans: {v: {id: 5, link: ens192, dhcp4: true}}\n";
    let plan = read_text(text).unwrap().plan();
    assert_eq!(plan.vlans[0].parent, "ens192");
    assert_eq!(plan.aliases[0].0, "enx52540000000b");
}

#[test]
fn the_loopback_device_is_no_link() {
    // As cloud-init's converters write it.
    let one = PROXMOX.replace(
        "config:\n",
        "config:\n    - type: loopback\n      name: lo\n      subnets:\n      - type: loopback\n        dns_nameservers: [192.0.2.53]\n",
    );
    let (plain, found) = (data(PROXMOX), data(&one));
    assert_eq!(found.links, plain.links);
    assert_eq!(found.addressings, plain.addressings);
    assert!(found.resolvers.contains(&address("192.0.2.53")));
    let two = data(
        "version: 2\nethernets:\n  lo: {addresses: [192.0.2.9/32], nameservers: {addresses: [192.0.2.53]}}\n  ens3: {dhcp4: true}\n",
    );
    assert_eq!(two.links.len(), 1);
    assert_eq!(two.addressings[0].link, "ens3");
    assert_eq!(two.resolvers, [address("192.0.2.53")]);
}

/// A bond of two devices with a VLAN above it, as cloud-init's documentation writes both versions.
const BONDED_1: &str = "\
version: 1
config:
  - {type: physical, name: a, mac_address: '52:54:00:00:00:0A'}
  - {type: physical, name: b, mac_address: '52:54:00:00:00:0b'}
  - type: bond
    name: bond7
    mac_address: '52:54:00:00:00:0a'
    mtu: 9000
    bond_interfaces: [a, b]
    params:
      bond-mode: active-backup
      bond_miimon: 100
      bond-primary: b
      bond-arp-ip-target: [192.0.2.1, 192.0.2.2]
    subnets:
      - type: dhcp4
  - type: vlan
    name: bond7.42
    vlan_link: bond7
    vlan_id: 42
    mtu: 1400
    subnets:
      - {type: static, address: 192.0.2.7/24, gateway: 192.0.2.1}
";

const BONDED_2: &str = "\
version: 2
ethernets:
  a: {match: {macaddress: '52:54:00:00:00:0a'}}
  b: {match: {macaddress: '52:54:00:00:00:0b'}}
bonds:
  bond7:
    interfaces: [a, b]
    macaddress: '52:54:00:00:00:0a'
    mtu: 9000
    dhcp4: true
    parameters:
      mode: active-backup
      mii-monitor-interval: 100
      primary: b
      arp-ip-targets: [192.0.2.1, 192.0.2.2]
vlans:
  bond7.42:
    id: 42
    link: bond7
    mtu: 1400
    addresses: [192.0.2.7/24]
    routes:
      - {to: default, via: 192.0.2.1}
";

#[test]
fn bonds_and_vlans_make_what_the_command_line_s_words_make() {
    let (a, b) = ("enx52540000000a", "enx52540000000b");
    let words = format!(
        "bond=bond0:{a},{b}:mode=active-backup,miimon=100,primary={b},arp_ip_target=192.0.2.1;192.0.2.2:9000 \
         vlan=bond0.42:bond0"
    );
    let words = image::cmdline::Cmdline::parse(&words).unwrap().network;
    let sorted = |plan: &image::network::Network| {
        let mut bonds = plan.bonds.clone();
        for bond in &mut bonds {
            bond.options.sort();
            for (_, value) in &mut bond.options {
                *value = value.replace(';', ",");
            }
        }
        bonds
    };
    for text in [BONDED_1, BONDED_2] {
        let plan = read_text(text).unwrap().plan();
        assert_eq!(sorted(&plan), sorted(&words));
        // The mode decides which other options there are.
        assert_eq!(plan.bonds[0].options[0].0, "mode");
        let vlan = &plan.vlans[0];
        assert_eq!((vlan.id, vlan.parent.as_str()), (42, "bond0"));
        let of = |name: &str| plan.interface(&[name.to_owned()]);
        assert_eq!(of("bond0").mac.unwrap().to_string(), "52:54:00:00:00:0a");
        assert_eq!(of("bond0").mtu, Some(9000));
        assert_eq!(of(&vlan.name).mtu, Some(1400));
        assert_eq!(of(&vlan.name).addresses, [(address("192.0.2.7"), 24)]);
        let (route, gateway) = (&plan.routes[0], address("192.0.2.1"));
        assert_eq!(
            (route.gateway, route.interface.as_ref()),
            (gateway, Some(&vlan.name))
        );
    }
}

#[test]
fn netplans_words_for_a_bond_become_the_kernels() {
    let options = |parameters: &str| {
        let text = BONDED_2.replace(
            "mode: active-backup",
            &format!("mode: 802.3ad\n      {parameters}"),
        );
        read_text(&text).map(|read| read.plan().bonds[0].options.clone())
    };
    for (parameter, option, value) in [
        ("lacp-rate: fast", "lacp_rate", "fast"),
        (
            "transmit-hash-policy: layer3+4",
            "xmit_hash_policy",
            "layer3+4",
        ),
        ("up-delay: 2s", "updelay", "2000"),
        ("down-delay: 200 ms", "downdelay", "200"),
        ("learn-packet-interval: 3", "lp_interval", "3"),
        ("all-members-active: true", "all_slaves_active", "1"),
        ("all-slaves-active: false", "all_slaves_active", "0"),
    ] {
        let found = options(parameter).unwrap();
        let expected = (option.to_owned(), value.to_owned());
        assert!(found.contains(&expected), "{parameter}: {found:?}");
    }
    for parameter in [
        "lacp-speed: fast",
        "up-delay: soon",
        "learn-packet-interval: 5ms",
    ] {
        let notes = options(parameter).unwrap_err();
        let key = parameter.split(':').next().unwrap();
        assert!(
            notes[0].contains(&format!("bonds.bond7.parameters.{key}")),
            "{notes:?}"
        );
    }
    // As netplan, where no mode is given.
    let text = BONDED_2.replace("mode: active-backup", "min-links: 1");
    let found = read_text(&text).unwrap().plan();
    assert!(
        found.bonds[0]
            .options
            .contains(&("mode".to_owned(), "balance-rr".to_owned()))
    );
}

#[test]
fn bonds_and_vlans_of_links_that_there_are_not_are_mistakes() {
    for (text, from, to, word) in [
        (BONDED_1, "[a, b]", "[a, c]", "\"c\""),
        (BONDED_1, "[a, b]", "[]", "bond_links"),
        (
            BONDED_1,
            "bond-mode: active-backup",
            "bond-mode: fast",
            "bond_mode",
        ),
        (BONDED_1, "bond_miimon", "miimon", "config[2].params.miimon"),
        (BONDED_1, "vlan_id: 42", "vlan_id: 4095", "vlan_id"),
        (BONDED_2, "link: bond7", "link: bond8", "\"bond8\""),
        (
            BONDED_2,
            "interfaces: [a, b]",
            "interfaces: [a, bond7.42]",
            "\"bond7.42\"",
        ),
    ] {
        let notes = read_text(&text.replace(from, to)).unwrap_err();
        assert!(
            notes.iter().any(|note| note.contains(word)),
            "{to}: {notes:?}"
        );
        assert!(notes.last().unwrap().starts_with("ignoring"), "{notes:?}");
    }
}

#[test]
fn mistakes_are_noted_all_at_once_and_the_file_is_ignored() {
    let text = PROXMOX
        .replace("bc:24:11:00:00:02", "here")
        .replace("dhcp4", "dhpc");
    let notes = read_text(&text).unwrap_err();
    for word in ["subnets[0].type: found \"dhpc\"", "ignoring the drive's"] {
        assert!(notes.iter().any(|note| note.contains(word)), "{notes:?}");
    }
    for (text, word) in [
        ("version: 3\n", "version: found \"3\""),
        ("a: [", "not YAML"),
        ("version: 1\nconfig:\n- type: bridge\n", "\"bridge\""),
        ("version: 2\nbridges: {b: {}}\n", "bridges"),
        (
            "version: 2\nethernets: {a/b: {dhcp4: true}}\n",
            "links[0].name",
        ),
        (
            "version: 2\nethernets: {a: {dhcp4: true}, b: {match: {name: a}}}\n",
            "a second device \"a\"",
        ),
        (
            "version: 2\nethernets: {a: {dhcp4: true, match: {macaddress: here}}}\n",
            "ethernet_mac_address",
        ),
        (&PROXMOX.replace("255.255.255.0", "255.0.255.0"), "netmask"),
        (&PROXMOX.replace("'192.0.2.1'", "nowhere"), "gateway"),
    ] {
        let notes = read_text(text).unwrap_err();
        assert!(notes.iter().any(|note| note.contains(word)), "{notes:?}");
    }
    // Nothing to configure is no mistake.
    for text in [
        "version: 1\nconfig: []\n",
        "",
        "\n",
        "# nothing\n",
        "{}",
        "network:\n",
        "network: {}\n",
        "network: {config: disabled}\n",
    ] {
        assert_eq!(read_text(text).unwrap_err(), [""; 0], "{text:?}");
    }
}

#[test]
fn a_device_by_a_pattern_is_left_out_and_the_rest_counts() {
    for matched in ["{name: 'en*'}", "{driver: virtio_net}", "{}"] {
        let text = format!(
            "version: 2\nethernets: {{a: {{dhcp4: true, match: {matched}}}, eth1: {{addresses: [192.0.2.6/24]}}}}\n"
        );
        let mut notes = Vec::new();
        let found = read(text.as_bytes(), "network-config", &mut notes).unwrap();
        assert_eq!(found.plan().interfaces.len(), 1);
        assert_eq!(found.plan().interfaces[0].name.as_deref(), Some("eth1"));
        assert_eq!(
            notes,
            [
                "network-config: ethernets.a is left out: its match names neither one interface nor a macaddress"
            ]
        );
    }
    // Nothing is left: the network is the usual one, DHCP on every link.
    let mut notes = Vec::new();
    let text = "version: 2\nethernets: {a: {dhcp4: true, match: {name: 'en*'}}}\n";
    assert!(read(text.as_bytes(), "network-config", &mut notes).is_none());
    assert_eq!(notes.len(), 1, "{notes:?}");
}
