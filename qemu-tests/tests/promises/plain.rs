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

/// What a node's administrator does with files of the image in `/var`.
const CHANGE: &str = "set -e
rm /var/lib/probe/deleted
echo mine > /var/lib/probe/kept
echo mine > /opt/probe/own
chmod 0711 /var/lib/probe
sync";
/// Lets the next boot be the first one of its root, as after an update; a path that no image has brought yet is missing, and a program
/// is what an earlier image brought.
const UPDATED: &str = "set -e
cd /var/lib/slipway
rm seeded
echo earlier > /opt/probe/agent
hash=$({ printf 'file 0644 0 0\\n'; cat /opt/probe/agent; } | sha256sum)
grep -v /agent follows > follows.new
echo \"${hash%% *} /var/opt/probe/agent\" >> follows.new
mv follows.new follows
grep -v '^/var/lib/probe/later$' brought > brought.new
mv brought.new brought
rm /var/lib/probe/later
sync";
/// What is there.
const FOUND: &str = "
stat -c %a /var/lib/probe
for file in /var/lib/probe/* /opt/probe/*; do echo \"${file##*/}: $(cat $file)\"; done";

/// What an image has for `/var` comes to a node once: what was deleted or changed there stays so, on every boot and with every later
/// image. A file that an image has for the first time comes to a node that is there already. Programs in `/opt` are those of the image
/// that boots, unless they were changed on the node.
pub(crate) fn files_of_var_come_to_a_node_once(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/plain")?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        etcd: false,
        image: Some(image),
        ..BootOptions::default()
    };
    let content = "of the image";
    let all = format!(
        "750\ndeleted: {content}\nkept: {content}\nlater: {content}\nagent: {content}\nown: {content}"
    );
    let changed = format!("711\nkept: mine\nlater: {content}\nagent: {content}\nown: mine");
    for (boot, expected, then) in [
        ("first", &all, CHANGE),
        ("second", &changed, UPDATED),
        ("first one of a later image", &changed, "true"),
    ] {
        let running = lab.boot(&node, &plan)?;
        complete(&running)?;
        let found = running.run(FOUND)?;
        ensure!(
            found.trim() == expected,
            "on the {boot} boot there is {found:?}, expected {expected:?}"
        );
        running.run(then)?;
        running.power_off()?;
    }
    Ok(())
}
