//! Hetzner Cloud, after "Server Metadata" of its documentation.

use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

const LINKS: &str = "config:\n- mac_address: 96:00:00:00:00:01\n  name: eth0\n  subnets:\n  - ipv4: true\n    \
    type: dhcp\n  - address: 2001:db8:c17::1/64\n    gateway: fe80::1\n    ipv6: true\n    type: static\n  \
    type: physical\nversion: 1\n";

#[test]
fn a_hetzner_server_has_its_data_item_by_item() {
    let faults = vec![
        Reply::Later(429, 1),
        Reply::Status(502, ""),
        Reply::Cut(CONFIG.into(), 20),
    ];
    let server = serve(faults, |request: &Request| match request.path.as_str() {
        "/hetzner/v1/userdata" => ok(CONFIG),
        "/hetzner/v1/metadata/hostname" => ok("my-server"),
        "/hetzner/v1/metadata/instance-id" => ok("42"),
        "/hetzner/v1/metadata/public-ipv4" => ok("192.0.2.30"),
        "/hetzner/v1/metadata/availability-zone" => ok("hel1-dc2"),
        "/hetzner/v1/metadata/region" => ok("eu-central"),
        "/hetzner/v1/metadata/public-keys" => ok(format!("[\"{KEY}\"]")),
        "/hetzner/v1/metadata/private-networks" => ok(
            "- ip: 10.0.0.2\n  alias_ips: [10.0.0.3]\n  network: 10.0.0.0/16\n- ip: '10.128.0.2'\n",
        ),
        "/hetzner/v1/metadata/network-config" => ok(LINKS),
        _ => ABSENT,
    });
    let found = Bench::with(&server).obtain("hetzner").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("hetzner").unwrap(), &found.metadata),
        "AFTERBURN_HETZNER_AVAILABILITY_ZONE=hel1-dc2\n\
         AFTERBURN_HETZNER_HOSTNAME=my-server\n\
         AFTERBURN_HETZNER_INSTANCE_ID=42\n\
         AFTERBURN_HETZNER_PRIVATE_IPV4_0=10.0.0.2\n\
         AFTERBURN_HETZNER_PRIVATE_IPV4_1=10.128.0.2\n\
         AFTERBURN_HETZNER_PUBLIC_IPV4=192.0.2.30\n\
         AFTERBURN_HETZNER_PUBLIC_IPV6=2001:db8:c17::1\n\
         AFTERBURN_HETZNER_REGION=eu-central\n\
         SLIPWAY_HOSTNAME=my-server\n\
         SLIPWAY_INSTANCE_ID=42\n\
         SLIPWAY_IPV4_LOCAL=10.0.0.2\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.30\n\
         SLIPWAY_IPV6_PUBLIC=2001:db8:c17::1\n\
         SLIPWAY_PLATFORM=hetzner\n\
         SLIPWAY_REGION=eu-central\n\
         SLIPWAY_ZONE=hel1-dc2\n"
    );
}

#[test]
fn a_server_without_items_is_no_error() {
    let server = serve(Vec::new(), |_: &Request| ABSENT);
    let found = Bench::with(&server).obtain("hetzner").unwrap();
    assert_eq!(found.config, None);
    let env = crate::env::render(by_id("hetzner").unwrap(), &found.metadata);
    assert_eq!(env, "SLIPWAY_PLATFORM=hetzner\n");
}
