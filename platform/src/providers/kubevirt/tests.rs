//! KubeVirt: the drive is a plain folder here, as the init mounts it.

use crate::providers::by_id;
use crate::testing::{Bench, CONFIG, text};

#[test]
fn kubevirt_has_either_form() {
    let mut bench = Bench::new();
    bench.write("cidata/user-data", CONFIG);
    bench.write(
        "cidata/meta-data",
        r#"{"instance-id": "fake.default", "local-hostname": "vm-1",
            "public-keys": {"0": "ssh-ed25519 AAAA one", "1": "ssh-ed25519 BBBB two"}}"#,
    );
    bench.medium = Some((1, Some("cidata"), bench.path("cidata")));
    let found = bench.obtain("kubevirt").unwrap();
    assert_eq!(text(&found), CONFIG);
    let keys: Vec<&str> = found
        .metadata
        .ssh_keys
        .iter()
        .map(|key| key.key.as_str())
        .collect();
    assert_eq!(keys, ["ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"]);
    assert_eq!(
        crate::env::render(by_id("kubevirt").unwrap(), &found.metadata),
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
    let found = bench.obtain("kubevirt").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.metadata.instance_type.as_deref(), Some("u1.medium"));
}

#[test]
fn a_drives_cloud_config_is_refused_where_nobody_but_the_user_writes_it() {
    let mut bench = Bench::new();
    bench.write("cidata/user-data", "#cloud-config\n");
    bench.medium = Some((0, Some("cidata"), bench.path("cidata")));
    let problem = bench.obtain("kubevirt").unwrap_err();
    assert!(
        !problem.remote && problem.what.contains("cloud-config"),
        "{problem}"
    );
}
