//! An image without Kubernetes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use qemu_tests::disk_content::boot_entries;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::json;

/// A check of a complete boot that does not pass (systemd.special(7), `boot-complete.target`).
const CHECK: &str = "[Unit]
Description=Check that does not pass
Before=boot-complete.target

[Service]
Type=oneshot
ExecStart=/usr/bin/false

[Install]
RequiredBy=boot-complete.target
";

/// Waits until the default target is reached and no job is left, and prints what became of it.
const COMPLETE: &str =
    "timeout 230 systemctl is-system-running --wait >/dev/null; systemctl is-active default.target";
/// Whether a command has removed the counter on this boot.
const BLESSED: &str = "test -e /run/slipway/blessed && echo blessed || echo counted";

/// On an image without a kubelet a boot that does not pass its checks uses up a try of the entry. Once the checks pass the boot is
/// blessed when the default target is reached, and the next one is not counted any more.
pub(crate) fn a_complete_boot_without_a_kubelet_is_blessed(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/plain")?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        config: Some(json!({
            "ignition": { "version": "3.4.0" },
            "systemd": { "units": [{ "name": "probe-check.service", "enabled": true, "contents": CHECK }] },
        })),
        direct: false,
        etcd: false,
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    complete(&running)?;
    // The unit would have done it by now.
    std::thread::sleep(Duration::from_secs(5));
    let found = running.run(BLESSED)?;
    let entries = boot_entries(&node.system())?;
    ensure!(
        found.trim() == "counted" && entries == ["plain_0.1.0+2-1.efi"],
        "a boot that did not pass its check is {found:?}, its entry {entries:?}"
    );
    running.run("systemctl disable probe-check.service && sync")?;
    running.power_off()?;

    for (boot, counted) in [("second", true), ("third", false)] {
        let running = lab.boot(&node, &plan)?;
        complete(&running)?;
        let until = Instant::now() + timeouts::BLESSING;
        while boot_entries(&node.system())? != ["plain_0.1.0.efi"] {
            ensure!(
                Instant::now() < until,
                "on the {boot} boot the entries are {:?}; the journal says: {}",
                boot_entries(&node.system())?,
                running
                    .ask("journalctl --no-pager -u slipway-bless-boot.service")?
                    .output
            );
            std::thread::sleep(Duration::from_millis(500));
        }
        let found = running.run(&format!("sleep 2; {BLESSED}"))?;
        ensure!(
            (found.trim() == "blessed") == counted,
            "the {boot} boot is {found:?}"
        );
        running.power_off()?;
    }
    Ok(())
}

/// The default target is reached.
fn complete(running: &Running) -> Result<()> {
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_services()?;
    let state = running.run_within(COMPLETE, timeouts::AGENT)?;
    ensure!(
        state.trim() == "active",
        "the default target is {state:?}: {}",
        running.ask("systemctl list-jobs")?.output
    );
    Ok(())
}
