//! Nodes whose config, name and network come from a drive, written by the programs that the platforms call.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::layout::SectorSize;
use image::paths::RUN_METADATA;
use qemu_tests::lab::{BootOptions, Lab, with_agent};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::install::tools::{self, Tools};
use slipway::lock;
use slipway::recipe::{SetRequest, load};
use slipway::vm::agent::data_url;
use slipway::vm::disks::Node;
use slipway::vm::machine::Start;
use slipway::vm::machine::disk::{Bus, Disk, Format};
use slipway::vm::run::Image;

/// Debian packages of the programs that make drives.
const PROGRAMS: [&str; 4] = ["coreutils", "dosfstools", "genisoimage", "mtools"];
/// What QEMU's first card has, which network data name.
const MAC: &str = "52:54:00:51:1b:0a";
/// What the drives call the machine.
const NAME: &str = "from-drive";
const INSTANCE: &str = "6b1c2a53-6c2e-4a0e-9d6f-0f7f6a3c9a11";
/// The address that the drives give it: not the one that QEMU's DHCP server gives.
const ADDRESS: &str = "10.0.2.77";
/// Prints the node's name, address, the config's file and the platform's metadata.
const WHAT_IT_IS: &str =
    "for i in {1..60}; do ip -4 -o addr show scope global | grep -q inet && break; sleep 1; done
hostname; cat /etc/probe; ip -4 -o addr show scope global; ip route; resolvectl dns";

/// The form of a drive's content.
#[derive(Clone, Copy)]
enum Content {
    /// OpenStack's, with the label `config-2`.
    OpenStack,
    /// NoCloud's, with the label `cidata`.
    NoCloud,
}

/// A drive as a platform attaches it.
struct Case {
    platform: &'static str,
    /// Whether the command line names the platform, since QEMU's firmware does not pretend to be it.
    named: bool,
    content: Content,
    /// VFAT, or ISO 9660.
    fat: bool,
    bus: Bus,
    /// The platform's name for the machine in the metadata.
    instance: &'static str,
}

const CASES: [Case; 4] = [
    // Proxmox VE: a CD-ROM with an ISO by genisoimage. QEMU's own tables are Proxmox's.
    Case {
        platform: "proxmoxve",
        named: false,
        content: Content::NoCloud,
        fat: false,
        bus: Bus::CdRom,
        instance: "AFTERBURN_PROXMOXVE_INSTANCE_ID",
    },
    // Nova with `config_drive_format=vfat`, which live migration needs.
    Case {
        platform: "openstack",
        named: true,
        content: Content::OpenStack,
        fat: true,
        bus: Bus::Virtio,
        instance: "AFTERBURN_OPENSTACK_INSTANCE_ID",
    },
    // KubeVirt: a virtio disk with an ISO.
    Case {
        platform: "kubevirt",
        named: true,
        content: Content::NoCloud,
        fat: false,
        bus: Bus::Virtio,
        instance: "AFTERBURN_KUBEVIRT_INSTANCE_ID",
    },
    // Nutanix: a CD-ROM in OpenStack's form.
    Case {
        platform: "nutanix",
        named: true,
        content: Content::OpenStack,
        fat: false,
        bus: Bus::CdRom,
        instance: "SLIPWAY_INSTANCE_ID",
    },
];

/// A drive gives the node its config, its name and its network; without the drive the next boot has all of them still.
pub(crate) fn a_config_drive_gives_config_name_and_network(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/drives")?;
    let tools = programs(lab)?;
    for case in &CASES {
        is_configured(lab, &image, &tools, case)
            .with_context(|| format!("a drive of {}", case.platform))?;
    }
    fs::remove_dir_all(&image.out).context("removing the image")
}

fn is_configured(lab: &mut Lab, image: &Image, tools: &Tools, case: &Case) -> Result<()> {
    let node = lab.node_of(&image.disk)?;
    let drive = Disk {
        path: drive(&node, tools, case)?,
        format: Format::Raw,
        bus: case.bus,
        serial: "drive".into(),
        sector: SectorSize::default(),
        read_only: true,
    };
    for more in [vec![drive], vec![]] {
        let first = !more.is_empty();
        let plan = BootOptions {
            etcd: false,
            more,
            image: Some(image.clone()),
            ..BootOptions::default()
        };
        let running = boot(lab, &node, &plan, case)?;
        check(&running, case).with_context(|| match first {
            true => "after the first boot",
            false => "after a boot without the drive",
        })?;
        running.power_off()?;
    }
    fs::remove_dir_all(node.folder()).context("removing the node's disks")
}

fn boot(lab: &mut Lab, node: &Node, plan: &BootOptions, case: &Case) -> Result<Running> {
    let mut machine = lab.machine(node, plan)?;
    if let (Start::Direct { cmdline, .. }, true) = (&mut machine.start, case.named) {
        cmdline.push_str(&format!(" ignition.platform.id={}", case.platform));
    }
    let running = lab.launch(node, machine)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    Ok(running)
}

fn check(running: &Running, case: &Case) -> Result<()> {
    let is = running.run(WHAT_IT_IS)?;
    let route = "default via 10.0.2.2";
    for expected in [
        NAME,
        "applied",
        &format!(" {ADDRESS}/24 "),
        route,
        "10.0.2.3",
    ] {
        ensure!(is.contains(expected), "{expected:?} is not in {is}");
    }
    // DHCP would have given this one.
    ensure!(!is.contains(" 10.0.2.15/"), "DHCP was asked too: {is}");
    let metadata = running.run(&format!("cat {RUN_METADATA}"))?;
    let line = format!("{}={INSTANCE}", case.instance);
    ensure!(
        metadata.contains(&line),
        "{line:?} is not in the metadata: {metadata}"
    );
    Ok(())
}

/// Writes the drive's file.
fn drive(node: &Node, tools: &Tools, case: &Case) -> Result<PathBuf> {
    let folder = node.folder().join("drive");
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/etc/probe", "contents": { "source": data_url(b"applied\n") } }] },
    });
    let config = with_agent(node, Some(config))?.to_string();
    for (path, text) in files(case.content, config) {
        let path = folder.join("content").join(path);
        fs::create_dir_all(path.parent().context("finding the file's folder")?)?;
        fs::write(path, text)?;
    }
    let label = match case.content {
        Content::OpenStack => "config-2",
        Content::NoCloud => "cidata",
    };
    match case.fat {
        true => fat(tools, &folder, label)?,
        false => iso(tools, &folder, label)?,
    }
    Ok(folder.join("drive.raw"))
}

fn files(content: Content, config: String) -> Vec<(&'static str, String)> {
    match content {
        Content::OpenStack => vec![
            ("openstack/latest/user_data", config),
            (
                "openstack/latest/meta_data.json",
                json!({ "uuid": INSTANCE, "hostname": NAME }).to_string(),
            ),
            (
                "openstack/latest/network_data.json",
                network_data().to_string(),
            ),
        ],
        Content::NoCloud => vec![
            ("user-data", config),
            (
                "meta-data",
                format!("instance-id: {INSTANCE}\nlocal-hostname: {NAME}\n"),
            ),
            ("network-config", network_config()),
        ],
    }
}

/// OpenStack's, of an instance on a subnet without DHCP
/// (<https://specs.openstack.org/openstack/nova-specs/specs/liberty/implemented/metadata-service-network-info.html>).
fn network_data() -> Value {
    json!({
        "links": [{ "id": "tap0", "type": "ovs", "ethernet_mac_address": MAC, "mtu": 1400 }],
        "networks": [{
            "id": "network0", "link": "tap0", "type": "ipv4",
            "ip_address": ADDRESS, "netmask": "255.255.255.0",
            "routes": [{ "network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.2.2" }],
        }],
        "services": [{ "type": "dns", "address": "10.0.2.3" }],
    })
}

/// NoCloud's version 1, in the words of Proxmox VE.
fn network_config() -> String {
    format!(
        "version: 1
config:
    - type: physical
      name: eth0
      mac_address: '{MAC}'
      subnets:
      - type: static
        address: '{ADDRESS}'
        netmask: '255.255.255.0'
        gateway: '10.0.2.2'
    - type: nameserver
      address:
      - '10.0.2.3'
      search:
      - 'example.org'
"
    )
}

/// An ISO 9660 with the names of Joliet and Rock Ridge, as Nova and Proxmox VE make it.
fn iso(tools: &Tools, folder: &Path, label: &str) -> Result<()> {
    let sandbox = tools.sandbox().bind(folder, "/run/drive");
    let made = sandbox.command("/usr/bin/genisoimage").args([
        "-quiet",
        "-J",
        "-r",
        "-V",
        label,
        "-o",
        "/run/drive/drive.raw",
        "/run/drive/content",
    ]);
    made.run().map(drop)
}

/// A VFAT of 64 MiB, as Nova makes it.
fn fat(tools: &Tools, folder: &Path, label: &str) -> Result<()> {
    let sandbox = tools.sandbox().bind(folder, "/run/drive");
    let make = sandbox.command("/usr/sbin/mkfs.vfat");
    make.args(["-C", "-n", label, "/run/drive/drive.raw", "65536"])
        .run()?;
    let copy = sandbox.command("/usr/bin/mcopy");
    copy.args(["-s", "-i", "/run/drive/drive.raw"])
        .args(["/run/drive/content/openstack", "::"])
        .run()
        .map(drop)
}

fn programs(lab: &Lab) -> Result<Tools> {
    let recipe = load(&lab.recipes().join("demo.toml"))?;
    let request = SetRequest {
        name: "tools-drives".into(),
        packages: PROGRAMS.map(str::to_owned).into(),
        dependencies: true,
        essential: false,
        recommends: false,
        backports: Vec::new(),
    };
    let session = lab.session();
    let locked = lock::resolve(session, &recipe, std::slice::from_ref(&request))?;
    tools::install(
        session,
        &request.name,
        &locked.fetch(session, &request.name)?,
    )
}
