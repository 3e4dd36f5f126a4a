//! Mount options as in fstab, split into the flags of mount(2), the data for the file system, and words for programs
//! only (`mount(8)`, section "filesystem-independent mount options").

use super::Flags;

/// Words for the flags: (word, flag, whether the word sets it).
const FLAGS: &[(&str, Flags, bool)] = &[
    ("ro", Flags::MS_RDONLY, true),
    ("rw", Flags::MS_RDONLY, false),
    ("nosuid", Flags::MS_NOSUID, true),
    ("suid", Flags::MS_NOSUID, false),
    ("nodev", Flags::MS_NODEV, true),
    ("dev", Flags::MS_NODEV, false),
    ("noexec", Flags::MS_NOEXEC, true),
    ("exec", Flags::MS_NOEXEC, false),
    ("sync", Flags::MS_SYNCHRONOUS, true),
    ("async", Flags::MS_SYNCHRONOUS, false),
    ("dirsync", Flags::MS_DIRSYNC, true),
    ("noatime", Flags::MS_NOATIME, true),
    ("atime", Flags::MS_NOATIME, false),
    ("nodiratime", Flags::MS_NODIRATIME, true),
    ("diratime", Flags::MS_NODIRATIME, false),
    ("relatime", Flags::MS_RELATIME, true),
    ("norelatime", Flags::MS_RELATIME, false),
    ("strictatime", Flags::MS_STRICTATIME, true),
    ("nostrictatime", Flags::MS_STRICTATIME, false),
    ("lazytime", Flags::MS_LAZYTIME, true),
    ("nolazytime", Flags::MS_LAZYTIME, false),
    ("iversion", Flags::MS_I_VERSION, true),
    ("noiversion", Flags::MS_I_VERSION, false),
    ("silent", Flags::MS_SILENT, true),
    ("loud", Flags::MS_SILENT, false),
    // MS_NOSYMFOLLOW, which nix does not name.
    ("nosymfollow", Flags::from_bits_retain(256), true),
    ("symfollow", Flags::from_bits_retain(256), false),
];

/// Options that only programs use, and that the kernel does not take.
const WORDS: &[&str] = &[
    "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner",
    "group", "nogroup", "nofail", "_netdev",
];

/// Flags, and the text for the file system. A list entry may hold several options itself; the last option for a flag
/// wins.
pub fn options(words: &[String]) -> (Flags, String) {
    let (mut flags, mut rest) = (Flags::empty(), Vec::new());
    for word in words.iter().flat_map(|words| words.split(',')) {
        let word = word.trim();
        if let Some((_, flag, set)) = FLAGS.iter().find(|(name, ..)| *name == word) {
            flags.set(*flag, *set);
        } else if !word.is_empty()
            && !WORDS.contains(&word)
            && !["x-", "X-", "comment="]
                .iter()
                .any(|start| word.starts_with(start))
        {
            rest.push(word);
        }
    }
    (flags, rest.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_without_a_name_is_one() {
        let (flags, data) = options(&["nosymfollow,acl".to_owned()]);
        assert_eq!((flags.bits(), data.as_str()), (256, "acl"));
    }

    #[test]
    fn flags_data_and_words_for_programs_are_distinguished() {
        let words = [
            "noatime,data=ordered",
            "ro",
            "x-systemd.automount",
            "rw",
            "nofail",
            "discard",
        ];
        let (flags, data) = options(&words.map(str::to_owned));
        assert_eq!(flags, Flags::MS_NOATIME);
        assert_eq!(data, "data=ordered,discard");
        assert_eq!(options(&[]), (Flags::empty(), String::new()));
    }
}
