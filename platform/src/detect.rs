//! Which of an image's platforms this machine is, by what its firmware says of itself (SMBIOS, shown below sysfs).
//!
//! The config decides over the machine, so its source is never guessed freely: the command line names the platform, else it
//! is one of those that the image was built for and fits what the firmware says.
//! A machine that fits none of them is `metal`, which has no source of its own.

use image::platform::Platform;

use crate::dmi::Dmi;

impl Dmi {
    /// Whether a machine of this platform says this. Proxmox says what QEMU says; `metal` and `file` say nothing.
    #[must_use]
    pub fn fits(&self, platform: Platform) -> bool {
        let is_qemu = self.vendor == "QEMU"
            || self.product.starts_with("Standard PC")
            || self.product.starts_with("KVM");
        match platform {
            // Instances of the older kind run on Xen.
            Platform::Aws => {
                self.vendor == "Amazon EC2"
                    || self.bios == "Amazon EC2"
                    || (self.vendor == "Xen" && self.bios_version.contains("amazon"))
            }
            // Azure is known by the asset tag that its hosts give every machine; Hyper-V elsewhere has the same vendor.
            Platform::Azure => self.asset_tag == "7783-7084-3265-9085-8269-3286-77",
            Platform::DigitalOcean => self.vendor == "DigitalOcean",
            Platform::Gcp => self.vendor == "Google" || self.product == "Google Compute Engine",
            Platform::Hetzner => self.vendor == "Hetzner",
            Platform::Kubevirt => {
                self.vendor == "KubeVirt"
                    || self.family == "KubeVirt"
                    || self.product == "OpenShift Virtualization"
            }
            Platform::Nutanix => self.vendor.starts_with("Nutanix"),
            Platform::Openstack => {
                self.vendor == "OpenStack Foundation"
                    || self.product.starts_with("OpenStack")
                    || self.asset_tag == "OpenStack Nova"
                    || self.asset_tag == "OpenStack Compute"
            }
            Platform::Proxmoxve | Platform::Qemu => is_qemu,
            Platform::Vmware => self.vendor.starts_with("VMware"),
            Platform::File | Platform::Metal => false,
        }
    }
}

/// The platform of this machine among those of the image. `qemu`, which recipes name so that an image starts on a laptop too,
/// comes after every other that fits.
#[must_use]
pub fn choose(platforms: &[Platform], dmi: &Dmi) -> Platform {
    let fits = |platform: &Platform| dmi.fits(*platform);
    let mut fitting = platforms.iter().copied().filter(fits);
    let first = fitting.next().unwrap_or(Platform::Metal);
    match first {
        Platform::Qemu => fitting.next().unwrap_or(first),
        _ => first,
    }
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
        let all = Platform::ALL;
        for (vendor, product, tag, expected) in [
            ("Amazon EC2", "m5.large", "Amazon EC2", Platform::Aws),
            ("DigitalOcean", "Droplet", "", Platform::DigitalOcean),
            ("Google", "Google Compute Engine", "", Platform::Gcp),
            ("Hetzner", "vServer", "", Platform::Hetzner),
            ("KubeVirt", "None", "", Platform::Kubevirt),
            (
                "Microsoft Corporation",
                "Virtual Machine",
                azure,
                Platform::Azure,
            ),
            (
                "Microsoft Corporation",
                "Virtual Machine",
                "",
                Platform::Metal,
            ),
            ("Nutanix", "AHV", "", Platform::Nutanix),
            (
                "OpenStack Foundation",
                "OpenStack Nova",
                "",
                Platform::Openstack,
            ),
            ("RDO", "OpenStack Compute", "", Platform::Openstack),
            ("VMware, Inc.", "VMware7,1", "", Platform::Vmware),
            ("Dell Inc.", "PowerEdge R740", "", Platform::Metal),
        ] {
            let found = choose(&all, &dmi(vendor, product, tag));
            assert_eq!(found, expected, "{vendor} {product}");
        }
    }

    #[test]
    fn only_the_images_own_platforms_are_chosen() {
        let q35 = dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)", "");
        for (platforms, expected) in [
            (vec![Platform::Aws, Platform::Qemu], Platform::Qemu),
            (
                vec![Platform::Proxmoxve, Platform::Qemu],
                Platform::Proxmoxve,
            ),
            (
                vec![Platform::Qemu, Platform::Proxmoxve],
                Platform::Proxmoxve,
            ),
            (vec![Platform::Metal, Platform::Qemu], Platform::Qemu),
            (vec![Platform::Aws], Platform::Metal),
            (vec![], Platform::Metal),
        ] {
            assert_eq!(choose(&platforms, &q35), expected, "{platforms:?}");
        }
    }
}
