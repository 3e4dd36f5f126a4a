//! The kubelet and its static pod etcd.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use qemu_tests::disk_content::boot_entries;
use qemu_tests::lab::Lab;
use qemu_tests::running::{HEALTH, Running};
use qemu_tests::timeouts;
use serde_json::Value;
use slipway::vm::channel::Waited;

use crate::ignition::{CONSOLE_PASSWORD, CONSOLE_USER, probes};

/// The kubelet is READY, etcd answers `health`, and its log is on the etcd disk's file system.
pub(crate) fn etcd_is_healthy_with_its_data_on_the_etcd_disk(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let health = node.run(HEALTH)?;
    ensure!(health.contains("\"health\":\"true\""), "{health}");
    // The device of the write-ahead log that the running etcd has open must be the disk with the serial number `etcd`.
    let disk = node.run("stat -c %Hd:%Ld \"$(findmnt -no SOURCE /var/lib/etcd)\" >/dev/null; mountpoint -d /var/lib/etcd")?;
    let open = node.run(
        "for fd in /proc/$(pgrep -xo etcd)/fd/*; do case $(readlink $fd) in *.wal) stat -Lc '%Hd:%Ld' $fd;; esac; done | sort -u",
    )?;
    ensure!(
        open == disk,
        "etcd's log is on {open:?}, the disk is {disk:?}"
    );
    let serial = node.run(&format!("cat /sys/dev/block/{disk}/serial"))?;
    ensure!(serial.trim() == "etcd", "that disk's serial is {serial:?}");
    Ok(())
}

/// Commands about the running node, and what they print, as a security team asks for it.
const HARDENED: &[(&str, &str)] = &[
    (
        "for key in kptr_restrict yama/ptrace_scope kexec_load_disabled; do cat /proc/sys/kernel/$key; done | tr -d '\\n'",
        "111",
    ),
    // LLMNR and multicast DNS.
    ("ss -Hlnu '( sport = :5355 or sport = :5353 )'", ""),
    (
        "systemctl list-units --all --no-legend '*.automount' | grep -E 'boot|efi' || true",
        "",
    ),
    // The kubelet's container is below this root too.
    ("find / -xdev -perm /6000 -type f 2>&1 | head -3", ""),
    // The container and its mounts are as the rules say.
    (
        "/usr/lib/slipway/slipway-node kubelet lint 2>&1 | grep -v '^no rule is broken: ' || true",
        "",
    ),
    // Nobody can log in at a prompt.
    ("pgrep -x agetty || true", ""),
    ("hostname | grep -cxE 'node-[0-9a-f]{12}'", "1"),
    // The kernel has its own about the emulated machine.
    (
        "journalctl -b -q --no-pager -o cat -p err _TRANSPORT=journal + _TRANSPORT=stdout + _TRANSPORT=syslog",
        "",
    ),
];

/// Nothing listens for names on the link, the kernel keeps its addresses and itself, the boot loader's partition is not
/// mounted on access, no program gives other rights than its user's, nobody is asked
/// to log in, the node has a name of its own, and its journal has no error.
pub(crate) fn the_running_node_is_closed(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    for (command, expected) in HARDENED {
        let found = node.run(command)?;
        ensure!(
            found == *expected,
            "{command}: expected {expected:?}, found {found:?}"
        );
    }
    Ok(())
}

/// The first line of the page on a serial line.
const PAGE: &str = "slipway: status of ";
/// The first line of the page on a screen of 80 columns, and the node's name.
const SCREEN: &str = "head -c 80 /dev/vcs1; echo; hostname";
/// The most memory that the page may have at rest, in KiB.
const PAGE_MEMORY: u64 = 24 << 10;

/// A command for the shell of a console, whose answer is not in the command itself.
const ASK_SHELL: &str = "echo \"$(id -un) has $((6 * 7))\"\r";

/// Logs in at the prompt on the console with a user of the config, asks the shell, and logs out, until the prompt is there again.
fn log_in(node: &Running, prompt: &str) -> Result<()> {
    let console = node.vm.console();
    console.say(format!("{CONSOLE_USER}\r").as_bytes())?;
    node.wait_console(&["Password: "], timeouts::QUESTION)?;
    console.say(format!("{CONSOLE_PASSWORD}\r").as_bytes())?;
    // What is typed before the shell reads is kept by the terminal; login drops what came before the password.
    let welcome = format!("{CONSOLE_USER}@");
    let shell = |text: &str| (text.contains(&welcome) || text.contains("\n$ ")).then_some(());
    let found = console.wait(timeouts::QUESTION, shell);
    ensure!(found == Waited::Found(()), "no shell: {found:?}");
    console.say(ASK_SHELL.as_bytes())?;
    node.wait_console(&[&format!("{CONSOLE_USER} has 42")], timeouts::QUESTION)?;
    let prompts = |text: &str| text.matches(prompt).count();
    let before = prompts(&console.text());
    console.say(b"exit\r")?;
    let again = |text: &str| (prompts(text) > before).then_some(());
    let found = console.wait(timeouts::QUESTION, again);
    ensure!(
        found == Waited::Found(()),
        "no prompt after the shell: {found:?}"
    );
    Ok(())
}

/// Serial line and screen have the status that the command prints. At a login prompt a user of the config gets a shell by his
/// password. With a prompt the serial line has no page, even if
/// the unit starts anew, and without one it has the page again. The unit needs no more memory than is promised.
pub(crate) fn the_consoles_show_the_status_unless_they_ask_for_a_login(
    lab: &mut Lab,
) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let status: Value = serde_json::from_str(&node.run("slipway-node status --json")?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, image) = (text(&status["name"]), &status["image"]);
    let first = format!("{PAGE}{name}: ");
    let image = format!("{} {}", text(&image["name"]), text(&image["version"]));
    node.wait_console(&[&first, &image], timeouts::QUESTION)?;
    let screen = node.run(SCREEN)?;
    let names: Vec<&str> = screen.split_whitespace().collect();
    ensure!(
        names == ["name", &name, &name],
        "the screen has {screen:?}, the status {name:?}"
    );

    let pages = || node.vm.console().text().matches(PAGE).count();
    node.run("systemctl start serial-getty@ttyS0.service")?;
    let prompt = format!("{name} login: ");
    node.wait_console(&[&prompt], timeouts::QUESTION)?;
    log_in(node, &prompt)?;
    let before = pages();
    node.run("systemctl restart slipway-console.service; sleep 15")?;
    ensure!(
        pages() == before,
        "a page is on the console with the prompt"
    );
    node.run("systemctl stop serial-getty@ttyS0.service")?;
    let again = |text: &str| (text.matches(PAGE).count() > before).then_some(());
    let found = node.vm.console().wait(timeouts::QUESTION, again);
    ensure!(
        found == Waited::Found(()),
        "no page after the prompt: {found:?}"
    );

    let memory =
        "grep VmRSS /proc/$(systemctl show -P MainPID slipway-console.service)/status | tr -dc 0-9";
    let memory = node.run(memory)?;
    ensure!(
        memory.trim().parse::<u64>()? <= PAGE_MEMORY,
        "it has {memory} KiB"
    );
    Ok(())
}

/// Commands about containerd's images, and what they print: it has those of the root without a copy of their files, after its
/// garbage collection too, and a container of one has its files from the verified root.
const IMAGES: &[(&str, &str)] = &[
    ("systemctl show -P Result slipway-images.service", "success"),
    (
        "ctr -n k8s.io content prune references >/dev/null; ctr -n k8s.io images ls -q | grep -c '^slipway.local/'",
        "6",
    ),
    (
        "ctr -n k8s.io images check | grep '^slipway.local/' | awk '{ print $NF }' | sort -u",
        "true",
    ),
    (
        "find /var/lib/containerd -xdev -path '*content*' -type f -size +64k",
        "",
    ),
    (
        "lower=$(sed -n 's/^overlay .*lowerdir=\\([^,:]*\\).*/\\1/p' /proc/mounts | grep snapshots | head -n1); realpath $lower | grep -c ^/usr/lib/slipway/images/",
        "1",
    ),
];

/// The container images of the recipe are known to containerd without an import.
pub(crate) fn container_images_are_folders_of_the_verified_root(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    for (command, expected) in IMAGES {
        let found = node.run(command)?;
        ensure!(
            found.trim() == *expected,
            "{command}: expected {expected:?}, found {found:?}"
        );
    }
    Ok(())
}

/// Once the kubelet is READY the boot entry has no counter, so the loader does not count this slot down any more.
pub(crate) fn a_ready_kubelet_blesses_the_boot_entry(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let disk = node.node.system();
    let until = Instant::now() + timeouts::BLESSING;
    loop {
        let entries = boot_entries(&disk)?;
        if entries.len() == 1 && !entries[0].contains('+') {
            break;
        }
        ensure!(
            Instant::now() < until,
            "the boot entries are {entries:?}; the journal says: {}",
            node.ask("journalctl --no-pager -u slipway-bless.service")?
                .output
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    let mounted = node.ask("grep -c vfat /proc/1/mountinfo")?;
    ensure!(
        mounted.output.trim() == "0",
        "the loader's partition is still mounted"
    );
    Ok(())
}

/// After each of five kills the kubelet is back within 15 s; the number of mounts and the etcd process stay the same.
pub(crate) fn a_killed_kubelet_restarts_and_leaks_no_mounts(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let answer = node.run_within(KILLS, timeouts::KILLS)?;
    let mut returns = 0;
    for line in answer.lines() {
        if let Some(tenths) = line.strip_prefix("back ") {
            let tenths: u32 = tenths.parse()?;
            ensure!(
                tenths <= 150,
                "the kubelet was back after {}.{} s:\n{answer}",
                tenths / 10,
                tenths % 10
            );
            returns += 1;
        }
    }
    ensure!(
        returns == 5,
        "the kubelet was back {returns} times of 5:\n{answer}"
    );
    let count = |name: &str| {
        answer
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok())
    };
    let (before, after) = (count("mounts-before"), count("mounts-after"));
    ensure!(
        before.is_some() && before == after,
        "mounts before {before:?}, after {after:?}:\n{answer}"
    );
    ensure!(
        answer.contains("etcd same"),
        "etcd was restarted:\n{answer}"
    );
    Ok(())
}

/// Kills and counts in the guest; times are tenths of a second of the guest's clock.
const KILLS: &str = r#"
healthy() { exec 3<>/dev/tcp/127.0.0.1/10248 && printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 && timeout 5 cat <&3 | grep -q '^ok'; }
tenths() { read -r up _ < /proc/uptime; up=${up/./}; echo $((up / 10)); }
mounts() { wc -l < /proc/1/mountinfo; }
etcd=$(pgrep -xo etcd)
(healthy) || { echo "not healthy before"; exit 1; }
echo "mounts-before $(mounts)"
for i in 1 2 3 4 5; do
  old=$(pgrep -xo kubelet)
  start=$(tenths)
  kill -9 "$old"
  until new=$(pgrep -xo kubelet) && [ "$new" != "$old" ] && (healthy) 2>/dev/null; do
    [ $(( $(tenths) - start )) -gt 300 ] && break
    sleep 0.2
  done
  echo "back $(( $(tenths) - start ))"
done
sleep 2
echo "mounts-after $(mounts)"
[ "$(pgrep -xo etcd)" = "$etcd" ] && echo "etcd same"
"#;
