//! Vultr, after "Metadata API" of its documentation.

use crate::dmi::Dmi;
use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, recognised, text};

const SERVER: &str = r#"{
  "bgp": {"ipv4": {"my-address": "", "my-asn": "", "peer-address": "", "peer-asn": ""}},
  "hostname": "vultr-guest", "instanceid": "a747bfz6385e",
  "instance-v2-id": "36e9cf60-5d93-4e31-8ebf-613b3d2874fb",
  "interfaces": [
    {"ipv4": {"additional": [{"address": "192.0.2.3", "netmask": "255.255.255.0"}],
              "address": "192.0.2.2", "gateway": "192.0.2.1", "netmask": "255.255.255.0"},
     "ipv6": {"additional": [{"network": "2001:db8:0:2::", "prefix": "64"}],
              "address": "2001:db8:0:1:5428:d5ff:fe28:1910", "network": "2001:db8:0:1::", "prefix": "64"},
     "mac": "00:00:00:00:00:00", "network-type": "public"},
    {"ipv4": {"additional": [], "address": "10.99.0.10", "gateway": "", "netmask": "255.255.0.0"},
     "ipv6": {"additional": [], "network": "", "prefix": ""},
     "mac": "00:00:00:00:00:01", "network-type": "private", "networkid": "net539626f0798d7"}],
  "public-keys": [], "region": {"regioncode": "EWR", "countrycode": "US"}, "user-data": []}"#;

fn vendor(faults: Vec<Reply>, user_data: Reply) -> Server {
    serve(faults, move |request: &Request| {
        match request.path.as_str() {
            "/user-data/user-data" => user_data.clone(),
            "/v1.json" => ok(SERVER),
            "/v1/public-keys" => ok(format!("{KEY}\n\n{KEY}\n")),
            _ => ABSENT,
        }
    })
}

#[test]
fn a_server_is_recognised_by_its_vendor() {
    let dmi = Dmi {
        vendor: "Vultr".to_owned(),
        product: "VC2".to_owned(),
        ..Dmi::default()
    };
    assert_eq!(recognised(&dmi), "vultr");
}

#[test]
fn a_vultr_server_has_its_config_and_its_metadata() {
    let faults = vec![
        Reply::Status(503, ""),
        Reply::Reset,
        Reply::Cut(CONFIG.into(), 20),
    ];
    let server = vendor(faults, ok(CONFIG));
    let found = Bench::with(&server).obtain("vultr").unwrap();
    assert_eq!(text(&found), CONFIG);
    let keys = &found.metadata.ssh_keys;
    assert_eq!((keys.len(), keys[0].key.as_str()), (2, KEY));
    assert_eq!(
        found.metadata.public_ipv4,
        ["192.0.2.2", "192.0.2.3"],
        "the main address is the first"
    );
    assert_eq!(
        crate::env::render(by_id("vultr").unwrap(), &found.metadata),
        "AFTERBURN_VULTR_HOSTNAME=vultr-guest\n\
         AFTERBURN_VULTR_INSTANCE_ID=a747bfz6385e\n\
         AFTERBURN_VULTR_REGION_CODE=EWR\n\
         SLIPWAY_HOSTNAME=vultr-guest\n\
         SLIPWAY_INSTANCE_ID=a747bfz6385e\n\
         SLIPWAY_IPV4_LOCAL=10.99.0.10\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.2\n\
         SLIPWAY_IPV6_PUBLIC=2001:db8:0:1:5428:d5ff:fe28:1910\n\
         SLIPWAY_PLATFORM=vultr\n\
         SLIPWAY_REGION=EWR\n"
    );
}

#[test]
fn a_server_without_user_data_has_no_config() {
    for nothing in [ABSENT, ok(""), ok(" \n")] {
        let server = vendor(Vec::new(), nothing);
        let found = Bench::with(&server).obtain("vultr").unwrap();
        assert_eq!(found.config, None);
        assert_eq!(found.metadata.hostname.as_deref(), Some("vultr-guest"));
    }
}

#[test]
fn a_server_without_metadata_is_no_error() {
    let server = serve(Vec::new(), |request: &Request| {
        match request.path.as_str() {
            "/v1.json" => ok("<html>"),
            _ => ABSENT,
        }
    });
    let bench = Bench::with(&server);
    let found = bench.obtain("vultr").unwrap();
    assert!(bench.has_said("/v1.json: not JSON"));
    let env = crate::env::render(by_id("vultr").unwrap(), &found.metadata);
    assert_eq!(env, "SLIPWAY_PLATFORM=vultr\n");
}

#[test]
fn a_cloud_config_is_refused_by_name() {
    let server = vendor(Vec::new(), ok("#cloud-config\nusers: []\n"));
    let problem = Bench::with(&server).obtain("vultr").unwrap_err();
    assert!(problem.what.contains("cloud-config"), "{problem}");
}
