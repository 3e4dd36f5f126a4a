//! What an inode has by itself: its form, its size and its extended attributes.

use anyhow::{Context as _, Result};

use super::Node;

/// Bytes of an inode whose numbers are small.
pub(super) const COMPACT: usize = 32;
/// Bytes of any other.
pub(super) const EXTENDED: usize = 64;
/// Bytes before the first attribute.
pub(super) const ATTRIBUTES: usize = 12;
/// Bytes of an attribute before its name.
pub(super) const ATTRIBUTE: usize = 4;

/// What an inode has by itself.
#[derive(Debug)]
pub(super) struct Header {
    /// Whether a number is too large for the small form.
    pub(super) extended: bool,
    /// Bytes of its content.
    pub(super) size: u64,
    /// As they follow the inode.
    pub(super) attributes: Vec<u8>,
}

impl Header {
    /// The header of a node whose content has `size` bytes.
    ///
    /// # Errors
    /// If an attribute's name is of no known kind, or an attribute is too long.
    pub(super) fn of(node: &Node<'_>, size: u64, links: u32) -> Result<Self> {
        let small = u32::from(u16::MAX);
        let extended = [node.uid, node.gid, links]
            .iter()
            .any(|number| *number > small)
            || u32::try_from(size).is_err();
        let mut attributes = Vec::new();
        for (name, value) in node.xattrs {
            if attributes.is_empty() {
                // No filter of names, no shared attributes.
                attributes.resize(ATTRIBUTES, 0);
            }
            attribute(name, value, &mut attributes)
                .with_context(|| format!("{}: the attribute {name}", node.path))?;
        }
        Ok(Self {
            extended,
            size,
            attributes,
        })
    }

    /// Its bytes.
    pub(super) fn size(&self) -> usize {
        let inode = if self.extended { EXTENDED } else { COMPACT };
        inode + self.attributes.len()
    }
}

fn attribute(name: &str, value: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (kind, rest) = prefix(name).context(
        "EROFS has attributes of user, trusted and security and access control lists alone",
    )?;
    out.push(u8::try_from(rest.len()).context("its name is longer than 255 bytes")?);
    out.push(kind);
    let size = u16::try_from(value.len()).context("it is longer than 64 KiB")?;
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(rest.as_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(ATTRIBUTE), 0);
    Ok(())
}

/// The number of an attribute's prefix, and the rest of its name.
fn prefix(name: &str) -> Option<(u8, &str)> {
    let of = |prefix, number| name.strip_prefix(prefix).map(|rest| (number, rest));
    match name {
        "system.posix_acl_access" => Some((2, "")),
        "system.posix_acl_default" => Some((3, "")),
        _ => of("user.", 1)
            .or_else(|| of("trusted.", 4))
            .or_else(|| of("security.", 6)),
    }
}
