//! Oracle Cloud, after "Getting Instance Metadata" of its documentation.

use std::time::Duration;

use crate::dmi::Dmi;
use crate::found::Found;
use crate::problem::Problem;
use crate::provider::Provider;
use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, recognised, text};

/// `{"ignition": {"version": "3.5.0"}}`
const ENCODED: &str = "eyJpZ25pdGlvbiI6IHsidmVyc2lvbiI6ICIzLjUuMCJ9fQ==";
const VNICS: &str = r#"[
  {"vnicId": "ocid1.vnic.oc1.phx.a", "privateIp": "10.0.0.16", "vlanTag": 11, "macAddr": "02:00:17:05:ba:3d",
   "virtualRouterIp": "10.0.0.1", "subnetCidrBlock": "10.0.0.0/24", "ipv6Addresses": ["2001:db8::16"]},
  {"vnicId": "ocid1.vnic.oc1.phx.b", "privateIp": "10.0.4.7", "vlanTag": 12, "macAddr": "02:00:17:05:ba:3e",
   "virtualRouterIp": "10.0.4.1", "subnetCidrBlock": "10.0.4.0/24"}]"#;

fn instance(custom: &str) -> String {
    format!(
        r#"{{"availabilityDomain": "EMIr:PHX-AD-1", "faultDomain": "FAULT-DOMAIN-3",
            "compartmentId": "ocid1.tenancy.oc1..c", "displayName": "my instance", "hostname": "web-1",
            "id": "ocid1.instance.oc1.phx.i", "image": "ocid1.image.oc1.phx.m", "metadata": {{{custom}}},
            "region": "phx", "canonicalRegionName": "us-phoenix-1", "ociAdName": "phx-ad-1",
            "shape": "VM.Standard.E4.Flex", "state": "Running", "timeCreated": 1600381928581,
            "definedTags": {{"Operations": {{"CostCenter": "42"}}}}}}"#
    )
}

/// The service refuses requests without its header.
fn vendor(faults: Vec<Reply>, document: impl Into<Vec<u8>>) -> Server {
    let document = document.into();
    serve(faults, move |request: &Request| {
        if request.header("authorization") != Some("Bearer Oracle") {
            return Reply::Status(403, "");
        }
        match request.path.as_str() {
            "/opc/v2/instance/" => ok(document.clone()),
            "/opc/v2/vnics/" => ok(VNICS),
            _ => ABSENT,
        }
    })
}

/// Obtains from a service whose updates take much less than 10 s.
fn obtain(server: &Server) -> Result<Found, Problem> {
    Bench::with(server).obtain_by(&Provider {
        obtain: |machine| super::obtain_within(machine, Duration::from_millis(300)),
        ..super::PROVIDER
    })
}

#[test]
fn an_instance_is_recognised_by_its_asset_tag() {
    let dmi = Dmi {
        vendor: "QEMU".to_owned(),
        product: "Standard PC (i440FX + PIIX, 1996)".to_owned(),
        asset_tag: "OracleCloud.com".to_owned(),
        ..Dmi::default()
    };
    assert_eq!(recognised(&dmi), "oraclecloud");
}

#[test]
fn an_oracle_instance_has_its_config_and_its_metadata() {
    let custom = format!(
        r#""user_data": "{ENCODED}", "ssh_authorized_keys": "{KEY}\n\n{KEY}\n", "mine": "x""#
    );
    let faults = vec![
        Reply::Status(503, ""),
        Reply::Later(429, 0),
        Reply::Cut(instance(&custom).into(), 20),
    ];
    let server = vendor(faults, instance(&custom));
    let found = obtain(&server).unwrap();
    assert_eq!(text(&found), CONFIG);
    let keys = &found.metadata.ssh_keys;
    assert_eq!((keys.len(), keys[0].key.as_str()), (2, KEY));
    assert_eq!(found.metadata.local_ipv4, ["10.0.0.16", "10.0.4.7"]);
    assert_eq!(
        crate::env::render(by_id("oraclecloud").unwrap(), &found.metadata),
        "AFTERBURN_ORACLECLOUD_AVAILABILITY_DOMAIN=EMIr:PHX-AD-1\n\
         AFTERBURN_ORACLECLOUD_COMPARTMENT_ID=ocid1.tenancy.oc1..c\n\
         AFTERBURN_ORACLECLOUD_FAULT_DOMAIN=FAULT-DOMAIN-3\n\
         AFTERBURN_ORACLECLOUD_HOSTNAME=web-1\n\
         AFTERBURN_ORACLECLOUD_INSTANCE_ID=ocid1.instance.oc1.phx.i\n\
         AFTERBURN_ORACLECLOUD_INSTANCE_SHAPE=VM.Standard.E4.Flex\n\
         AFTERBURN_ORACLECLOUD_REGION_ID=us-phoenix-1\n\
         SLIPWAY_HOSTNAME=web-1\n\
         SLIPWAY_INSTANCE_ID=ocid1.instance.oc1.phx.i\n\
         SLIPWAY_INSTANCE_TYPE=VM.Standard.E4.Flex\n\
         SLIPWAY_IPV4_LOCAL=10.0.0.16\n\
         SLIPWAY_IPV6_LOCAL=2001:db8::16\n\
         SLIPWAY_PLATFORM=oraclecloud\n\
         SLIPWAY_REGION=us-phoenix-1\n\
         SLIPWAY_ZONE=EMIr:PHX-AD-1\n"
    );
}

#[test]
fn a_service_that_is_being_updated_is_waited_for() {
    let custom = format!(r#""user_data": "{ENCODED}""#);
    let server = vendor(vec![ABSENT, ABSENT], instance(&custom));
    assert_eq!(text(&obtain(&server).unwrap()), CONFIG);
}

#[test]
fn an_instance_without_user_data_has_no_config() {
    for custom in ["", r#""user_data": """#, r#""user_data": "IAo=""#] {
        let server = vendor(Vec::new(), instance(custom));
        let found = obtain(&server).unwrap();
        assert_eq!(found.config, None, "{custom}");
        assert_eq!(found.metadata.hostname.as_deref(), Some("web-1"));
    }
}

#[test]
fn a_service_without_the_document_gives_nothing() {
    let server = serve(Vec::new(), |_: &Request| ABSENT);
    let found = obtain(&server).unwrap();
    assert_eq!(found.config, None);
    let env = crate::env::render(by_id("oraclecloud").unwrap(), &found.metadata);
    assert_eq!(env, "SLIPWAY_PLATFORM=oraclecloud\n");
}

#[test]
fn what_may_hold_a_config_is_never_passed_over() {
    for (document, word) in [
        (instance(r#""user_data": "SECRET!""#), "base64"),
        (instance(r#""user_data": {"SECRET": 1}"#), "base64"),
        (
            r#"{"metadata": {"user_data": "SECRET"#.to_owned(),
            "not JSON at 1:",
        ),
    ] {
        let problem = obtain(&vendor(Vec::new(), document)).unwrap_err();
        assert!(problem.what.contains(word) && problem.remote, "{problem}");
        assert!(!problem.what.contains("SECRET"), "{problem}");
    }
}
