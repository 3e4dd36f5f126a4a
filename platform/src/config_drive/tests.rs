//! Config drives, the same for every provider that has one.

use std::time::Duration;

use crate::testing::{Bench, CONFIG, text};

const NETWORK: &str = r#"{"links": [{"id": "tap0", "type": "ovs", "ethernet_mac_address": "fa:16:3e:9c:bf:3d"}],
    "networks": [{"id": "network0", "link": "tap0", "type": "ipv4_dhcp", "network_id": "n"}], "services": []}"#;

#[test]
fn a_config_drive_has_the_network() {
    for platform in ["nutanix", "openstack", "kubevirt"] {
        let mut bench = Bench::new();
        bench.write("drive/openstack/latest/user_data", CONFIG);
        bench.write("drive/openstack/latest/network_data.json", NETWORK);
        bench.medium = Some((1, Some("config-2"), bench.path("drive")));
        // OpenStack's service is tried at the same time, and does not answer.
        bench.dark.store(true, std::sync::atomic::Ordering::SeqCst);
        let found = bench.obtain(platform).unwrap();
        let described = found.metadata.network.expect("a network");
        assert_eq!(described.text, NETWORK.as_bytes());
        let ways: Vec<_> = described.addressings().iter().map(|one| one.how).collect();
        assert_eq!(ways, [crate::network::How::Dhcp4]);
        assert_eq!(found.notes, [""; 0]);
    }
}

#[test]
fn mistakes_of_network_data_are_noted_with_their_places() {
    let mut bench = Bench::new();
    bench.write("drive/openstack/latest/user_data", CONFIG);
    let text = NETWORK.replace("fa:16", "fa").replace("ipv4_dhcp", "ipx");
    bench.write("drive/openstack/latest/network_data.json", text);
    bench.medium = Some((1, Some("config-2"), bench.path("drive")));
    let found = bench.obtain("nutanix").unwrap();
    assert_eq!(self::text(&found), CONFIG);
    assert_eq!(found.metadata.network, None);
    let file = "the config drive's openstack/latest/network_data.json";
    for (note, expected) in found.notes.iter().zip([
        format!("{file}: links[0].ethernet_mac_address: found \"fa:3e:9c:bf:3d\""),
        format!("{file}: networks[0].type: found \"ipx\""),
        format!("ignoring {file}"),
    ]) {
        assert!(note.starts_with(&expected), "{note}");
    }
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
}

#[test]
fn a_drive_that_never_appears_is_an_error() {
    let mut bench = Bench::new();
    bench.patience.total = Some(Duration::from_millis(50));
    for platform in ["nutanix", "kubevirt"] {
        let problem = bench.obtain(platform).unwrap_err();
        assert!(
            problem.remote && problem.what.contains("config-2"),
            "{problem}"
        );
    }
}
