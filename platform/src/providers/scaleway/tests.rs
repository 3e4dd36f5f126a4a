//! Scaleway, after "User data" and the instance's metadata in its documentation.

use std::net::TcpListener;
use std::ops::RangeInclusive;

use crate::dmi::Dmi;
use crate::found::Found;
use crate::problem::Problem;
use crate::provider::Provider;
use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, recognised, text};

/// In place of the privileged ports, which an ordinary user may not bind. The kernel gives none of them to other
/// connections (`net.ipv4.ip_local_port_range`).
const PORTS: RangeInclusive<u16> = 20_000..=20_999;

fn translated() -> String {
    format!(
        r#"{{"id": "11111111-1111-1111-1111-111111111111", "name": "web-1", "hostname": "web-1",
            "commercial_type": "DEV1-S", "location": {{"zone_id": "fr-par-1", "platform_id": "30"}},
            "private_ip": "10.64.12.3", "public_ip": {{"id": "2", "address": "192.0.2.40", "dynamic": false}},
            "public_ips": [{{"address": "192.0.2.40", "family": "inet"}}],
            "ipv6": {{"address": "2001:db8:1::2", "gateway": "2001:db8:1::1", "netmask": "127"}},
            "ssh_public_keys": [{{"key": "{KEY}", "fingerprint": "256 SHA256:x"}}], "tags": []}}"#
    )
}

const ROUTED: &str = r#"{"id": "2", "hostname": "web-2", "commercial_type": "PLAY2-NANO",
    "location": {"zone_id": "par1"}, "private_ip": null, "ipv6": null, "ssh_public_keys": [],
    "public_ip": {"address": "192.0.2.41"},
    "public_ips": [{"address": "2001:db8:2::1", "family": "inet6", "netmask": "64"},
                   {"address": "192.0.2.41", "family": "inet", "netmask": "32"}]}"#;

/// The service returns the user data to these ports only.
fn vendor(ports: RangeInclusive<u16>, faults: Vec<Reply>, user_data: Reply) -> Server {
    serve(faults, move |request: &Request| {
        match request.path.as_str() {
            "/user_data/cloud-init" if ports.contains(&request.port) => user_data.clone(),
            "/user_data/cloud-init" => Reply::Status(403, "forbidden"),
            "/conf?format=json" => ok(translated()),
            _ => ABSENT,
        }
    })
}

fn obtain(server: &Server) -> Result<Found, Problem> {
    Bench::with(server).obtain_by(&Provider {
        obtain: |machine| super::obtain_from(machine, PORTS),
        ..super::PROVIDER
    })
}

#[test]
fn an_instance_is_recognised_by_its_vendor() {
    let dmi = Dmi {
        vendor: "Scaleway".to_owned(),
        product: "SCW-DEV1-S".to_owned(),
        ..Dmi::default()
    };
    assert_eq!(recognised(&dmi), "scaleway");
}

#[test]
fn a_scaleway_instance_has_its_config_and_its_metadata() {
    let faults = vec![
        Reply::Status(503, ""),
        Reply::Later(429, 0),
        Reply::Reset,
        Reply::Cut(CONFIG.into(), 20),
    ];
    let server = vendor(PORTS, faults, ok(CONFIG));
    let found = obtain(&server).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("scaleway").unwrap(), &found.metadata),
        "AFTERBURN_SCALEWAY_HOSTNAME=web-1\n\
         AFTERBURN_SCALEWAY_INSTANCE_ID=11111111-1111-1111-1111-111111111111\n\
         AFTERBURN_SCALEWAY_INSTANCE_TYPE=DEV1-S\n\
         AFTERBURN_SCALEWAY_IPV4_PRIVATE=10.64.12.3\n\
         AFTERBURN_SCALEWAY_IPV4_PUBLIC=192.0.2.40\n\
         AFTERBURN_SCALEWAY_IPV6_PUBLIC=2001:db8:1::2\n\
         AFTERBURN_SCALEWAY_ZONE_ID=fr-par-1\n\
         SLIPWAY_HOSTNAME=web-1\n\
         SLIPWAY_INSTANCE_ID=11111111-1111-1111-1111-111111111111\n\
         SLIPWAY_INSTANCE_TYPE=DEV1-S\n\
         SLIPWAY_IPV4_LOCAL=10.64.12.3\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.40\n\
         SLIPWAY_IPV6_PUBLIC=2001:db8:1::2\n\
         SLIPWAY_PLATFORM=scaleway\n\
         SLIPWAY_REGION=fr-par\n\
         SLIPWAY_ZONE=fr-par-1\n"
    );
}

#[test]
fn an_instance_with_routed_addresses_has_each_once() {
    let metadata = super::metadata(serde_json::from_str(ROUTED).unwrap());
    assert_eq!(metadata.local_ipv4, [""; 0]);
    assert_eq!(metadata.public_ipv4, ["192.0.2.41"]);
    assert_eq!(metadata.public_ipv6, ["2001:db8:2::1"]);
    let zone = metadata.zone.as_deref();
    assert_eq!((zone, metadata.region), (Some("par1"), None));
}

#[test]
fn an_instance_without_user_data_has_no_config() {
    for nothing in [ABSENT, ok(""), ok(" \n")] {
        let found = obtain(&vendor(PORTS, Vec::new(), nothing)).unwrap();
        assert_eq!(found.config, None);
        assert_eq!(found.metadata.hostname.as_deref(), Some("web-1"));
    }
}

#[test]
fn an_instance_without_metadata_is_no_error() {
    let server = serve(Vec::new(), |_: &Request| ABSENT);
    let found = obtain(&server).unwrap();
    let env = crate::env::render(by_id("scaleway").unwrap(), &found.metadata);
    assert_eq!(env, "SLIPWAY_PLATFORM=scaleway\n");
}

#[test]
fn user_data_is_asked_for_from_a_privileged_port() {
    let server = vendor(1..=1023, Vec::new(), ok(CONFIG));
    let mut bench = Bench::with(&server);
    // From any other port the service refuses.
    let refused = obtain(&server).unwrap_err();
    assert!(refused.what.contains("403"), "{refused}");
    // An ordinary user gets this as an error, before any request is sent.
    let may_bind = (900..1000).any(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    bench.patience.attempts = Some(2);
    match bench.obtain("scaleway") {
        Ok(found) => assert_eq!(text(&found), CONFIG),
        Err(problem) => {
            assert!(!may_bind, "{problem}");
            assert!(
                problem.what.contains("from a port of 1..=1023"),
                "{problem}"
            );
        }
    }
}
