//! Booting from the network.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::machine::Start;
use slipway::vm::pxe::{SCRIPT, Server};

/// Where QEMU's user network shows the host's loopback.
const HOST: &str = "10.0.2.2";

/// iPXE fetches the script, kernel and initrd by HTTP, the init fetches the root, and a worker runs from 2 GiB of RAM
/// without any disk.
pub(crate) fn ipxe_boots_kernel_initrd_and_root_over_http(lab: &mut Lab) -> Result<()> {
    let server = Server::start(
        &lab.image.out.join("pxe"),
        SocketAddr::from(([127, 0, 0, 1], 0)),
    )?;
    let node = lab.node()?;
    let plan = BootOptions {
        config: Some(serde_json::json!({
            "ignition": { "version": "3.4.0" },
            // The demo is a control plane; this machine has no etcd disk.
            "storage": { "files": [{
                "path": image::paths::NODE_SETTINGS,
                "overwrite": true,
                "contents": { "source": slipway::vm::agent::data_url(b"role = \"worker\"\n") },
            }]},
        })),
        ..BootOptions::default()
    };
    let mut machine = lab.machine(&node, &plan)?;
    machine.start = Start::Network {
        script: format!("http://{HOST}:{}/{SCRIPT}", server.address().port()),
    };
    machine.disks.clear();
    machine.memory = 2048;
    let running = lab.start(&node, machine, plan.config)?;
    let booted = running.wait_handoff(timeouts::HANDOFF);
    booted.with_context(|| format!("requests were {:#?}", server.requests()))?;
    running.wait_agent()?;
    let root = running.run("findmnt -no FSTYPE / && ls /sys/block | grep -c '^vd' || true")?;
    ensure!(root.starts_with("erofs"), "{root}");
    let requests = server.requests();
    for file in [SCRIPT, "root"] {
        ensure!(
            requests
                .iter()
                .any(|line| line.contains(&format!("/{file}"))),
            "{file} was not asked for: {requests:#?}"
        );
    }
    Ok(())
}
