//! The recipes beside the demo.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use slipway::vm::machine::disk::Bus;
use slipway::vm::run::Image;

/// Each recipe, the disk controllers of its platforms, and the device names on them.
const HOMES: &[(&str, &[(Bus, &str)])] = &[
    ("node", &[(Bus::Virtio, "/dev/vda")]),
    ("aws", &[(Bus::Nvme, "/dev/nvme0n1p")]),
    (
        "gce",
        &[(Bus::Scsi, "/dev/sda"), (Bus::Nvme, "/dev/nvme0n1p")],
    ),
    (
        "metal",
        &[(Bus::Sata, "/dev/sda"), (Bus::Nvme, "/dev/nvme0n1p")],
    ),
];

/// Each recipe builds, and its disk boots by UEFI on every controller of its platforms: the image is unchanged, its
/// file systems are on that controller, and on the first controller no unit fails. A recipe's image is built while the
/// previous one boots.
pub(crate) fn each_recipe_boots_on_its_platforms_controllers(lab: &mut Lab) -> Result<()> {
    let builder = lab.builder();
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let builder = builder.clone();
            HOMES
                .get(number)
                .map(|(recipe, _)| scope.spawn(move || builder.build(&format!("recipes/{recipe}"))))
        };
        let mut building = start(0);
        for (number, (recipe, homes)) in HOMES.iter().enumerate() {
            let image = building.take().map(std::thread::ScopedJoinHandle::join);
            let Some(Ok(image)) = image else {
                bail!("building recipes/{recipe}.toml panicked");
            };
            building = start(number + 1);
            boots_at_home(lab, recipe, homes, &image?)?;
        }
        Ok(())
    })
}

fn boots_at_home(lab: &mut Lab, recipe: &str, homes: &[(Bus, &str)], image: &Image) -> Result<()> {
    let name = name_of(&fs::read_to_string(image.out.join("manifest.json"))?)?;
    for (number, (bus, disk)) in homes.iter().enumerate() {
        let node = lab.node_of(&image.disk)?;
        let plan = BootOptions {
            direct: false,
            etcd: false,
            bus: *bus,
            image: Some(image.clone()),
            ..BootOptions::default()
        };
        let about = || format!("booting recipes/{recipe}.toml from {bus:?}");
        let running = lab.boot(&node, &plan)?;
        running
            .wait_handoff(timeouts::HANDOFF)
            .with_context(about)?;
        running.wait_agent().with_context(about)?;
        let found = running.run(". /etc/os-release; echo $IMAGE_ID; findmnt -no SOURCE /var")?;
        ensure!(
            found.starts_with(&format!("{name}\n{disk}")),
            "{}: expected image {name} with /var on {disk}…, found {found:?}",
            about()
        );
        if number == 0 {
            no_unit_fails(&running).with_context(about)?;
        }
        drop(running);
        fs::remove_dir_all(node.folder()).context("removing the node's disks")?;
    }
    fs::remove_dir_all(&image.out).context("removing the image")
}

fn no_unit_fails(running: &Running) -> Result<()> {
    running.wait_services()?;
    let state = running.ask("timeout 80 systemctl is-system-running --wait")?;
    ensure!(
        state.output == "running",
        "systemd says {:?}: {}",
        state.output,
        running.ask("systemctl --failed --no-legend")?.output
    );
    Ok(())
}

fn name_of(manifest: &str) -> Result<String> {
    let manifest = image::manifest::Manifest::parse(manifest)
        .map_err(|error| anyhow::anyhow!("reading the manifest: {error}"))?;
    Ok(manifest.image.name)
}
