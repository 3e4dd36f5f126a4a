//! The etcd disk.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::guid::Guid;
use image::paths::{ETCD, NODE_SETTINGS};
use image::report::HANDOFF_LINE;
use qemu_tests::disk_content::{Content, digest, ext4_identity, remove};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use serde_json::json;
use slipway::vm::agent::data_url;
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, copy_sparse};
use slipway::vm::machine::Start;
use slipway::vm::machine::disk::{Bus, Disk, Format};

use crate::ignition::probes;

/// How many reboots the data has to survive.
const REBOOTS: usize = 5;
/// Writes a key through etcd's JSON gateway: `slipway` = `afloat`.
const PUT: &str = r#"body='{"key":"c2xpcHdheQ==","value":"YWZsb2F0"}'
exec 3<>/dev/tcp/127.0.0.1/2379
printf 'POST /v3/kv/put HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
timeout 20 cat <&3 | grep -F revision"#;
/// Reads it back.
const GET: &str = r#"body='{"key":"c2xpcHdheQ=="}'
exec 3<>/dev/tcp/127.0.0.1/2379
printf 'POST /v3/kv/range HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
timeout 20 cat <&3 | grep -F '"value":"YWZsb2F0"'"#;

/// Prints the file systems with an orphan file that should have none, or with one of more than 32 KiB.
const ORPHANS: &str = r#"for path in /var /var/lib/slipway/state /var/lib/etcd; do
    device=$(findmnt -nro SOURCE $path)
    inode=$(dumpe2fs -h $device 2>&1 | sed -n 's/^Orphan file inode: *//p')
    case $path in
    /var) debugfs -R "stat <$inode>" $device 2>&1 | grep -q 'Size: 32768$' || echo "$path: inode $inode" ;;
    *) test -z "$inode" || echo "$path: inode $inode" ;;
    esac
done"#;

/// A blank disk is formatted in the first boot, as the settings allow, and never again: a file and a key of etcd survive
/// five reboots, two of them after a power loss.
pub(crate) fn a_blank_disk_is_formatted_once_and_keeps_its_data(lab: &mut Lab) -> Result<()> {
    let mut running = lab.take_healthy(&probes())?;
    let node = running.node.clone();
    running.run(PUT).context("writing a key")?;
    running.run(&format!("echo afloat > {ETCD}/probe && sync {ETCD}/probe"))?;
    let long = running.run(ORPHANS)?;
    ensure!(
        long.is_empty(),
        "these have a long orphan file, which every mount reads: {long}"
    );
    let before = ext4_identity(&node.etcd(), 0)?;
    for reboot in 1..=REBOOTS {
        // Two power losses under load, otherwise a clean shutdown.
        if reboot % 2 == 0 {
            running.vm.pull_plug();
        } else {
            running.power_off()?;
        }
        running = lab.boot(&node, &BootOptions::default())?;
        running
            .wait_handoff(timeouts::INIT)
            .with_context(|| format!("after reboot {reboot}"))?;
        running.wait_agent()?;
        let kept = running.run(&format!("cat {ETCD}/probe"))?;
        ensure!(
            kept == "afloat",
            "after reboot {reboot} the file has {kept:?}"
        );
        let now = ext4_identity(&node.etcd(), 0)?;
        ensure!(
            now == before,
            "the disk was formatted again at reboot {reboot}"
        );
    }
    running.wait_services()?;
    running.wait_healthy()?;
    running.run(GET).context("reading the key back")?;
    lab.share(running);
    Ok(())
}

/// Without its etcd disk a control plane waits, repeats on the console which disk it waits for, and starts no kubelet.
pub(crate) fn without_it_the_kubelet_waits_and_the_console_says_why(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        etcd: false,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    let lines = |text: &str| {
        text.lines()
            .filter(|line| line.contains("etcd") && line.contains("serial"))
            .count()
    };
    let waited = running
        .vm
        .console()
        .wait(timeouts::INIT, |text| (lines(text) >= 1).then_some(()));
    ensure!(
        waited == Waited::Found(()),
        "no line about the etcd disk: {waited:?}"
    );
    let waited = running.vm.console().wait(timeouts::WAITING_LINES, |text| {
        (lines(text) >= 3).then_some(())
    });
    ensure!(
        waited == Waited::Found(()),
        "the line is not repeated: {waited:?}"
    );
    let text = running.vm.console().text();
    ensure!(
        !text.contains(HANDOFF_LINE) && !text.contains("kubelet.service"),
        "the node continued without its etcd disk"
    );
    Ok(())
}

/// A disk with unknown content is refused, with the expected and the found content, and no byte of it changes.
pub(crate) fn unknown_content_is_refused_and_unchanged(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    for content in Content::ALL {
        remove(&node.etcd())?;
        content.write(&node.etcd(), &lab.tools)?;
        let before = digest(&node.etcd())?;
        let running = lab.boot(&node, &BootOptions::default())?;
        let text = running
            .wait_console(
                &["etcd", "expected", "found", word(content)],
                timeouts::INIT,
            )
            .with_context(|| format!("a disk with {content:?}"))?;
        // Time for a faulty init to continue after the refusal.
        std::thread::sleep(Duration::from_secs(3));
        ensure!(
            !text.contains(HANDOFF_LINE) && !running.vm.console().text().contains(HANDOFF_LINE),
            "a disk with {content:?} was accepted"
        );
        running.vm.pull_plug();
        ensure!(
            digest(&node.etcd())? == before,
            "a disk with {content:?} was changed"
        );
    }
    Ok(())
}

/// A control plane takes neither of two disks that match. Once it has a volume, it formats no blank one in its place and
/// accepts no other node's, unless its UUID is named; and it then keeps that one.
pub(crate) fn a_node_takes_no_other_volume_than_its_own(lab: &mut Lab) -> Result<()> {
    let [node, other] = [lab.node()?, lab.node()?];
    // The second candidate is on a controller whose driver is loaded later.
    let twin = Disk {
        path: node.folder().join("twin.raw"),
        format: Format::Raw,
        bus: Bus::Sata,
        ..node.etcd_disk(Bus::Virtio)?
    };
    copy_sparse(&node.etcd(), &twin.path)?;
    let plan = BootOptions {
        more: vec![twin.clone()],
        ..BootOptions::default()
    };
    refused(lab, &node, &plan, &["more than one volume", "vdb", "sda"])
        .context("two disks that match")?;
    remove(&twin.path)?;
    for node in [&node, &other] {
        accepted(lab, node, "")?;
    }
    let own = node.folder().join("own.raw");
    fs::rename(node.etcd(), &own)?;
    let [uuid, others] = [&own, &other.etcd()].map(|disk| uuid(disk));
    let (uuid, others) = (uuid?, others?);
    let plan = BootOptions::default();
    refused(lab, &node, &plan, &["not this node's", &uuid, "no ext"])
        .context("a blank disk in place of its own")?;
    remove(&node.etcd())?;
    fs::rename(other.etcd(), node.etcd())?;
    refused(lab, &node, &plan, &["not this node's", &uuid, &others])
        .context("another node's volume in place of its own")?;
    accepted(lab, &node, &format!(" slipway.etcd.adopt={others}"))
        .context("a volume that is adopted")?;
    fs::rename(node.etcd(), node.folder().join("adopted.raw"))?;
    fs::rename(&own, node.etcd())?;
    refused(lab, &node, &plan, &["not this node's", &uuid, &others])
        .context("the former volume of a node that adopted another one")
}

/// The settings of a control plane of the cluster `demo`, with this way to its volume.
fn settings(etcd: &str) -> BootOptions {
    let text = format!("role = \"control-plane\"\n[etcd]\n{etcd}\n");
    let file = json!({
        "path": NODE_SETTINGS,
        "overwrite": true,
        "contents": { "source": data_url(text.as_bytes()) },
    });
    BootOptions {
        config: Some(json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [file] },
        })),
        ..BootOptions::default()
    }
}

/// A blank disk is not formatted without consent, nor one that is smaller than the settings want; a volume that cannot be
/// written to, and one of another cluster, are refused; none of them changes. A volume is found by its label too, and the file
/// system grows with its disk.
pub(crate) fn the_settings_and_the_disk_decide(lab: &mut Lab) -> Result<()> {
    const MORE: u64 = 256 << 20;
    let by_serial = "serial = \"etcd\"\ncluster = \"demo\"";
    for (rest, words) in [
        (
            "format = \"never\"",
            ["does not allow formatting", "if-blank"],
        ),
        (
            "format = \"if-blank\"\nminimum-size = 1099511627776",
            ["is too small", "1048576 MiB"],
        ),
    ] {
        let plan = settings(&format!("{by_serial}\n{rest}"));
        let node = lab.node()?;
        refused(lab, &node, &plan, &words).with_context(|| rest.to_owned())?;
    }
    let first = lab.node()?;
    accepted(lab, &first, "")?;
    let mut another = || -> Result<Node> {
        let node = lab.node()?;
        copy_sparse(&first.etcd(), &node.etcd())?;
        Ok(node)
    };
    let [locked, stranger, labelled] = [another()?, another()?, another()?];
    let disk = Disk {
        read_only: true,
        ..locked.etcd_disk(Bus::Virtio)?
    };
    let plan = BootOptions {
        etcd: false,
        more: vec![disk],
        ..BootOptions::default()
    };
    refused(
        lab,
        &locked,
        &plan,
        &["etcd volume is read-only", "accepts writes"],
    )?;
    let plan = settings("serial = \"etcd\"\ncluster = \"other\"");
    let words = ["belongs to another cluster", "\"other\"", "\"demo\""];
    refused(lab, &stranger, &plan, &words)?;
    let file = fs::File::options().write(true).open(labelled.etcd())?;
    let before = file.metadata()?.len();
    file.set_len(before + MORE)?;
    let plan = settings("label = \"etcd\"\ncluster = \"demo\"");
    let running = lab.boot(&labelled, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let size = running.run("findmnt -bnro SIZE /var/lib/etcd")?;
    running.power_off()?;
    // What ext4 itself needs is less than what was added.
    let size: u64 = size.trim().parse().context("the size of /var/lib/etcd")?;
    ensure!(
        size > before,
        "the volume has {size} bytes on a disk of {}",
        before + MORE
    );
    Ok(())
}

/// A UUID in the settings makes a node take the volume that has it, once: back with its former volume it is refused, though
/// the settings still say the same.
pub(crate) fn the_settings_adopt_another_volume_once(lab: &mut Lab) -> Result<()> {
    let [node, other] = [lab.node()?, lab.node()?];
    accepted(lab, &other, "")?;
    let [own, others] = [node.folder().join("own.raw"), other.etcd()];
    let adopt = uuid(&others)?;
    let running = lab.boot(&node, &BootOptions::default())?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.run(&format!(
        "mkdir -p $(dirname {NODE_SETTINGS}) && cat > {NODE_SETTINGS} <<'END' && sync {NODE_SETTINGS}\n[etcd]\nadopt = \"{adopt}\"\nEND"
    ))?;
    running.power_off()?;
    let uuid = uuid(&node.etcd())?;
    // Its own volume is there and the other one is not: the consent is not spent.
    accepted(lab, &node, "").context("with its own volume")?;
    fs::rename(node.etcd(), &own)?;
    fs::rename(&others, node.etcd())?;
    accepted(lab, &node, "").context("with the volume that the settings name")?;
    accepted(lab, &node, "").context("with that volume again")?;
    fs::rename(node.etcd(), &others)?;
    fs::rename(&own, node.etcd())?;
    let words = ["not this node's", &uuid, &adopt];
    refused(lab, &node, &BootOptions::default(), &words).context("the former volume")
}

/// Boots to the handoff with these words behind the command line, and cuts the power.
fn accepted(lab: &mut Lab, node: &Node, words: &str) -> Result<()> {
    let mut machine = lab.machine(node, &BootOptions::default())?;
    if let Start::Direct { cmdline, .. } = &mut machine.start {
        cmdline.push_str(words);
    }
    let running = lab.start(node, machine, None)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.vm.pull_plug();
    Ok(())
}

/// Boots and expects a refusal with these words; the etcd disk does not change.
fn refused(lab: &mut Lab, node: &Node, plan: &BootOptions, words: &[&str]) -> Result<()> {
    // It is made by the first boot that wants it.
    let disk = node.etcd_disk(plan.bus)?.path;
    let before = digest(&disk)?;
    let running = lab.boot(node, plan)?;
    running.wait_console(words, timeouts::INIT)?;
    // Time in which a wrong init would go on after the refusal.
    std::thread::sleep(Duration::from_secs(3));
    let text = running.vm.console().text();
    ensure!(!text.contains(HANDOFF_LINE), "the node continued");
    running.vm.pull_plug();
    ensure!(digest(&disk)? == before, "the disk was changed");
    Ok(())
}

/// The UUID of an ext4, as text.
fn uuid(disk: &Path) -> Result<String> {
    let identity = ext4_identity(disk, 0)?;
    let bytes = identity.get(4..20).context("the UUID")?;
    Ok(Guid(bytes.try_into()?).to_string())
}

/// The console's name for the content.
fn word(content: Content) -> &'static str {
    match content {
        Content::Gpt => "GPT",
        Content::Luks => "LUKS",
        Content::Lvm => "LVM",
        Content::Swap => "swap",
        Content::Ext4 => "ext file system",
        Content::Random => "no known kind",
    }
}
