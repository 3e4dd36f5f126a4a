//! The request that registers the raw disk as an Amazon Machine Image.
//!
//! Format: the input of `aws ec2 register-image --cli-input-json`, which is the `RegisterImage` call of EC2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use image::layout::{Architecture, GIB, Sizes};
use image::manifest::ImageId;
use serde_json::json;

use super::{Artifact, Inputs};

/// The request in the output folder.
const FILE: &str = "aws-register-image.json";
/// Placeholder for the id of the uploaded snapshot. EC2 refuses it, so a forgotten replacement registers no image.
const SNAPSHOT: &str = "snap-REPLACE";
/// The name of the first disk; with NVMe it is only a name.
const ROOT_DEVICE: &str = "/dev/xvda";

/// The row of the table.
pub(super) static ROW: Artifact = Artifact {
    name: "aws",
    help: "A raw disk of whole GiB with the request that registers it as an AMI.",
    // EC2 refuses a snapshot of a fraction of a GiB.
    size_multiple: GIB,
    // EBS volumes have sectors of 512 bytes.
    any_sectors: false,
    write,
};

fn write(inputs: &Inputs, output: &Path) -> Result<Vec<PathBuf>> {
    let Inputs {
        image,
        architecture,
        disk_size,
        sizes,
        ..
    } = *inputs;
    fs::write(
        output.join(FILE),
        request(image, architecture, disk_size, sizes)?,
    )?;
    Ok(vec![FILE.into()])
}

/// The request's text, for a disk of `size` bytes. An instance gets a volume large enough for its first boot, unless
/// the launch request sets another size.
fn request(
    image: &ImageId,
    architecture: Architecture,
    size: u64,
    sizes: &Sizes,
) -> Result<String> {
    ensure!(
        size.is_multiple_of(GIB),
        "a disk for AWS has whole GiB, found {size} bytes"
    );
    let allowed = |c: char| c.is_ascii_alphanumeric() || "()[] ./-'@_".contains(c);
    let name = format!("{}-{}", image.name, image.version)
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .take(128)
        .collect::<String>();
    let architecture = match architecture {
        Architecture::X86_64 => "x86_64",
        Architecture::Arm64 => "arm64",
    };
    let mut request = json!({
        "Name": name,
        "Description": format!("{} {}", image.name, image.version),
        "Architecture": architecture,
        "VirtualizationType": "hvm",
        "BootMode": "uefi",
        "ImdsSupport": "v2.0",
        "EnaSupport": true,
        "SriovNetSupport": "simple",
        "RootDeviceName": ROOT_DEVICE,
        "BlockDeviceMappings": [{
            "DeviceName": ROOT_DEVICE,
            "Ebs": {
                "SnapshotId": SNAPSHOT,
                "VolumeType": "gp3",
                "VolumeSize": size.max(sizes.least_disk()).div_ceil(GIB),
                "DeleteOnTermination": true,
            },
        }],
    });
    // Of arm64 EC2 refuses the whole request: "Invalid machineArchitecture value 'arm64' for tpmSupport".
    if architecture == "x86_64" {
        request["TpmSupport"] = "v2.0".into();
    }
    Ok(format!("{request:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_holds_what_ec2_would_otherwise_default_wrongly() {
        let image = ImageId {
            name: "node".into(),
            version: "1.0~rc1".into(),
        };
        let text = request(&image, Architecture::X86_64, GIB, &Sizes::default()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["Name"], "node-1.0-rc1");
        assert_eq!(value["Architecture"], "x86_64");
        assert_eq!(value["VirtualizationType"], "hvm");
        assert_eq!(value["BootMode"], "uefi");
        assert_eq!(value["ImdsSupport"], "v2.0");
        assert_eq!(value["TpmSupport"], "v2.0");
        assert_eq!(value["EnaSupport"], true);
        assert_eq!(value["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"], 9);
        let large = request(&image, Architecture::X86_64, 20 * GIB, &Sizes::default()).unwrap();
        assert!(large.contains("\"VolumeSize\": 20"));
        assert!(request(&image, Architecture::X86_64, GIB + 512, &Sizes::default()).is_err());
    }

    #[test]
    fn an_image_for_arm64_asks_for_no_tpm_which_ec2_would_refuse() {
        let image = ImageId {
            name: "node".into(),
            version: "1".into(),
        };
        let text = request(&image, Architecture::Arm64, GIB, &Sizes::default()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["Architecture"], "arm64");
        assert_eq!(value["BootMode"], "uefi");
        assert_eq!(value.get("TpmSupport"), None);
    }
}
