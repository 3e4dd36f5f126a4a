//! Words of a recipe on a running node.

use std::fs;

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;

use crate::cluster::expect;

/// What is asked of the node, and what it answers.
const ANSWERS: &[(&str, &str)] = &[
    // chrony's unit takes the place of systemd's, which is not there.
    (
        "systemctl is-active chrony; ls /usr/lib/systemd/systemd-timesyncd 2>/dev/null || true",
        "active",
    ),
    // A unit behind network-online.target started with an address.
    (
        "systemctl is-active systemd-networkd-wait-online probe-online; grep -c inet /run/probe-online",
        "active\nactive\n1",
    ),
    ("sysctl -n vm.max_map_count", "262145"),
    ("ls /sys/class/net | grep -c ^dummy", "3"),
    (
        ". /etc/locale.conf; LC_ALL=$LANG bash -c \"printf '%(%B)T' 0\"; date -d @0 +' %Z'",
        "Januar CET",
    ),
    ("runuser -u probe -- sudo -n id -u", "0"),
    ("find /usr/bin /usr/sbin -perm /6000", "/usr/bin/sudo"),
    (
        "dpkg -s chrony | grep ^Status; apt-get check >/dev/null && echo whole",
        "Status: install ok installed\nwhole",
    ),
    (
        "stat -c '%U %a' /var/lib/probe/given; cat /var/lib/probe/given",
        "root 644\ngiven",
    ),
];
/// Reads every file of the root: the kernel answers what it cannot decompress with an error.
const READ_ALL: &str = "find / -xdev -type f -exec cat {} + > /dev/null && echo read";

/// A node whose root zstd packed, with microcode before its initramfs, has the clock, settings, locale, zone, accounts, packages and
/// files of its recipe.
pub(crate) fn a_node_has_what_its_recipe_says(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/words")?;
    let node = lab.node_of(&image.disk)?;
    let options = BootOptions {
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &options)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_services()?;
    let script =
        "timeout 230 systemctl is-system-running --wait || systemctl --failed --plain --no-legend";
    let state = running.agent()?.ask(script, timeouts::AGENT)?;
    ensure!(
        state.output.trim() == "running",
        "systemd says {:?}",
        state.output
    );
    for (script, expected) in ANSWERS {
        expect(&running, script, expected)?;
    }
    expect(&running, READ_ALL, "read")?;
    running.power_off()?;
    fs::remove_dir_all(&image.out).context("removing the image")
}
