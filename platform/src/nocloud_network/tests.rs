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
fn mistakes_are_noted_all_at_once_and_the_file_is_ignored() {
    let text = PROXMOX
        .replace("bc:24:11:00:00:02", "")
        .replace("dhcp4", "dhpc");
    let notes = read_text(&text).unwrap_err();
    for word in [
        "config[1]: found",
        "subnets[0].type: found \"dhpc\"",
        "ignoring the drive's",
    ] {
        assert!(notes.iter().any(|note| note.contains(word)), "{notes:?}");
    }
    for (text, word) in [
        ("version: 3\n", "version: found \"3\""),
        ("a: [", "not YAML"),
        ("version: 1\nconfig:\n- type: bond\n", "\"bond\""),
        ("version: 2\nbonds: {b: {}}\n", "bonds"),
        (
            "version: 2\nethernets: {eth0: {dhcp4: true}}\n",
            "ethernets.eth0.match",
        ),
        (&PROXMOX.replace("255.255.255.0", "255.0.255.0"), "netmask"),
        (&PROXMOX.replace("'192.0.2.1'", "nowhere"), "gateway"),
    ] {
        let notes = read_text(text).unwrap_err();
        assert!(notes.iter().any(|note| note.contains(word)), "{notes:?}");
    }
    // Nothing to configure is no mistake.
    assert_eq!(read_text("version: 1\nconfig: []\n").unwrap_err(), [""; 0]);
}
