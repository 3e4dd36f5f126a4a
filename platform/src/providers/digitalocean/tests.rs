//! DigitalOcean, after its metadata API's reference.

use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

fn droplet() -> String {
    format!(
        r##"{{"droplet_id": 2756294, "hostname": "sample-droplet", "vendor_data": "#cloud-config\n",
           "public_keys": ["{KEY}"], "region": "nyc3",
           "interfaces": {{
             "private": [{{"ipv4": {{"ip_address": "10.132.255.113", "netmask": "255.255.0.0", "gateway": "10.132.0.1"}},
                "mac": "04:01:2a:0f:2a:02", "type": "private"}}],
             "public": [{{"ipv4": {{"ip_address": "192.0.2.20", "netmask": "255.255.240.0", "gateway": "192.0.2.1"}},
                "ipv6": {{"ip_address": "2001:DB8::17D:4001", "cidr": 64, "gateway": "2001:DB8::1"}},
                "anchor_ipv4": {{"ip_address": "10.10.0.5", "netmask": "255.255.0.0", "gateway": "10.10.0.1"}},
                "mac": "04:01:2a:0f:2a:01", "type": "public"}}]}},
           "dns": {{"nameservers": ["192.0.2.53"]}}, "features": {{"dhcp_enabled": true}}}}"##
    )
}

#[test]
fn a_droplet_has_its_data_in_two_requests() {
    let faults = vec![Reply::Status(503, ""), Reply::Status(503, "")];
    let server = serve(faults, |request: &Request| match request.path.as_str() {
        "/metadata/v1/user-data" => ok(CONFIG),
        "/metadata/v1.json" => ok(droplet()),
        _ => ABSENT,
    });
    let found = Bench::with(&server).obtain("digitalocean").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("digitalocean").unwrap(), &found.metadata),
        "AFTERBURN_DIGITALOCEAN_HOSTNAME=sample-droplet\n\
         AFTERBURN_DIGITALOCEAN_IPV4_ANCHOR_0=10.10.0.5\n\
         AFTERBURN_DIGITALOCEAN_IPV4_PRIVATE_0=10.132.255.113\n\
         AFTERBURN_DIGITALOCEAN_IPV4_PUBLIC_0=192.0.2.20\n\
         AFTERBURN_DIGITALOCEAN_IPV6_PUBLIC_0=2001:DB8::17D:4001\n\
         AFTERBURN_DIGITALOCEAN_REGION=nyc3\n\
         SLIPWAY_HOSTNAME=sample-droplet\n\
         SLIPWAY_INSTANCE_ID=2756294\n\
         SLIPWAY_IPV4_LOCAL=10.132.255.113\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.20\n\
         SLIPWAY_IPV6_PUBLIC=2001:DB8::17D:4001\n\
         SLIPWAY_PLATFORM=digitalocean\n\
         SLIPWAY_REGION=nyc3\n"
    );
}

#[test]
fn a_droplet_without_user_data_has_no_config() {
    let server = serve(Vec::new(), |request: &Request| {
        match request.path.as_str() {
            "/metadata/v1.json" => ok(droplet()),
            _ => ABSENT,
        }
    });
    let found = Bench::with(&server).obtain("digitalocean").unwrap();
    assert_eq!(found.config, None);
}
