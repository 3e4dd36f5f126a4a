//! Ignition configs: applied, refused, changed.

use std::fs;
use std::time::SystemTime;

use anyhow::{Result, bail, ensure};
use image::layout::LABEL_VAR;
use image::paths::ETC_UPPER;
use image::report::{HANDOFF_LINE, Handoff, LINE};
use qemu_tests::disk_content::dump;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::of_image;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::channel::Waited;
use slipway::vm::disks::partition;
use slipway::vm::machine::OnReset;

/// A capture file without packets.
pub(crate) const PCAP_HEADER: u64 = 24;

/// The config of the shared node: one of each kind of entry that the promises check.
pub(crate) fn probes() -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "passwd": { "users": [{
            "name": "probe",
            "groups": ["systemd-journal"],
            "sshAuthorizedKeys": [KEY],
        }, {
            "name": CONSOLE_USER,
            "passwordHash": CONSOLE_HASH,
        }]},
        "storage": {
            "directories": [{ "path": "/var/lib/probe", "mode": 0o750 }],
            "files": [
                {
                    "path": "/etc/probe/file",
                    "mode": 0o640,
                    "user": { "name": "probe" },
                    "contents": {
                        "source": data_url(b"probe\n"),
                        // sha256sum of "probe\n"
                        "verification": { "hash": format!("sha256-{}", sha256(b"probe\n")) },
                    },
                },
                {
                    "path": "/opt/probe",
                    "contents": { "source": data_url(b"in opt\n") },
                },
            ],
            "links": [{ "path": "/etc/probe/link", "target": "file" }],
        },
        "systemd": { "units": [
            {
                "name": "probe.service",
                "enabled": true,
                "contents": "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo $WORD > /run/probe'\n[Install]\nWantedBy=multi-user.target\n",
                "dropins": [{ "name": "10-word.conf", "contents": "[Service]\nEnvironment=WORD=dropin\n" }],
            },
            { "name": "apt-daily.timer", "mask": true },
        ]},
    })
}

/// A user who logs in on a console.
pub(crate) const CONSOLE_USER: &str = "console";
/// The password.
pub(crate) const CONSOLE_PASSWORD: &str = "probe-password";
/// Its hash, by `openssl passwd -6`.
const CONSOLE_HASH: &str = "$6$slipway$ssnk.Eo/8aC1nc8pFd8yLCup1SDmiCBOuBwzep8QolzJo.WsR4z2lwJzVCwvb3v/L99X9L4pGtg2G3ObC3/ei.";

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0eA5mT5bq0Rk3aG9iW0p1vJ5p4c4l8h6r0cYv2b3dK probe";

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Files, folders, links, users with keys, units with drop-ins, enabled and masked, are applied in the first boot.
pub(crate) fn files_units_and_users_are_applied(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    for (script, expected) in [
        ("cat /etc/probe/file", "probe"),
        ("stat -c '%a %U' /etc/probe/file", "640 probe"),
        ("readlink /etc/probe/link", "file"),
        (
            "cat /opt/probe; realpath /opt/probe",
            "in opt\n/var/opt/probe",
        ),
        ("stat -c %a /var/lib/probe", "750"),
        ("id -nG probe", "probe systemd-journal"),
        (
            "cat ~probe/.ssh/authorized_keys.d/ignition; stat -c '%U %a' ~probe/.ssh/authorized_keys.d/ignition",
            &format!("{KEY}\nprobe 600"),
        ),
        ("cat /run/probe", "dropin"),
        ("systemctl is-active probe.service", "active"),
        ("readlink /etc/systemd/system/apt-daily.timer", "/dev/null"),
    ] {
        let found = node.ask(script)?;
        ensure!(
            found.output == expected,
            "`{script}` gave {:?}; expected {expected:?}",
            found.output
        );
    }
    // sshd reads the key: its own configuration names the file.
    let keys = node.run("sshd -T | grep -i authorizedkeysfile")?;
    ensure!(keys.contains("authorized_keys.d/ignition"), "{keys}");
    Ok(())
}

/// A provisioned node that gets another config reports the difference, on the console and in the handoff line, without
/// network traffic, and applies no part of it; with its original config again, it reports nothing.
pub(crate) fn a_changed_config_is_reported_and_not_applied(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = |name: &str| {
        let path = format!("/etc/{name}");
        json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{ "path": path, "contents": { "source": data_url(b"x") } }] },
        })
    };
    for (name, changed) in [
        ("probe-one", false),
        ("probe-two", true),
        ("probe-one", false),
    ] {
        let plan = BootOptions {
            config: Some(config(name)),
            capture: true,
            ..BootOptions::default()
        };
        let running = lab.boot(&node, &plan)?;
        running.wait_handoff(timeouts::INIT)?;
        let captured = running.captured()?;
        let whole = |text: &str| Handoff::find(text);
        let Waited::Found(handoff) = running.vm.console().wait(timeouts::INIT, whole) else {
            bail!("the handoff line is incomplete");
        };
        ensure!(
            handoff.config_changed == changed,
            "given {name}: {handoff:?}"
        );
        let text = running.vm.console().text();
        let line = "slipway: config: fw_cfg differs from the config that this node was provisioned with; it is not applied";
        ensure!(
            text.contains(line) == changed,
            "given {name}, the console says:\n{text}"
        );
        ensure!(
            captured <= PCAP_HEADER,
            "given {name}, {captured} bytes of packets were captured"
        );
        running.vm.pull_plug();
    }
    let (start, _) = partition(&node.system(), LABEL_VAR)?;
    let out = tempfile::tempdir_in(node.folder())?;
    dump(&lab.tools, &node.system(), start, out.path())?;
    let etc = out.path().join(ETC_UPPER.trim_start_matches("/var/"));
    ensure!(
        etc.join("probe-one").exists() && !etc.join("probe-two").exists(),
        "the second config was applied, or the first was not"
    );
    Ok(())
}

/// A config with one source whose hash is wrong: the console reports the mismatch, no part of the config is applied,
/// and there is no handoff.
pub(crate) fn a_wrong_hash_leaves_nothing_applied(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [
            { "path": "/etc/probe-first", "contents": { "source": data_url(b"first") } },
            { "path": "/etc/probe-second", "contents": {
                "source": data_url(b"second"),
                "verification": { "hash": format!("sha256-{}", sha256(b"another")) },
            }},
        ]},
    });
    let plan = BootOptions {
        config: Some(config),
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let written = || -> Result<SystemTime> { Ok(fs::metadata(node.system())?.modified()?) };
    let before = written()?;
    let running = lab.boot(&node, &plan)?;
    let text = running.wait_console(
        &[
            LINE,
            "nothing was written",
            "files",
            "hash that the config gives",
        ],
        timeouts::INIT,
    )?;
    ensure!(!text.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    ensure!(
        written()? == before,
        "something was written to the system disk"
    );
    Ok(())
}

/// Kernel arguments are set with one reboot, for this boot and all later ones; if another loader started the kernel,
/// the init refuses them by name.
pub(crate) fn kernel_arguments_take_one_reboot(lab: &mut Lab) -> Result<()> {
    const REBOOTS: &str = "the node reboots once";
    // The options of a module that the init loads, and a driver that it leaves out.
    const WORDS: &str =
        "slipway.probe=afloat nosmt dm-verity.prefetch_cluster=131072 modprobe.blacklist=i6300esb";
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "kernelArguments": { "shouldExist": [WORDS], "shouldNotExist": ["slipway.never"] },
    });
    let node = lab.node()?;
    let plan = BootOptions {
        config: Some(config.clone()),
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    let report = running.wait_report(timeouts::INIT)?;
    ensure!(
        report.contains("kernel_arguments") && report.contains("by something else"),
        "{report}"
    );
    running.vm.pull_plug();

    let plan = BootOptions {
        config: Some(config),
        direct: false,
        ..BootOptions::default()
    };
    for (boot, reboots) in [("first", 1), ("second", 0)] {
        let running = lab.boot(&node, &plan)?;
        running.wait_handoff(timeouts::HANDOFF + timeouts::HANDOFF)?;
        running.wait_agent()?;
        let cmdline = running.run("cat /proc/cmdline")?;
        ensure!(
            of_image(&cmdline).ends_with(WORDS),
            "the {boot} boot's command line is {cmdline:?}"
        );
        let modules = running.run(
            "cat /sys/module/dm_verity/parameters/prefetch_cluster; cut -d' ' -f1 /proc/modules",
        )?;
        ensure!(
            modules.starts_with("131072\n")
                && modules.contains("softdog")
                && !modules.contains("i6300esb"),
            "the {boot} boot has the modules {modules}"
        );
        let found = running.vm.console().text().matches(REBOOTS).count();
        ensure!(found == reboots, "{found} reboots in the {boot} boot");
        if boot == "first" {
            running.power_off()?;
        }
    }
    Ok(())
}
