//! The request that registers the raw disk as an Amazon Machine Image.
//!
//! Format: the input of `aws ec2 register-image --cli-input-json`, which is the `RegisterImage` call of EC2.

use anyhow::{Result, ensure};
use image::layout::{Architecture, GIB};
use image::manifest::ImageId;
use serde_json::json;

/// Stands where the id of the uploaded snapshot goes. EC2 refuses it, so a forgotten replacement makes no empty image.
pub const SNAPSHOT: &str = "snap-REPLACE";
/// The name of the first disk; with NVMe it is only a name.
const ROOT_DEVICE: &str = "/dev/xvda";

/// The request's text.
///
/// # Errors
/// When the disk is not of whole GiB, which a volume has to be.
pub fn request(image: &ImageId, architecture: Architecture, size: u64) -> Result<String> {
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
    let request = json!({
        "Name": name,
        "Description": format!("{} {}", image.name, image.version),
        "Architecture": architecture,
        "VirtualizationType": "hvm",
        "BootMode": "uefi",
        "TpmSupport": "v2.0",
        "ImdsSupport": "v2.0",
        "EnaSupport": true,
        "SriovNetSupport": "simple",
        "RootDeviceName": ROOT_DEVICE,
        "BlockDeviceMappings": [{
            "DeviceName": ROOT_DEVICE,
            "Ebs": {
                "SnapshotId": SNAPSHOT,
                "VolumeType": "gp3",
                "VolumeSize": size / GIB,
                "DeleteOnTermination": true,
            },
        }],
    });
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
        let text = request(&image, Architecture::X86_64, 3 * GIB).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["Name"], "node-1.0-rc1");
        assert_eq!(value["Architecture"], "x86_64");
        assert_eq!(value["VirtualizationType"], "hvm");
        assert_eq!(value["BootMode"], "uefi");
        assert_eq!(value["ImdsSupport"], "v2.0");
        assert_eq!(value["TpmSupport"], "v2.0");
        assert_eq!(value["EnaSupport"], true);
        assert_eq!(value["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"], 3);
        assert!(request(&image, Architecture::X86_64, 3 * GIB + 512).is_err());
    }
}
