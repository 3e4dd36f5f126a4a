//! The addon of the kernel command line: a small PE file in the ESP from which systemd-stub takes further arguments.
//!
//! Format: systemd-stub(7), "Addons". The builder links a template with an empty `.cmdline` section; the init fills
//! it in place, so that it needs no writer of PE. The stub reads the section up to its first NUL.

use std::ops::Range;

/// The template in the ESP, at a path that no loader reads.
pub const TEMPLATE: &str = "/slipway/cmdline.addon.efi";
/// The path from which the stub of every image on this ESP reads addons.
pub const PATH: &str = "/loader/addons/slipway.addon.efi";
/// Bytes for the arguments, the final NUL included.
pub const ROOM: usize = 1024;
/// Marks the end of the section, so that the init finds it without parsing PE.
const MARK: &[u8] = b"slipway: the room for words of the kernel ends here";

/// Content of the template's `.cmdline` section.
#[must_use]
pub fn reserved() -> Vec<u8> {
    [&[0; ROOM], MARK].concat()
}

/// The arguments in an addon; empty in the template. None if Slipway did not make it.
#[must_use]
pub fn words(addon: &[u8]) -> Option<&str> {
    let room = &addon[room(addon)?];
    let text = room.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

/// The addon with `words` as its arguments; none if Slipway did not make it, or if they do not fit.
#[must_use]
pub fn with_words(addon: &[u8], words: &str) -> Option<Vec<u8>> {
    let room = room(addon)?;
    if words.len() >= ROOM {
        return None;
    }
    let mut out = addon.to_vec();
    out[room.clone()].fill(0);
    out[room.start..room.start + words.len()].copy_from_slice(words.as_bytes());
    Some(out)
}

/// The section's range; none unless the mark occurs exactly once.
fn room(addon: &[u8]) -> Option<Range<usize>> {
    let mut ends = addon
        .windows(MARK.len())
        .enumerate()
        .filter_map(|(at, window)| (window == MARK).then_some(at));
    let end = ends.next()?;
    let start = end.checked_sub(ROOM)?;
    ends.next().is_none().then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_in_and_come_out() {
        let template = [b"MZ headers".as_slice(), &reserved(), b"padding"].concat();
        assert_eq!(words(&template), Some(""));
        let addon = with_words(&template, "quiet mitigations=off").unwrap();
        assert_eq!(addon.len(), template.len());
        assert_eq!(words(&addon), Some("quiet mitigations=off"));
        let shorter = with_words(&addon, "quiet").unwrap();
        assert_eq!(words(&shorter), Some("quiet"));
        assert_eq!(with_words(&addon, "").unwrap(), template);
        assert!(with_words(&template, &"a".repeat(ROOM - 1)).is_some());
        assert_eq!(with_words(&template, &"a".repeat(ROOM)), None);
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let twice = [reserved(), reserved()].concat();
        for bytes in [b"MZ".as_slice(), &reserved()[1..], &twice] {
            assert_eq!(words(bytes), None);
            assert_eq!(with_words(bytes, "quiet"), None);
        }
    }
}
