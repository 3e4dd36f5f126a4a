//! Nutanix: the drive is a plain folder here, as the init mounts it.

use crate::providers::by_id;
use crate::testing::{Bench, CONFIG, text};

#[test]
fn nutanix_waits_for_its_drive() {
    let mut bench = Bench::new();
    bench.write("drive/openstack/latest/user_data", CONFIG);
    bench.write(
        "drive/openstack/latest/meta_data.json",
        r#"{"hostname": "ahv-1", "uuid": "20c5a21f"}"#,
    );
    bench.medium = Some((20, Some("config-2"), bench.path("drive")));
    let found = bench.obtain("nutanix").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(
        crate::env::render(by_id("nutanix").unwrap(), &found.metadata),
        "AFTERBURN_CUSTOM_HOSTNAME=ahv-1\nSLIPWAY_HOSTNAME=ahv-1\n\
         SLIPWAY_INSTANCE_ID=20c5a21f\nSLIPWAY_PLATFORM=nutanix\n"
    );
    assert_eq!(bench.network.into_inner(), 0, "a drive needs no network");
}
