//! The boot line, from the firmware to the handoff.

use std::fs;

use anyhow::{Context, Result, ensure};
use image::layout::{LABEL_STATE, LABEL_VAR};
use image::report::HANDOFF_LINE;
use qemu_tests::disk_content::ext4_identity;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::format::{cpio, uki};
use slipway::vm::channel::Waited;
use slipway::vm::disks::partition;
use slipway::vm::machine::disk::Bus;

use crate::ignition::{PCAP_HEADER, probes};

/// An image with `lockdown = "integrity"` boots: its modules keep their signatures, so the kernel that loads no others takes
/// them, and says of none that it is out of the ordinary.
pub(crate) fn a_locked_down_kernel_loads_signed_modules(lab: &mut Lab) -> Result<()> {
    let recipe = lab.folder().join("locked-down");
    let text = format!(
        "extends = \"{}/node.toml\"\n[image]\nname = \"locked-down\"\n[kernel]\nlockdown = \"integrity\"\n",
        lab.recipes().display()
    );
    fs::write(recipe.with_extension("toml"), text)?;
    let image = lab.builder().build(&recipe.display().to_string())?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let found = running.run(
        "cat /sys/kernel/security/lockdown /proc/sys/kernel/tainted; grep -c . /proc/modules",
    )?;
    let lines: Vec<&str> = found.lines().collect();
    ensure!(
        lines.first() == Some(&"none [integrity] confidentiality") && lines.get(1) == Some(&"0"),
        "lockdown, taint and number of modules: {lines:?}"
    );
    Ok(())
}

/// A module that DKMS compiled when the image was built is loaded by its name at each boot, and by `modprobe`.
pub(crate) fn a_module_of_dkms_is_loaded(lab: &mut Lab) -> Result<()> {
    let recipe = lab.folder().join("dkms");
    let text = format!(
        "extends = \"{}/node.toml\"\n[image]\nname = \"dkms\"\n[kernel]\ndkms = [\"acpi-call-dkms\"]\nload = [\"acpi_call\"]\n",
        lab.recipes().display()
    );
    fs::write(recipe.with_extension("toml"), text)?;
    let image = lab.builder().build(&recipe.display().to_string())?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.run(
        "timeout 60 sh -c 'until grep -q ^acpi_call /proc/modules; do sleep 1; done'; test -e /proc/acpi/call",
    )?;
    running.run("modprobe -r acpi_call && ! test -e /proc/acpi/call && modprobe acpi_call && test -e /proc/acpi/call")?;
    let path = running.run("modinfo -n acpi_call")?;
    ensure!(
        path.ends_with("/updates/dkms/acpi_call.ko"),
        "the module is {path}"
    );
    Ok(())
}

/// An image with the backports' kernel boots it, loads its modules, and has the firmware of its drivers in root and initramfs.
pub(crate) fn a_kernel_of_backports_boots_with_firmware(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/backports")?;
    let bytes = fs::read(&image.uki)?;
    let initrd = uki::section(&bytes, ".initrd")?.context("the image has no initrd")?;
    let initramfs = zstd::stream::decode_all(initrd).context("unpacking the initrd")?;
    let entries = cpio::read(&initramfs)?;
    let firmware = |entry: &cpio::Entry<'_>| {
        entry.name.starts_with("lib/firmware/bnx2x/") && !entry.content.is_empty()
    };
    ensure!(
        entries.iter().any(firmware),
        "the initramfs has no firmware of bnx2x"
    );
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let version = running.run("cat /proc/version")?;
    ensure!(version.contains("~bpo"), "the kernel is {version}");
    // Of the root: no device asked for it before.
    running.run("modprobe bnx2x && grep -q ^bnx2x /proc/modules")?;
    running.run(
        "for name in $(modinfo -F firmware bnx2x); do test -s /usr/lib/firmware/$name && exit 0; done; exit 1",
    )?;
    Ok(())
}

/// The image boots by UEFI, through systemd-boot and the unified kernel image, to the handoff, and systemd is up.
pub(crate) fn a_uefi_boot_reaches_the_handoff(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    node.run("test -d /sys/firmware/efi/efivars")?;
    let loader =
        node.run("cat /sys/firmware/efi/efivars/LoaderInfo-* | tail -c +5 | tr -d '\\0'")?;
    ensure!(loader.contains("systemd-boot"), "the loader is {loader:?}");
    let stub = node.run("cat /sys/firmware/efi/efivars/StubInfo-* | tail -c +5 | tr -d '\\0'")?;
    ensure!(stub.contains("systemd-stub"), "the stub is {stub:?}");
    let init = node.run("cat /proc/1/comm")?;
    ensure!(init == "systemd", "process 1 is {init:?}");
    let running = node.ask("timeout 80 systemctl is-system-running --wait")?;
    ensure!(
        running.output == "running",
        "systemd says {:?}: {}",
        running.output,
        node.ask("systemctl --failed --no-legend")?.output
    );
    // No mount of the initrd remains: all mounts are the node's.
    let left = node.ask("grep -E ' (/sysroot|/initrd)' /proc/self/mountinfo")?;
    ensure!(
        left.code == 1,
        "a mount of the initrd is left: {}",
        left.output
    );
    Ok(())
}

/// A provisioned node boots again by UEFI without one packet before the handoff, and creates no file system.
pub(crate) fn a_second_boot_uses_no_network_and_formats_nothing(lab: &mut Lab) -> Result<()> {
    let first = lab.take_healthy(&probes())?;
    let node = first.node.clone();
    first.power_off()?;
    let identities = || -> Result<Vec<Vec<u8>>> {
        let mut found = vec![ext4_identity(&node.etcd(), 0)?];
        for label in [LABEL_STATE, LABEL_VAR] {
            let (start, _) = partition(&node.system(), label)?;
            found.push(ext4_identity(&node.system(), start)?);
        }
        Ok(found)
    };
    let before = identities()?;

    let plan = BootOptions {
        capture: true,
        direct: false,
        ..BootOptions::default()
    };
    let second = lab.boot(&node, &plan)?;
    let found = second.vm.console().wait(timeouts::HANDOFF, |text| {
        text.contains(HANDOFF_LINE).then(|| second.captured())
    });
    let Waited::Found(captured) = found else {
        anyhow::bail!("no handoff in the second boot: {found:?}");
    };
    let captured = captured?;
    ensure!(
        captured <= PCAP_HEADER,
        "{captured} bytes of packets were captured before the handoff"
    );
    second.wait_agent()?;
    // Proof that the capture works: systemd-networkd requests its lease after the handoff.
    second.run("for i in {1..60}; do networkctl is-online 2>/dev/null; ip -4 -o addr show scope global | grep -q inet && exit 0; sleep 1; done; exit 1")?;
    let later = second.captured()?;
    ensure!(
        later > PCAP_HEADER,
        "the node got a lease and nothing was captured"
    );
    second.vm.pull_plug();
    let after = identities().context("looking at the file systems after the second boot")?;
    ensure!(
        before == after,
        "a file system was created in the second boot"
    );
    Ok(())
}

/// The same disk boots on NVMe and on virtio-scsi, and finds its root and its etcd disk there.
pub(crate) fn disks_on_nvme_and_scsi_controllers_boot(lab: &mut Lab) -> Result<()> {
    for (bus, pattern) in [(Bus::Nvme, "/dev/nvme"), (Bus::Scsi, "/dev/sd")] {
        let node = lab.node()?;
        let plan = BootOptions {
            bus,
            ..BootOptions::default()
        };
        let running = lab.boot(&node, &plan)?;
        running
            .wait_handoff(timeouts::INIT)
            .with_context(|| format!("booting from {bus:?}"))?;
        running.wait_agent()?;
        let disk = running.run("findmnt -no SOURCE /var/lib/etcd")?;
        ensure!(
            disk.starts_with(pattern),
            "on {bus:?} the etcd disk is {disk:?}"
        );
    }
    Ok(())
}
