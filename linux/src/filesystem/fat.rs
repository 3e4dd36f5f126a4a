//! The boot sector of FAT, of any width: label and volume id (Microsoft's FAT specification, section 3).

/// The fields of the boot sector that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BootSector {
    /// The label without its padding; empty if it has none. `mkfs.fat` writes it here too; a label that was changed
    /// later is only in the root folder.
    pub(crate) label: String,
    /// The volume id as `a1b2-c3d4`.
    pub(crate) id: String,
}

/// Reads the boot sector; none if the sector is not FAT's.
pub(crate) fn parse(sector: &[u8]) -> Option<BootSector> {
    let is = |at: usize, name: &[u8]| sector.get(at..at + name.len()) == Some(name);
    let (id, label) = if is(82, b"FAT32   ") {
        (67, 71)
    } else if [b"FAT12   ", b"FAT16   ", b"FAT     "]
        .iter()
        .any(|name| is(54, *name))
    {
        (39, 43)
    } else {
        return None;
    };
    let id = u32::from_le_bytes(sector.get(id..id + 4)?.try_into().ok()?);
    let label = sector.get(label..label + 11)?;
    let label = String::from_utf8_lossy(label);
    let label = label.trim_end_matches([' ', '\0']);
    Some(BootSector {
        label: if label == "NO NAME" { "" } else { label }.to_owned(),
        id: format!("{:04x}-{:04x}", id >> 16, id & 0xffff),
    })
}
