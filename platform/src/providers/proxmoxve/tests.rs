//! Proxmox VE: the drive is a plain folder here, as the init mounts it.

use crate::dmi::Dmi;
use crate::providers::by_id;
use crate::testing::{Bench, CONFIG, KEY, recognised, text};

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
    let found = proxmox(&own, CONFIG).obtain("proxmoxve").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert!(found.notes[0].contains("cloud-config"), "{:?}", found.notes);
    assert!(!found.notes[0].contains("SECRET"));
    assert_eq!(found.metadata.ssh_keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("proxmoxve").unwrap(), &found.metadata),
        "AFTERBURN_PROXMOXVE_HOSTNAME=pve-1\nAFTERBURN_PROXMOXVE_INSTANCE_ID=8fc2dc2a2a7d\n\
         SLIPWAY_HOSTNAME=pve-1\nSLIPWAY_INSTANCE_ID=8fc2dc2a2a7d\nSLIPWAY_PLATFORM=proxmoxve\n"
    );
    // Neither file has a config.
    let found = proxmox(&own, "").obtain("proxmoxve").unwrap();
    assert_eq!(found.config, None);
}

#[test]
fn fixed_addresses_of_the_drive_make_the_network() {
    let bench = proxmox(CONFIG, "");
    bench.write(
        "cidata/network-config",
        "version: 1\nconfig:\n- type: physical\n  name: eth0\n  mac_address: 'bc:24:11:00:00:01'\n  subnets:\n  \
         - type: static\n    address: '192.0.2.5'\n    netmask: '255.255.255.0'\n    gateway: '192.0.2.1'\n  \
         - type: static6\n    address: '2001:db8::5/64'\n",
    );
    let found = bench.obtain("proxmoxve").unwrap();
    let described = found.metadata.network.as_ref().unwrap();
    assert_eq!(described.addressings().len(), 2);
    let env = crate::env::render(by_id("proxmoxve").unwrap(), &found.metadata);
    for line in [
        "AFTERBURN_PROXMOXVE_IPV4=192.0.2.5\n",
        "AFTERBURN_PROXMOXVE_IPV6=2001:db8::5\n",
        "SLIPWAY_IPV4_LOCAL=192.0.2.5\n",
    ] {
        assert!(env.contains(line), "{env}");
    }
    // A file that cannot be used is noted; the machine boots as without it.
    bench.write(
        "cidata/network-config",
        "version: 1\nconfig:\n- type: bridge\n",
    );
    let found = bench.obtain("proxmoxve").unwrap();
    assert_eq!(found.metadata.network, None);
    assert!(
        found.notes.iter().any(|note| note.contains("\"bridge\"")),
        "{:?}",
        found.notes
    );
}

#[test]
fn proxmoxs_user_data_is_before_its_vendor_data() {
    let found = proxmox(CONFIG, "{}").obtain("proxmoxve").unwrap();
    assert_eq!(text(&found), CONFIG);
}

#[test]
fn a_proxmox_machine_without_a_drive_has_no_config() {
    let bench = Bench::new();
    let found = bench.obtain("proxmoxve").unwrap();
    assert_eq!(found.config, None);
    assert!(found.notes[0].contains("cidata"), "{:?}", found.notes);
}

#[test]
fn a_cloud_on_qemu_with_an_asset_tag_is_not_proxmox() {
    for (asset_tag, expected) in [("", "proxmoxve"), ("cloud.example", "qemu")] {
        let dmi = Dmi {
            vendor: "QEMU".to_owned(),
            product: "Standard PC (i440FX + PIIX, 1996)".to_owned(),
            asset_tag: asset_tag.to_owned(),
            ..Dmi::default()
        };
        assert_eq!(recognised(&dmi), expected, "{asset_tag:?}");
    }
}
