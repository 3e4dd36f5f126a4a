//! Detects the platform of this machine.
//!
//! The config has full control of the machine, so its source is never guessed freely: the command line names the
//! platform, else it is one of those that the image was built for and that matches the firmware's fields. A machine
//! that matches none of them is `metal`, which has no config source.

use crate::dmi::Dmi;
use crate::provider::{Detection, Provider};
use crate::providers::{METAL, TABLE, by_id};

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

/// The first platform that matches. A fallback comes after every other match; then, on a server that no platform of the
/// table knows, the one that has such machines, unless the image is for metal too.
fn choose(platforms: &[&'static Provider], dmi: &Dmi) -> &'static Provider {
    let fitting = || platforms.iter().copied().filter(|one| one.fits(dmi));
    let is_fallback = |one: &&Provider| matches!(one.detection, Detection::Fallback(_));
    let best = fitting()
        .find(|one| !is_fallback(one))
        .or_else(|| fitting().next());
    if best.is_some() || is_known(dmi) || platforms.contains(&METAL) {
        return best.unwrap_or(METAL);
    }
    with_servers(platforms).unwrap_or(METAL)
}

/// Whether a platform of the table, of the image or not, has such machines.
fn is_known(dmi: &Dmi) -> bool {
    TABLE.iter().any(|one| one.fits(dmi))
}

/// The first platform whose machines may be servers of any vendor.
fn with_servers(platforms: &[&'static Provider]) -> Option<&'static Provider> {
    let has_servers = |one: &&&Provider| matches!(one.detection, Detection::FirmwareOrServer(_));
    platforms.iter().find(has_servers).copied()
}

/// The platform that a machine is of if it has that platform's config drive, although it counts as metal: a server by the
/// vendor that its firmware names, with an image that is for both. None where a drive decides nothing.
#[must_use]
pub fn by_drive<'a>(
    chosen: &Provider,
    image: impl IntoIterator<Item = &'a str>,
    dmi: &Dmi,
) -> Option<&'static Provider> {
    if *chosen != *METAL || dmi.vendor.is_empty() || is_known(dmi) {
        return None;
    }
    let platforms: Vec<&Provider> = image.into_iter().filter_map(|id| by_id(id).ok()).collect();
    with_servers(&platforms).filter(|one| platforms.contains(&METAL) && !one.media.is_empty())
}

/// Why a machine counts as metal although the image is not for metal, for the console; none if it is, or if the image is for
/// no platform in particular.
#[must_use]
pub fn surprise<'a>(
    chosen: &Provider,
    image: impl IntoIterator<Item = &'a str>,
    dmi: &Dmi,
) -> Option<String> {
    let listed: Vec<&str> = image.into_iter().collect();
    if *chosen != *METAL || listed.is_empty() || listed.contains(&METAL.id) {
        return None;
    }
    let (vendor, product, listed) = (&dmi.vendor, &dmi.product, listed.join(", "));
    Some(format!(
        "no platform of the image ({listed}) is that of this machine ({vendor:?}, {product:?}): it is taken for metal, which \
         has no config of its own; ignition.platform.id= names another platform"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("QEMU", "Standard PC", "HUAWEICLOUD", "openstack"),
            ("Xen", "HVM domU", "OpenTelekomCloud", "openstack"),
            ("VMware, Inc.", "VMware7,1", "SAP CCloud VM", "openstack"),
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
    fn a_server_is_of_openstack_if_the_image_is_for_it_and_not_for_metal() {
        let server = dmi("Dell Inc.", "PowerEdge R740", "");
        let droplet = dmi("DigitalOcean", "Droplet", "");
        for (platforms, dmi, expected) in [
            (vec!["aws", "openstack"], &server, "openstack"),
            (vec!["metal", "openstack"], &server, "metal"),
            (vec!["aws"], &server, "metal"),
            // A cloud's machine is no server.
            (vec!["openstack"], &droplet, "metal"),
        ] {
            let found = identify(None, platforms.clone(), dmi).unwrap();
            assert_eq!(found.id, expected, "{platforms:?}");
        }
    }

    #[test]
    fn a_drive_decides_only_on_a_server_with_an_image_for_metal_and_openstack() {
        let server = dmi("HPE", "ProLiant DL360", "");
        let both = ["aws", "metal", "openstack"];
        let found = by_drive(METAL, both, &server);
        assert_eq!(found.map(|one| one.id), Some("openstack"));
        let openstack = by_id("openstack").unwrap();
        for (chosen, platforms, dmi) in [
            (openstack, &both[..], &server),
            (METAL, &["metal", "aws"], &server),
            (METAL, &["openstack"], &server),
            (METAL, &both, &dmi("", "", "")),
            (METAL, &both, &dmi("DigitalOcean", "Droplet", "")),
        ] {
            let found = by_drive(chosen, platforms.iter().copied(), dmi);
            assert_eq!(found, None, "{platforms:?} {dmi:?}");
        }
    }

    #[test]
    fn no_machine_is_taken_for_metal_in_silence() {
        let droplet = dmi("DigitalOcean", "Droplet", "");
        let line = surprise(METAL, ["aws", "gcp"], &droplet).unwrap();
        for part in ["aws, gcp", "\"DigitalOcean\"", "\"Droplet\"", "metal"] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(surprise(METAL, ["aws", "metal"], &droplet), None);
        assert_eq!(surprise(METAL, [], &droplet), None);
        assert_eq!(surprise(by_id("aws").unwrap(), ["aws"], &droplet), None);
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
