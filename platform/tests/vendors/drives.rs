//! Providers with a drive: Nutanix, Proxmox VE, KubeVirt. Their media are plain folders here, as the init mounts them.

use std::time::Duration;

use image::platform::Platform;

use crate::bench::{Bench, text};
use crate::{CONFIG, KEY};

#[test]
fn nutanix_waits_for_its_drive() {
    let mut bench = Bench::new();
    bench.write("drive/openstack/latest/user_data", CONFIG);
    bench.write(
        "drive/openstack/latest/meta_data.json",
        r#"{"hostname": "ahv-1", "uuid": "20c5a21f"}"#,
    );
    bench.medium = Some((20, Some("config-2"), bench.path("drive")));
    let found = bench.obtain(Platform::Nutanix).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(
        platform::env::render(Platform::Nutanix, &found.metadata),
        "AFTERBURN_CUSTOM_HOSTNAME=ahv-1\nSLIPWAY_HOSTNAME=ahv-1\n\
         SLIPWAY_INSTANCE_ID=20c5a21f\nSLIPWAY_PLATFORM=nutanix\n"
    );
    assert_eq!(bench.network.into_inner(), 0, "a drive needs no network");
}

const NETWORK: &str = r#"{"links": [{"id": "tap0", "type": "ovs", "ethernet_mac_address": "fa:16:3e:9c:bf:3d"}],
    "networks": [{"id": "network0", "link": "tap0", "type": "ipv4_dhcp", "network_id": "n"}], "services": []}"#;

#[test]
fn a_config_drive_says_what_the_network_is_to_be() {
    for platform in [Platform::Nutanix, Platform::Openstack, Platform::Kubevirt] {
        let mut bench = Bench::new();
        bench.write("drive/openstack/latest/user_data", CONFIG);
        bench.write("drive/openstack/latest/network_data.json", NETWORK);
        bench.medium = Some((1, Some("config-2"), bench.path("drive")));
        // OpenStack's service is looked for meanwhile, and does not answer.
        bench.dark.store(true, std::sync::atomic::Ordering::SeqCst);
        let found = bench.obtain(platform).unwrap();
        let described = found.metadata.network.expect("a network");
        assert_eq!(described.text, NETWORK.as_bytes());
        let ways: Vec<_> = described
            .network
            .addressings
            .iter()
            .map(|one| one.how)
            .collect();
        assert_eq!(ways, [platform::network::How::Dhcp4]);
        assert_eq!(found.notes, [""; 0]);
    }
}

#[test]
fn network_data_that_cannot_be_used_is_told_by_its_places() {
    let mut bench = Bench::new();
    bench.write("drive/openstack/latest/user_data", CONFIG);
    let text = NETWORK.replace("fa:16", "fa").replace("ipv4_dhcp", "ipx");
    bench.write("drive/openstack/latest/network_data.json", text);
    bench.medium = Some((1, Some("config-2"), bench.path("drive")));
    let found = bench.obtain(Platform::Nutanix).unwrap();
    assert_eq!(self::text(&found), CONFIG);
    assert_eq!(found.metadata.network, None);
    let file = "the config drive's openstack/latest/network_data.json";
    for (note, part) in found.notes.iter().zip([
        ": links[0].ethernet_mac_address: found \"fa:3e:9c:bf:3d\"",
        ": networks[0].type: found \"ipx\"",
        " is not used",
    ]) {
        assert!(note.starts_with(&format!("{file}{part}")), "{note}");
    }
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
}

#[test]
fn a_drive_that_never_comes_is_told() {
    let mut bench = Bench::new();
    bench.patience.total = Some(Duration::from_millis(50));
    for platform in [Platform::Nutanix, Platform::Kubevirt] {
        let problem = bench.obtain(platform).unwrap_err();
        assert!(
            problem.remote && problem.what.contains("config-2"),
            "{problem}"
        );
    }
}

fn proxmox(user_data: &str, vendor_data: &str) -> Bench {
    let mut bench = Bench::new();
    bench.write("cidata/user-data", user_data);
    bench.write("cidata/vendor-data", vendor_data);
    bench.write("cidata/meta-data", "instance-id: 8fc2dc2a2a7d\n");
    bench.medium = Some((2, Some("cidata"), bench.path("cidata")));
    bench
}

#[test]
fn proxmoxs_own_cloud_config_is_passed_over_and_says_who_the_machine_is() {
    let own = format!(
        "#cloud-config\nhostname: pve-1\nmanage_etc_hosts: true\nfqdn: pve-1.example\n\
         user: admin\npassword: $5$SECRET\nssh_authorized_keys:\n  - {KEY}\nchpasswd:\n  expire: False\n"
    );
    let found = proxmox(&own, CONFIG).obtain(Platform::Proxmoxve).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert!(found.notes[0].contains("cloud-config"), "{:?}", found.notes);
    assert!(!found.notes[0].contains("SECRET"));
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        platform::env::render(Platform::Proxmoxve, &found.metadata),
        "AFTERBURN_PROXMOXVE_HOSTNAME=pve-1\nAFTERBURN_PROXMOXVE_INSTANCE_ID=8fc2dc2a2a7d\n\
         SLIPWAY_HOSTNAME=pve-1\nSLIPWAY_INSTANCE_ID=8fc2dc2a2a7d\nSLIPWAY_PLATFORM=proxmoxve\n"
    );
    // Neither file has one.
    let found = proxmox(&own, "").obtain(Platform::Proxmoxve).unwrap();
    assert_eq!(found.config, None);
}

#[test]
fn proxmoxs_user_data_is_before_its_vendor_data() {
    let found = proxmox(CONFIG, "{}").obtain(Platform::Proxmoxve).unwrap();
    assert_eq!(text(&found), CONFIG);
}

#[test]
fn a_proxmox_machine_without_a_drive_has_no_config() {
    let bench = Bench::new();
    let found = bench.obtain(Platform::Proxmoxve).unwrap();
    assert_eq!(found.config, None);
    assert!(found.notes[0].contains("cidata"), "{:?}", found.notes);
}

#[test]
fn kubevirt_has_either_form() {
    let mut bench = Bench::new();
    bench.write("cidata/user-data", CONFIG);
    bench.write(
        "cidata/meta-data",
        "{\"instance-id\": \"fake.default\", \"local-hostname\": \"vm-1\"}",
    );
    bench.medium = Some((1, Some("cidata"), bench.path("cidata")));
    let found = bench.obtain(Platform::Kubevirt).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(
        platform::env::render(Platform::Kubevirt, &found.metadata),
        "AFTERBURN_KUBEVIRT_HOSTNAME=vm-1\nAFTERBURN_KUBEVIRT_INSTANCE_ID=fake.default\n\
         SLIPWAY_HOSTNAME=vm-1\nSLIPWAY_INSTANCE_ID=fake.default\nSLIPWAY_PLATFORM=kubevirt\n"
    );
    let mut bench = Bench::new();
    bench.write("drive/openstack/latest/user_data", CONFIG);
    bench.write(
        "drive/openstack/latest/meta_data.json",
        r#"{"instance_type": "u1.medium", "uuid": "1", "hostname": "vm-2"}"#,
    );
    bench.medium = Some((1, Some("config-2"), bench.path("drive")));
    let found = bench.obtain(Platform::Kubevirt).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.instance_type.as_deref(), Some("u1.medium"));
}

#[test]
fn a_drives_cloud_config_is_refused_where_nobody_but_the_user_writes_it() {
    let mut bench = Bench::new();
    bench.write("cidata/user-data", "#cloud-config\n");
    bench.medium = Some((0, Some("cidata"), bench.path("cidata")));
    let problem = bench.obtain(Platform::Kubevirt).unwrap_err();
    assert!(
        !problem.remote && problem.what.contains("cloud-config"),
        "{problem}"
    );
}
