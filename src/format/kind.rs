//! What a file is, in words for people: of one that is not what was expected.

/// Files that lie about where images are made, by their first bytes (the formats' own specifications; file(1) has them all).
const KINDS: &[(&[u8], &str)] = &[
    (b"\x1f\x8b", "a file packed by gzip"),
    (b"\xfd7zXZ\0", "a file packed by xz"),
    (b"\x28\xb5\x2f\xfd", "a file packed by zstd"),
    (b"PK\x03\x04", "a zip archive"),
    (b"KDMV", "a VMDK disk"),
    (b"# Disk DescriptorFile", "a VMDK disk"),
    (b"vhdxfile", "a VHDX disk"),
    (b"conectix", "a VHD disk"),
    (b"\x7fELF", "a program"),
    (b"070701", "a cpio archive"),
];
/// How many bytes tell it.
pub const HEAD: usize = 1024;
/// Characters of a text that are shown.
const SHOWN: usize = 40;

/// The kind of a file by its first bytes, of which [`HEAD`] are enough.
#[must_use]
pub fn kind(head: &[u8]) -> String {
    if head.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some((_, kind)) = KINDS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*kind).to_owned();
    }
    if head.iter().all(|byte| *byte == 0) {
        return format!(
            "{} zeros at its beginning, and no partition table",
            head.len()
        );
    }
    // The last character may be cut off.
    let text = match std::str::from_utf8(head) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(head.get(..error.valid_up_to()).unwrap_or_default()).ok()
        }
        Err(_) => None,
    };
    let is_control = |letter: char| letter.is_control() && !letter.is_whitespace();
    match text.filter(|text| !text.contains(is_control)) {
        Some(text) => {
            let line: String = text
                .trim_start()
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(SHOWN)
                .collect();
            format!("text: {line:?}")
        }
        None => format!(
            "a file that begins with {:02x?}",
            head.get(..8).unwrap_or(head)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_named() {
        let long = format!("# An image of its own. It extends{} é", " a".repeat(600));
        for (head, expected) in [
            (&b""[..], "an empty file"),
            (b"\x1f\x8b\x08\0", "a file packed by gzip"),
            (b"KDMV\x01\0", "a VMDK disk"),
            (
                &[0; 1024],
                "1024 zeros at its beginning, and no partition table",
            ),
            (b"\n[image]\nname = 1\n", "text: \"[image]\""),
            (
                // Cut within a character.
                long.as_bytes().get(..long.len() - 1).unwrap(),
                "text: \"# An image of its own. It extends a a a \"",
            ),
            (
                b"\x01\x02\xff\xff",
                "a file that begins with [01, 02, ff, ff]",
            ),
            (
                b"ab\0cdefghij",
                "a file that begins with [61, 62, 00, 63, 64, 65, 66, 67]",
            ),
        ] {
            assert_eq!(kind(head), expected);
        }
    }
}
