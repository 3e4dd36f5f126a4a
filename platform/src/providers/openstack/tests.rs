//! OpenStack, after "Metadata" of Nova's user documentation: drive and service at the same time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

fn meta_data() -> String {
    format!(
        r#"{{"uuid": "d8e02d56-2648-49a3-bf97-6be8f1204f38", "availability_zone": "nova",
           "hostname": "web-1.novalocal", "launch_index": 0, "name": "web-1",
           "public_keys": {{"mykey": "{KEY}\n"}}, "project_id": "f7ac731cc11f40efbc03a9f9e1d1d21f"}}"#
    )
}

const EC2: &str = r#"{"instance-id": "i-00000001", "instance-type": "m1.small", "local-ipv4": "10.0.0.2", "public-ipv4": ""}"#;

fn vendor(faults: Vec<Reply>, user_data: Reply) -> Server {
    serve(faults, move |request: &Request| {
        match request.path.as_str() {
            "/openstack/latest/user_data" => user_data.clone(),
            "/openstack/latest/meta_data.json" => ok(meta_data()),
            "/latest/meta-data/instance-id" => ok("i-00000001"),
            "/latest/meta-data/instance-type" => ok("m1.small"),
            "/latest/meta-data/local-ipv4" => ok("10.0.0.2"),
            "/latest/meta-data/public-ipv4" => ok(""),
            _ => ABSENT,
        }
    })
}

fn with_drive(mut bench: Bench, after: usize, label: &'static str) -> Bench {
    bench.write("drive/openstack/latest/user_data", r#"{"drive": 1}"#);
    bench.write("drive/openstack/latest/meta_data.json", meta_data());
    bench.write("drive/ec2/latest/meta-data.json", EC2);
    bench.medium = Some((after, Some(label), bench.path("drive")));
    bench
}

const ENV: &str = "AFTERBURN_OPENSTACK_HOSTNAME=web-1.novalocal\n\
    AFTERBURN_OPENSTACK_INSTANCE_ID=i-00000001\n\
    AFTERBURN_OPENSTACK_INSTANCE_TYPE=m1.small\n\
    AFTERBURN_OPENSTACK_INSTANCE_UUID=d8e02d56-2648-49a3-bf97-6be8f1204f38\n\
    AFTERBURN_OPENSTACK_IPV4_LOCAL=10.0.0.2\n\
    SLIPWAY_HOSTNAME=web-1.novalocal\n\
    SLIPWAY_INSTANCE_ID=i-00000001\n\
    SLIPWAY_INSTANCE_TYPE=m1.small\n\
    SLIPWAY_IPV4_LOCAL=10.0.0.2\n\
    SLIPWAY_PLATFORM=openstack\n\
    SLIPWAY_ZONE=nova\n";

#[test]
fn the_service_answers_where_there_is_no_drive() {
    let faults = vec![Reply::Status(500, ""), Reply::Cut(CONFIG.into(), 5)];
    let server = vendor(faults, ok(CONFIG));
    let found = Bench::with(&server).obtain("openstack").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("openstack").unwrap(), &found.metadata),
        ENV
    );
}

#[test]
fn the_drive_answers_where_there_is_no_network() {
    for label in ["config-2", "CONFIG-2"] {
        let bench = with_drive(Bench::new(), 5, label);
        bench.dark.store(true, Ordering::SeqCst);
        let found = bench.obtain("openstack").unwrap();
        assert_eq!(text(&found), r#"{"drive": 1}"#);
        assert_eq!(
            crate::env::render(by_id("openstack").unwrap(), &found.metadata),
            ENV
        );
        // The network was brought up meanwhile, until the stop flag was set.
        assert_eq!(bench.network.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn the_first_that_answers_wins() {
    let server = vendor(Vec::new(), ok(CONFIG));
    let late = with_drive(Bench::with(&server), 1_000_000, "config-2");
    assert_eq!(text(&late.obtain("openstack").unwrap()), CONFIG);
    let silent = vendor(vec![Reply::Later(503, 60)], ok(CONFIG));
    let early = with_drive(Bench::with(&silent), 3, "config-2");
    assert_eq!(text(&early.obtain("openstack").unwrap()), r#"{"drive": 1}"#);
}

#[test]
fn a_service_without_user_data_is_an_answer() {
    let server = vendor(Vec::new(), ABSENT);
    let found = Bench::with(&server).obtain("openstack").unwrap();
    assert_eq!(found.config, None);
    assert_eq!(found.metadata.zone.as_deref(), Some("nova"));
}

#[test]
fn silence_on_both_sides_ends_at_the_total() {
    let mut bench = Bench::new();
    bench.patience.total = Some(Duration::from_millis(300));
    let problem = bench.obtain("openstack").unwrap_err();
    assert!(
        problem.remote && problem.what.contains("neither"),
        "{problem}"
    );
}
