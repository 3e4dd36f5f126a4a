//! Config drive: on a server, for an image that is for metal and for a platform whose machines may be servers of any vendor
//! (Ironic, Metal3), the drive decides which of both the machine is.

use std::time::Duration;

use anyhow::Result;
use image::platform::PlatformId;
use linux::log::announce;
use linux::media::{self, Media};
use platform::detect;
use platform::dmi::Dmi;
use platform::machine::LOOK_EVERY;
use platform::medium::Medium;
use platform::provider::Provider;

use crate::context::Boot;
use crate::settle;

/// The least time for the drive: usb-storage waits a second before it looks at a device (its parameter `delay_use`), and shows
/// no event meanwhile. A management controller's virtual media are such devices.
const USB: Duration = Duration::from_secs(2);

/// The platform of this machine, with regard to a config drive. Waits only where the firmware leaves the choice: until all
/// devices are there, or the drive is.
///
/// # Errors
/// If the kernel's device events cannot be received, or a device that may be the drive does not answer.
pub(crate) fn decide(boot: &Boot) -> Result<&'static Provider> {
    decide_within(boot, settle::SILENT)
}

/// As [`decide`]; `silent` is how long a device that does not answer is waited for.
fn decide_within(boot: &Boot, silent: Duration) -> Result<&'static Provider> {
    let (world, chosen) = (&boot.world, boot.identity.platform);
    let dmi = Dmi::read(&world.sys);
    let of_image = boot.manifest.platforms.iter().map(PlatformId::as_str);
    let of_drive = match boot.cmdline.platform {
        Some(_) => None,
        None => detect::by_drive(chosen, of_image, &dmi),
    };
    let Some(other) = of_drive else {
        return Ok(chosen);
    };
    let media = Media::new(world, &boot.modules);
    let mut next = world.micros();
    let found = settle::until(boot, USB, silent, |last| {
        let now = world.micros();
        if now < next && !last {
            return false;
        }
        next = now.saturating_add(i64::try_from(LOOK_EVERY.as_micros()).unwrap_or(i64::MAX));
        other.media.iter().any(|medium| is_there(&media, medium))
    })?;
    if !found {
        settle::refuse_silent(world)?;
        return Ok(chosen);
    }
    let (vendor, product) = (&dmi.vendor, &dmi.product);
    announce(
        world,
        &format!(
            "slipway: this server ({vendor:?}, {product:?}) has a config drive and is taken for {other}, not for {chosen}; \
             {}= names another platform",
            image::cmdline::PLATFORM_ID
        ),
    );
    Ok(other)
}

fn is_there(media: &Media<'_>, medium: &Medium<'_>) -> bool {
    media.is_there(match medium {
        Medium::Labels(labels) => media::Medium::Labels(labels),
        Medium::Disc(file) => media::Medium::Disc(file),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use image::cmdline::Cmdline;
    use linux::disk_reader::Readers;
    use linux::samples::{hanging, iso};
    use linux::world::{Clock, World};
    use platform::providers::by_id;

    use super::*;

    /// A machine of this vendor that counts as metal, with an image for these platforms.
    fn machine(folder: &Path, vendor: &str, platforms: &[&'static str]) -> Boot {
        machine_in(World::below(folder, Clock::Real), vendor, platforms)
    }

    fn machine_in(world: World, vendor: &str, platforms: &[&'static str]) -> Boot {
        let world = Arc::new(world);
        let dmi = world.sys.join("class/dmi/id");
        for folder in [&dmi, &world.dev, &world.sys.join("class/block")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(dmi.join("sys_vendor"), vendor).unwrap();
        let mut boot = Boot::of_tests(&world);
        boot.identity.platform = by_id("metal").unwrap();
        boot.manifest.platforms = platforms.iter().map(|id| PlatformId::of(id)).collect();
        boot
    }

    fn attach(world: &World, name: &str, content: &[u8]) {
        fs::write(world.dev.join(name), content).unwrap();
        fs::create_dir_all(world.sys.join("class/block").join(name)).unwrap();
    }

    #[test]
    fn a_server_with_a_config_drive_is_of_openstack_though_the_image_is_for_metal_too() {
        let folder = tempfile::tempdir().unwrap();
        let boot = machine(folder.path(), "Dell Inc.", &["metal", "openstack"]);
        attach(&boot.world, "sda1", &iso("another"));
        let began = Instant::now();
        assert_eq!(decide(&boot).unwrap().id, "metal");
        // Long enough for virtual media.
        assert!(began.elapsed() >= USB);
        let world = &boot.world;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(700));
                attach(world, "sr0", &iso("config-2"));
            });
            assert_eq!(decide(&boot).unwrap().id, "openstack");
        });
        // One that is there is not waited for.
        let began = Instant::now();
        assert_eq!(decide(&boot).unwrap().id, "openstack");
        assert!(began.elapsed() < USB);
    }

    #[test]
    fn a_server_is_of_no_platform_while_a_drive_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::below(folder.path(), Clock::Real);
        world.readers = Readers::with_patience(Duration::from_secs(1));
        let boot = machine_in(world, "Dell Inc.", &["metal", "openstack"]);
        let class = boot.world.sys.join("class/block/sr0");
        fs::create_dir_all(class).unwrap();
        hanging(&boot.world.dev.join("sr0"));
        let error = decide_within(&boot, Duration::from_secs(4)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sr0, which has not answered for "), "{text}");
        // The drive itself is found beside it.
        attach(&boot.world, "sr1", &iso("config-2"));
        assert_eq!(decide(&boot).unwrap().id, "openstack");
    }

    #[test]
    fn nothing_is_waited_for_where_the_machine_is_known() {
        for (vendor, platforms, words) in [
            ("QEMU", &["metal", "openstack"][..], ""),
            ("", &["metal", "openstack"], ""),
            ("Dell Inc.", &["metal", "aws"], ""),
            (
                "Dell Inc.",
                &["metal", "openstack"],
                "ignition.platform.id=metal",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut boot = machine(folder.path(), vendor, platforms);
            boot.cmdline = Cmdline::parse(words).unwrap();
            attach(&boot.world, "sda1", &iso("config-2"));
            let began = Instant::now();
            assert_eq!(decide(&boot).unwrap().id, "metal", "{vendor} {words}");
            assert!(began.elapsed() < USB);
        }
    }
}
