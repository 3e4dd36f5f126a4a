//! Names of devices in a config, resolved without udev: each form that sysfs and the disks themselves can resolve.

use std::fmt;

/// A parsed name below `/dev`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The kernel's name, as `vda` or `nvme0n1p2`.
    Kernel(String),
    /// `/dev/disk/by-id/NAME`, with the partition's number.
    Id(String, Option<u32>),
    /// `/dev/disk/by-path/NAME`, with the partition's number.
    Path(String, Option<u32>),
    /// By the label of a file system.
    Label(String),
    /// By the UUID of a file system.
    Uuid(String),
    /// By the label of a partition.
    PartLabel(String),
    /// By the GUID of a partition.
    PartUuid(String),
    /// A RAID array by name.
    Array(String),
    /// A mapped device by name.
    Mapped(String),
}

/// The supported forms, for messages.
const KNOWN: &str = "/dev/NAME, /dev/md/NAME, /dev/mapper/NAME, and in /dev/disk: by-id, by-path, by-label, by-uuid, \
     by-partlabel, by-partuuid, azure";

impl Name {
    /// Parses a path.
    ///
    /// # Errors
    /// For a form that cannot be resolved; lists the supported ones.
    pub fn parse(path: &str) -> Result<Self, String> {
        let unknown =
            || format!("{path} is not a device name that can be resolved; expected {KNOWN}");
        let below = path.strip_prefix("/dev/").ok_or_else(unknown)?;
        let parts: Vec<&str> = below.split('/').collect();
        let text = |name: &str| decode(name).ok_or_else(unknown);
        Ok(match parts.as_slice() {
            [name] if !name.is_empty() => Self::Kernel((*name).to_owned()),
            ["md", name] => Self::Array((*name).to_owned()),
            ["mapper", name] => Self::Mapped((*name).to_owned()),
            ["disk", "by-id", name] => {
                let name = text(name)?;
                if let Some(name) = name.strip_prefix("dm-name-") {
                    return Ok(Self::Mapped(name.to_owned()));
                }
                if let Some(name) = name.strip_prefix("md-name-") {
                    // `any:` is the homehost of a config's arrays.
                    let name = name.strip_prefix("any:").unwrap_or(name);
                    return Ok(Self::Array(name.to_owned()));
                }
                let (name, number) = part(&name);
                Self::Id(name.to_owned(), number)
            }
            // Azure's own names, in folders.
            ["disk", "azure", below @ ..] if !below.is_empty() => {
                let name = text(&format!("azure/{}", below.join("/")))?;
                let (name, number) = part(&name);
                Self::Id(name.to_owned(), number)
            }
            ["disk", "by-path", name] => {
                let name = text(name)?;
                let (name, number) = part(&name);
                Self::Path(name.to_owned(), number)
            }
            ["disk", "by-label", name] => Self::Label(text(name)?),
            ["disk", "by-uuid", name] => Self::Uuid(text(name)?.to_lowercase()),
            ["disk", "by-partlabel", name] => Self::PartLabel(text(name)?),
            ["disk", "by-partuuid", name] => Self::PartUuid(text(name)?.to_lowercase()),
            _ => return Err(unknown()),
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbered = |folder: &str, name: &str, number: &Option<u32>| {
            write!(f, "/dev/disk/{folder}/{name}")?;
            number.map_or(Ok(()), |number| write!(f, "-part{number}"))
        };
        match self {
            Self::Kernel(name) => write!(f, "/dev/{name}"),
            Self::Id(name, number) => match name.strip_prefix("azure/") {
                Some(name) => numbered("azure", name, number),
                None => numbered("by-id", name, number),
            },
            Self::Path(name, number) => numbered("by-path", name, number),
            Self::Label(name) => write!(f, "/dev/disk/by-label/{name}"),
            Self::Uuid(name) => write!(f, "/dev/disk/by-uuid/{name}"),
            Self::PartLabel(name) => write!(f, "/dev/disk/by-partlabel/{name}"),
            Self::PartUuid(name) => write!(f, "/dev/disk/by-partuuid/{name}"),
            Self::Array(name) => write!(f, "/dev/md/{name}"),
            Self::Mapped(name) => write!(f, "/dev/mapper/{name}"),
        }
    }
}

/// Splits `NAME-partN`.
fn part(name: &str) -> (&str, Option<u32>) {
    match name.rsplit_once("-part") {
        Some((above, number)) if number.bytes().all(|b| b.is_ascii_digit()) => match number.parse()
        {
            Ok(number) => (above, Some(number)),
            Err(_) => (name, None),
        },
        _ => (name, None),
    }
}

/// Decodes udev's `\x20`.
fn decode(name: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        match tail {
            [b'x', high, low, after @ ..] if *first == b'\\' => {
                let digit = |byte: u8| {
                    char::from(byte)
                        .to_digit(16)
                        .and_then(|d| u8::try_from(d).ok())
                };
                out.push(digit(*high)? << 4 | digit(*low)?);
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    let out = String::from_utf8(out).ok()?;
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_taken_apart_and_shown_as_it_was() {
        let text = str::to_owned;
        for (path, name) in [
            ("/dev/vda", Name::Kernel(text("vda"))),
            (
                "/dev/disk/by-id/virtio-etcd",
                Name::Id(text("virtio-etcd"), None),
            ),
            (
                "/dev/disk/by-id/virtio-etcd-part12",
                Name::Id(text("virtio-etcd"), Some(12)),
            ),
            (
                "/dev/disk/by-id/nvme-a-partition",
                Name::Id(text("nvme-a-partition"), None),
            ),
            (
                "/dev/disk/azure/data/by-lun/0-part1",
                Name::Id(text("azure/data/by-lun/0"), Some(1)),
            ),
            (
                "/dev/disk/by-path/pci-0000:00:04.0-part1",
                Name::Path(text("pci-0000:00:04.0"), Some(1)),
            ),
            ("/dev/disk/by-label/data", Name::Label(text("data"))),
            ("/dev/disk/by-uuid/abcd", Name::Uuid(text("abcd"))),
            ("/dev/disk/by-partlabel/var", Name::PartLabel(text("var"))),
            ("/dev/disk/by-partuuid/abcd", Name::PartUuid(text("abcd"))),
            ("/dev/md/data", Name::Array(text("data"))),
            ("/dev/mapper/data", Name::Mapped(text("data"))),
        ] {
            assert_eq!(Name::parse(path), Ok(name.clone()), "{path}");
            assert_eq!(name.to_string(), path);
        }
        for (path, name) in [
            ("/dev/disk/by-id/dm-name-data", Name::Mapped(text("data"))),
            (
                "/dev/disk/by-id/md-name-any:data",
                Name::Array(text("data")),
            ),
            (
                "/dev/disk/by-partlabel/a\\x20b",
                Name::PartLabel(text("a b")),
            ),
            ("/dev/disk/by-uuid/ABCD", Name::Uuid(text("abcd"))),
        ] {
            assert_eq!(Name::parse(path), Ok(name), "{path}");
        }
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        for path in [
            "/dev/",
            "/dev",
            "/srv/disk.raw",
            "/dev/disk/by-diskseq/1",
            "/dev/disk/by-partlabel/\\xzz",
            "/dev/dasd/x/y",
            "/dev/disk/by-label/",
        ] {
            let error = Name::parse(path).unwrap_err();
            assert!(
                error.contains(path) && error.contains("by-partlabel"),
                "{error}"
            );
        }
    }
}
