//! The boot loader's counters and the failure policy, with the loader that the images ship.

use anyhow::{Context, Result, ensure};
use image::report::HANDOFF_LINE;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::channel::Waited;

/// Adds a second boot entry, which is newer and has its last try: a copy of the image's UKI whose command line the init
/// refuses. The words have the same length.
const ADD_BROKEN: &str = r#"set -e
mkdir -p /run/esp
mount -t vfat "$(findfs PARTLABEL=ESP)" /run/esp
cd /run/esp/EFI/Linux
cp demo_*.efi demo_9.9.9+1-2.efi
LC_ALL=C sed -i 's/rcupdate.rcu_expedited=1/ip=dhpc                 /' demo_9.9.9+1-2.efi
grep -q 'ip=dhpc   ' demo_9.9.9+1-2.efi
cd /
umount /run/esp"#;

/// Leaves the broken entry only, and prints its name.
const KEEP_BROKEN: &str = r#"set -e
mkdir -p /run/esp
mount -t vfat "$(findfs PARTLABEL=ESP)" /run/esp
cd /run/esp/EFI/Linux
rm demo_[0-8]*.efi
ls
cd /
umount /run/esp"#;

/// Adds a second boot entry, which is newer and has two tries: the first half of the image's UKI.
const ADD_SHORT: &str = r#"set -e
mkdir -p /run/esp
mount -t vfat "$(findfs PARTLABEL=ESP)" /run/esp
cd /run/esp/EFI/Linux
size=$(stat -c %s demo_*.efi)
head -c $((size / 2)) demo_*.efi > /run/half
cp /run/half demo_9.9.9+2.efi
cd /
umount /run/esp"#;

/// Prints the names of the boot entries.
const ENTRIES: &str = r#"set -e
mkdir -p /run/esp
mount -o ro -t vfat "$(findfs PARTLABEL=ESP)" /run/esp
ls /run/esp/EFI/Linux
umount /run/esp"#;

/// Names an entry that is not there as the loader's default, as `bootctl set-default` does
/// (<https://systemd.io/BOOT_LOADER_INTERFACE/>): attributes, then the name in UTF-16.
const SET_DEFAULT: &str = r#"set -e
folder=/sys/firmware/efi/efivars
mountpoint -q $folder || mount -t efivarfs efivarfs $folder
mount -o remount,rw $folder
printf '\007\0\0\0g\0o\0n\0e\0.\0e\0f\0i\0\0\0' > $folder/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"#;
/// Prints the default's bytes.
const SHOW_DEFAULT: &str = r#"set -e
folder=/sys/firmware/efi/efivars
mountpoint -q $folder || mount -t efivarfs efivarfs $folder
wc -c < $folder/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"#;

/// A default in the firmware's variables that names an entry which an update has removed does not keep a node from booting.
pub(crate) fn a_default_that_is_gone_is_passed_over(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        direct: false,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.run(SET_DEFAULT)?;
    running.power_off()?;
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let bytes = running.run(SHOW_DEFAULT)?;
    ensure!(bytes == "22", "the variable has {bytes} bytes");
    running.power_off()
}

/// An image of which half is missing, which the firmware does not load, uses up a try at each start of the machine; then the
/// other entry runs. The loader of Debian 13 (systemd 257) returns to the firmware after such a try, and what restarts the
/// machine is the firmware or somebody; from systemd 258 on the loader itself does.
pub(crate) fn an_image_that_is_cut_short_gives_way_to_the_other_entry(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        direct: false,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.run(ADD_SHORT)?;
    running.power_off()?;
    for name in ["demo_9.9.9+1-1.efi", "demo_9.9.9+0-2.efi"] {
        let running = lab.boot(&node, &plan)?;
        running
            .wait_console(&["Error loading", name], timeouts::HANDOFF)
            .with_context(|| format!("the try that leaves {name}"))?;
        running.vm.pull_plug();
    }
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let entries = running.run(ENTRIES)?;
    ensure!(
        entries.contains("demo_9.9.9+0-2.efi"),
        "the entries are {entries:?}"
    );
    running.power_off()
}

/// An image that fails at its last try gives way to the other entry by itself, whatever the failure policy has counted; one
/// that the loader starts again although it has no tries left is the last one, and stays up with its report.
pub(crate) fn a_broken_image_gives_way_to_the_other_entry(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        direct: false,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.run(ADD_BROKEN)?;
    running.power_off()?;

    let running = lab.boot(&node, &plan)?;
    let words = ["ip=dhpc", "The node reboots in", HANDOFF_LINE];
    running.wait_console(&words, timeouts::HANDOFF)?;
    running.wait_agent()?;
    let left = running.run(KEEP_BROKEN)?;
    ensure!(
        left == "demo_9.9.9+0-3.efi",
        "after its last try the broken entry is {left:?}"
    );
    running.power_off()?;

    let running = lab.boot(&node, &plan)?;
    let stays = "The node stays up with this report";
    running.wait_console(&["ip=dhpc", stays], timeouts::HANDOFF)?;
    let waited = running.vm.console().wait(timeouts::STAYS_UP, |text| {
        (text.matches("Linux version").count() > 1 || text.contains(HANDOFF_LINE)).then_some(())
    });
    ensure!(
        waited == Waited::Late,
        "the node did not stay up: {waited:?}"
    );
    Ok(())
}
