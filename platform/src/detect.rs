//! Detects the platform of this machine.
//!
//! The config has full control of the machine, so its source is never guessed freely: the command line names the
//! platform, else it is one of those that the image was built for and that matches the firmware's fields. A machine
//! that matches none of them is `metal`, which has no config source.

use crate::dmi::Dmi;
use crate::provider::{Detection, Provider};
use crate::providers::{METAL, by_id};

/// The platform that the command line names, else that of the image's platforms which matches the firmware's fields.
///
/// # Errors
/// Names that are not in the table, all of them.
pub fn identify<'a>(
    named: Option<&str>,
    image: impl IntoIterator<Item = &'a str>,
    dmi: &Dmi,
) -> Result<&'static Provider, Vec<String>> {
    let (mut platforms, mut wrong) = (Vec::new(), Vec::new());
    for id in image {
        match by_id(id) {
            Ok(provider) => platforms.push(provider),
            Err(why) => wrong.push(format!("the image's manifest: {why}")),
        }
    }
    let named = named.map(by_id).transpose();
    match named {
        Ok(named) if wrong.is_empty() => Ok(named.unwrap_or_else(|| choose(&platforms, dmi))),
        Ok(_) => Err(wrong),
        Err(why) => {
            wrong.push(format!("{}: {why}", image::cmdline::PLATFORM_ID));
            Err(wrong)
        }
    }
}

/// The first platform that matches. A fallback comes after every other match.
fn choose(platforms: &[&'static Provider], dmi: &Dmi) -> &'static Provider {
    let fitting = || platforms.iter().copied().filter(|one| one.fits(dmi));
    fitting()
        .find(|one| matches!(one.detection, Detection::Firmware(_)))
        .or_else(|| fitting().next())
        .unwrap_or(METAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::TABLE;

    fn dmi(vendor: &str, product: &str, asset_tag: &str) -> Dmi {
        Dmi {
            vendor: vendor.to_owned(),
            product: product.to_owned(),
            asset_tag: asset_tag.to_owned(),
            ..Dmi::default()
        }
    }

    #[test]
    fn machines_are_told_apart() {
        let azure = "7783-7084-3265-9085-8269-3286-77";

        for (vendor, product, tag, expected) in [
            ("Amazon EC2", "m5.large", "Amazon EC2", "aws"),
            ("DigitalOcean", "Droplet", "", "digitalocean"),
            ("Google", "Google Compute Engine", "", "gcp"),
            ("Hetzner", "vServer", "", "hetzner"),
            ("KubeVirt", "None", "", "kubevirt"),
            ("Microsoft Corporation", "Virtual Machine", azure, "azure"),
            ("Microsoft Corporation", "Virtual Machine", "", "metal"),
            ("Nutanix", "AHV", "", "nutanix"),
            ("OpenStack Foundation", "OpenStack Nova", "", "openstack"),
            ("RDO", "OpenStack Compute", "", "openstack"),
            ("VMware, Inc.", "VMware7,1", "", "vmware"),
            ("Dell Inc.", "PowerEdge R740", "", "metal"),
        ] {
            let found = choose(TABLE, &dmi(vendor, product, tag));
            assert_eq!(found.id, expected, "{vendor} {product}");
        }
    }

    #[test]
    fn only_the_images_own_platforms_are_chosen() {
        let q35 = dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)", "");
        for (platforms, expected) in [
            (vec!["aws", "qemu"], "qemu"),
            (vec!["proxmoxve", "qemu"], "proxmoxve"),
            (vec!["qemu", "proxmoxve"], "proxmoxve"),
            (vec!["metal", "qemu"], "qemu"),
            (vec!["aws"], "metal"),
            (vec![], "metal"),
        ] {
            let found = identify(None, platforms.clone(), &q35).unwrap();
            assert_eq!(found.id, expected, "{platforms:?}");
        }
    }

    #[test]
    fn the_command_line_comes_first_and_unknown_names_are_all_refused() {
        let q35 = dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)", "");
        let found = identify(Some("metal"), ["qemu"], &q35).unwrap();
        assert_eq!(found.id, "metal");
        let wrong = identify(Some("gce"), ["qemu", "ec2"], &q35).unwrap_err();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("manifest: \"ec2\""), "{wrong:?}");
        assert!(
            wrong[1].starts_with("ignition.platform.id: \"gce\""),
            "{wrong:?}"
        );
        // An unknown name is an error even if the command line names another platform.
        assert!(identify(Some("metal"), ["ec2"], &q35).is_err());
    }
}
