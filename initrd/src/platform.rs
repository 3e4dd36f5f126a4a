//! Platform: which of the image's platforms this machine is.

use std::sync::Arc;

use anyhow::Result;
use image::cmdline::Cmdline;
use image::fault::Fault;
use image::manifest::Manifest;
use image::platform::PlatformId;
use linux::log::announce;
use linux::modules::Modules;
use linux::world::World;
use platform::detect;
use platform::dmi::Dmi;

use crate::context::{Boot, Early, Identity};

/// Identifies the platform, which completes the context of every later step.
///
/// # Errors
/// A [`Fault`] with the names that are not in the table of platforms.
pub(crate) fn identify(
    early: &Early,
    cmdline: Cmdline,
    manifest: Manifest,
    modules: Modules,
) -> Result<Boot> {
    Ok(Boot {
        world: Arc::clone(&early.world),
        timeline: early.timeline.clone(),
        network: Arc::clone(&early.network),
        awaiting: early.awaiting.clone(),
        identity: identity(&early.world, &cmdline, &manifest)?,
        cmdline,
        manifest,
        modules: Arc::new(modules),
    })
}

/// The platform that `ignition.platform.id=` names, else the one of the image's platforms that the firmware's tables
/// identify, else `metal`.
fn identity(world: &World, cmdline: &Cmdline, manifest: &Manifest) -> Result<Identity> {
    let dmi = Dmi::read(&world.sys);
    let named = cmdline.platform.as_ref().map(PlatformId::as_str);
    let of_image = manifest.platforms.iter().map(PlatformId::as_str);
    let platform = detect::identify(named, of_image, &dmi).map_err(|wrong| {
        Fault::new("unknown platform")
            .found(wrong.join("; "))
            .fix("correct ignition.platform.id= on the kernel command line, or rebuild the image")
    })?;
    let of_image = manifest.platforms.iter().map(PlatformId::as_str);
    if named.is_none()
        && let Some(line) = detect::surprise(platform, of_image, &dmi)
    {
        announce(world, &format!("slipway: {line}"));
    }
    Ok(Identity {
        platform,
        instance: dmi.uuid,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linux::world::Clock;

    use super::*;

    #[test]
    fn the_command_line_decides_before_the_firmware_among_the_images_platforms() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let dmi = world.sys.join("class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(dmi.join("sys_vendor"), "QEMU\n").unwrap();
        fs::write(dmi.join("product_uuid"), "ABCD-1\n").unwrap();
        let mut manifest = Manifest {
            contract: image::manifest::CONTRACT,
            image: image::manifest::ImageId {
                name: "demo".into(),
                version: "1".into(),
            },
            architecture: image::layout::Architecture::X86_64,
            kernel: "6.12".into(),
            epoch: 0,
            sizes: image::layout::Sizes::default(),
            kubernetes: None,
            platforms: vec![PlatformId::of("aws"), PlatformId::of("qemu")],
            node: image::node::NodeSettings::default(),
        };
        let found_with = |text: &str, manifest: &Manifest| {
            identity(&world, &Cmdline::parse(text).unwrap(), manifest).unwrap()
        };
        let found = found_with("quiet", &manifest);
        assert_eq!(found.platform.id, "qemu");
        assert_eq!(found.instance.as_deref(), Some("abcd-1"));
        let found = found_with("ignition.platform.id=metal", &manifest);
        assert_eq!(found.platform.id, "metal");
        // The firmware cannot select a platform that the image was not built for.
        manifest.platforms = vec![PlatformId::of("aws")];
        assert_eq!(found_with("quiet", &manifest).platform.id, "metal");
        // An id that this version does not have is refused by name.
        manifest.platforms = vec![PlatformId::of("qemu"), PlatformId::of("abacus")];
        let fault = identity(&world, &Cmdline::default(), &manifest).unwrap_err();
        assert!(format!("{fault:?}").contains("abacus"), "{fault:?}");
    }
}
