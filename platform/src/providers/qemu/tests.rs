//! QEMU: fw_cfg, the disk and the port are files here.

use crate::testing::{Bench, CONFIG, text};

const FW_CFG: &str = "sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";

#[test]
fn qemu_has_its_config_in_one_of_three_places() {
    let bench = Bench::new();
    assert_eq!(bench.obtain("qemu").unwrap().config, None);
    bench.write(
        "sys/class/virtio-ports/vport0p1/name",
        "org.qemu.guest_agent.0\n",
    );
    bench.write("sys/class/virtio-ports/vport0p2/name", "ignition\n");
    bench.write("dev/vport0p2", "{\"port\": 1}");
    assert_eq!(text(&bench.obtain("qemu").unwrap()), "{\"port\": 1}");
    bench.write("sys/block/vda/serial", "");
    bench.write("sys/block/vdb/serial", "ignition");
    let mut disk = CONFIG.as_bytes().to_vec();
    disk.resize(512, 0);
    bench.write("dev/vdb", &disk);
    assert_eq!(text(&bench.obtain("qemu").unwrap()), CONFIG);
    bench.write(FW_CFG, "{\"fw_cfg\": 1}");
    let found = bench.obtain("qemu").unwrap();
    assert_eq!(text(&found), "{\"fw_cfg\": 1}");
    assert_eq!(bench.network.into_inner(), 0);
}

#[test]
fn the_firmwares_uuid_names_a_machine_that_nobody_else_names() {
    let bench = Bench::new();
    bench.write("sys/class/dmi/id/product_uuid", "4C4C4544-0031\n");
    let found = bench.obtain("qemu").unwrap();
    assert_eq!(found.metadata.instance_id.as_deref(), Some("4c4c4544-0031"));
}
