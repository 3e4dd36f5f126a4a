//! NVMe's Identify command, and the names that clouds put into the vendor's part of its answer.
//!
//! Interface: `include/uapi/linux/nvme_ioctl.h`; data structures: NVMe base specification 2.0, 5.17.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Bytes of an Identify data structure.
pub const PAGE: usize = 4096;
/// Where the vendor's part of a namespace's data begins.
const OF_NAMESPACE: usize = 384;
/// Where the vendor's part of a controller's data begins.
const OF_CONTROLLER: usize = 3072;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identify {
    /// The namespace with this number.
    Namespace(u32),
    /// The controller.
    Controller,
}

/// The answers that disks have given in this boot.
#[derive(Debug, Default)]
pub struct Answers(Mutex<BTreeMap<(String, Identify), Vec<u8>>>);

impl Answers {
    /// The answer of a disk that `ask`s for it if it has given none yet. `appearance` names this appearance of the disk and
    /// no other one; none where nothing does, and the disk is asked each time.
    pub fn once(
        &self,
        appearance: Option<String>,
        what: Identify,
        ask: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let Some(appearance) = appearance else {
            return ask();
        };
        let key = (appearance, what);
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = known().get(&key) {
            return Some(page.clone());
        }
        // Without the lock: a controller may take a minute.
        let page = ask()?;
        known().insert(key, page.clone());
        Some(page)
    }
}

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_length: u32,
    data_length: u32,
    arguments: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// The answer of a disk to Identify, [`PAGE`] bytes.
///
/// # Errors
/// If the device is not an NVMe disk or refuses.
pub fn identify(device: &File, what: Identify) -> Result<Vec<u8>> {
    /// `_IOWR('N', 0x41, struct nvme_admin_cmd)`
    const NVME_IOCTL_ADMIN_CMD: u64 = 0xc048_4e41;
    const IDENTIFY: u8 = 6;
    let (namespace, structure) = match what {
        Identify::Namespace(number) => (number, 0),
        Identify::Controller => (0, 1),
    };
    let mut page = vec![0_u8; PAGE];
    let mut command = AdminCommand {
        opcode: IDENTIFY,
        namespace,
        data: page.as_mut_ptr() as u64,
        data_length: u32::try_from(PAGE)?,
        arguments: [structure, 0, 0, 0, 0, 0],
        // The kernel's own limit: after a shorter one it would reset a controller that is only slow.
        timeout_ms: 0,
        ..AdminCommand::default()
    };
    // SAFETY: the structure has the kernel's layout; `data` is the address of `data_length` bytes, which the kernel writes;
    // both live until the call returns.
    let done =
        unsafe { nix::libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    nix::errno::Errno::result(done).context("asking an NVMe disk what it is")?;
    Ok(page)
}

/// The device name that Compute Engine gives a disk: JSON in the vendor's part of the namespace's data.
pub fn google_name(page: &[u8]) -> Option<String> {
    let text = ended(page.get(OF_NAMESPACE..)?);
    let value: serde_json::Value = serde_json::from_slice(text).ok()?;
    let name = value.get("device_name")?.as_str()?;
    is_plain(name).then(|| name.to_owned())
}

/// The device name that a volume of EBS was attached as, without `/dev/`: in the namespace's data of newer controllers.
pub fn ebs_device_of_namespace(page: &[u8]) -> Option<String> {
    device(page, OF_NAMESPACE)
}

/// See [`ebs_device_of_namespace`]: in the controller's data.
pub fn ebs_device(page: &[u8]) -> Option<String> {
    device(page, OF_CONTROLLER)
}

fn device(page: &[u8], at: usize) -> Option<String> {
    let text = String::from_utf8(ended(page.get(at..at + 32)?).to_vec()).ok()?;
    let name = text.trim().trim_start_matches("/dev/");
    is_plain(name).then(|| name.to_owned())
}

/// What comes before the first zero.
fn ended(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(at: usize, text: &[u8]) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[at..at + text.len()].copy_from_slice(text);
        page
    }

    #[test]
    fn the_command_has_the_kernels_size() {
        assert_eq!(size_of::<AdminCommand>(), 0x48);
    }

    /// Layout: `google_nvme_id` reads the namespace's data from byte 384.
    #[test]
    fn googles_name_is_read_from_the_namespace() {
        let json = br#"{"device_name":"etcd-data_1","disk_type":"PERSISTENT"}"#;
        assert_eq!(
            google_name(&page(384, json)).as_deref(),
            Some("etcd-data_1")
        );
        for odd in [
            &b""[..],
            b"{}",
            br#"{"device_name":""}"#,
            br#"{"device_name":"../x"}"#,
            br#"{"device_name":7}"#,
            br#"{"device_name":"x""#,
        ] {
            assert_eq!(google_name(&page(384, odd)), None);
        }
        assert_eq!(google_name(b"short"), None);
    }

    /// Layout: `ebsnvme-id` reads 32 characters at byte 384 of the namespace's data, else at 3072 of the controller's.
    #[test]
    fn amazons_device_is_read_from_the_controller_and_the_namespace() {
        let padded = b"/dev/sdf                        ";
        assert_eq!(ebs_device(&page(3072, padded)).as_deref(), Some("sdf"));
        assert_eq!(ebs_device(&page(3072, b"xvdba")).as_deref(), Some("xvdba"));
        assert_eq!(
            ebs_device_of_namespace(&page(384, padded)).as_deref(),
            Some("sdf")
        );
        for odd in [&b""[..], b"   ", b"/dev/", b"../../x", b"\xff"] {
            assert_eq!(ebs_device(&page(3072, odd)), None, "{odd:?}");
        }
        assert_eq!(ebs_device(b"short"), None);
    }

    #[test]
    fn what_is_not_nvme_refuses() {
        let file = tempfile::tempfile().unwrap();
        assert!(identify(&file, Identify::Controller).is_err());
    }
}
