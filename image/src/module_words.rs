//! What the kernel command line says of kernel modules: options for those that are loaded, and which are not to be loaded.
//!
//! The kernel reads such words only for what is built into it; for the others `modprobe` does, whose part the init has.
//!
//! | word | meaning |
//! |---|---|
//! | `MODULE.OPTION=VALUE`, `MODULE.OPTION` | an option, as in modprobe(8) |
//! | `modprobe.blacklist=A,B` | not loaded for a device that it serves, by the init and later by udev (modprobe(8)); loaded where it is named |
//! | `rd.driver.blacklist=A,B` | the same, in the initramfs alone (dracut.cmdline(7)): kmod, which udev asks, does not know it |
//! | `module_blacklist=A,B` | the kernel itself refuses to load it, named or not |

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::canonical;

/// Keys whose modules are not loaded for a device: in the initramfs and later, in the initramfs alone.
const BLACKLISTS: [&str; 2] = ["modprobe.blacklist", "rd.driver.blacklist"];
/// The kernel's own key.
const REFUSED: &str = "module_blacklist";
/// Keys with which the kernel loads no module without a signature (kernel_lockdown(7), `kernel/module/signing.c`).
const SIGNED_ONLY: [&str; 2] = ["lockdown", "module.sig_enforce"];

/// The key of a word of the command line with which the kernel loads no module without a signature; none of another word.
#[must_use]
pub fn signed_only(word: &str) -> Option<&'static str> {
    let bare = word.trim_matches('"');
    let (key, value) = bare.split_once('=').unwrap_or((bare, ""));
    let is_off = ["0", "n", "N"].contains(&value);
    let key = key.replace('-', "_");
    SIGNED_ONLY
        .into_iter()
        .find(|known| *known == key && !is_off)
}

/// The words of one command line, by modules' names with underscores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleWords {
    options: BTreeMap<String, String>,
    blacklist: BTreeSet<String>,
    refused: BTreeSet<String>,
}

impl ModuleWords {
    /// Reads `/proc/cmdline` text. What is not for a module is passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for word in raw_words(text) {
            out.take(word);
        }
        out
    }

    fn take(&mut self, word: &str) {
        // The kernel's parser takes a quote before the whole word, or one within it (`next_arg` in lib/cmdline.c).
        let (quote, bare) = match word.strip_prefix('"') {
            Some(bare) => ("\"", bare),
            None => ("", word),
        };
        let (key, value) = bare.split_once('=').unwrap_or((bare, ""));
        let names = || {
            value
                .split(',')
                .map(|name| canonical(name.trim_matches('"')))
        };
        if BLACKLISTS.contains(&key) {
            return self.blacklist.extend(names());
        }
        if key.replace('-', "_") == REFUSED {
            return self.refused.extend(names());
        }
        let Some((module, option)) = key.split_once('.') else {
            return;
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if module.is_empty() || option.is_empty() || !module.chars().all(plain) {
            return;
        }
        let options = self.options.entry(canonical(module)).or_default();
        if !options.is_empty() {
            options.push(' ');
        }
        // As it was written: the kernel reads the options of a module by the same parser.
        options.push_str(quote);
        options.push_str(&bare[module.len() + 1..]);
    }

    /// A module's options, as the kernel takes them; empty if there are none.
    #[must_use]
    pub fn options(&self, module: &str) -> &str {
        self.options
            .get(&canonical(module))
            .map_or("", String::as_str)
    }

    /// Whether a module is not to be loaded for a device that it serves.
    #[must_use]
    pub fn is_blacklisted(&self, module: &str) -> bool {
        let module = canonical(module);
        self.blacklist.contains(&module) || self.refused.contains(&module)
    }

    /// Whether the kernel itself refuses to load a module.
    #[must_use]
    pub fn is_refused(&self, module: &str) -> bool {
        self.refused.contains(&canonical(module))
    }
}

/// The words with their quotes.
fn raw_words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let outside = move |c: char| {
        quoted ^= c == '"';
        c.is_ascii_whitespace() && !quoted
    };
    text.split(outside).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_kept_as_they_are_written() {
        let words = ModuleWords::parse(
            "vmlinuz root=/dev/sda1 nvme-core.io_timeout=30 quiet nvme_core.multipath=N usbcore.nousb \
             dyndbg.dyndbg=\"file a.c +p; func b\" \"loop.name=a b\" vlan=eth0.5:eth0 \
             ignition.config.url=http://a/b.c .x=1 a.=2 scsi_mod.scan=async\n",
        );
        for (module, options) in [
            ("nvme_core", "io_timeout=30 multipath=N"),
            ("nvme-core", "io_timeout=30 multipath=N"),
            ("usbcore", "nousb"),
            ("dyndbg", "dyndbg=\"file a.c +p; func b\""),
            ("loop", "\"name=a b\""),
            ("scsi_mod", "scan=async"),
            ("vlan", ""),
            ("a", ""),
        ] {
            assert_eq!(words.options(module), options, "{module}");
        }
    }

    #[test]
    fn the_docs_say_where_each_blacklist_counts() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/boot-a-rack.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (key, place) in BLACKLISTS.into_iter().chain([REFUSED]).zip([
            "in the initramfs and in the running node",
            "in the initramfs alone",
            "for the kernel itself",
        ]) {
            let row = format!("\n| `{key}=` | {place}");
            assert!(page.contains(&row), "{row}");
            // Nothing else of the page says more than the row does.
            assert_eq!(page.matches(key).count(), 1, "{key}");
        }
    }

    #[test]
    fn blacklists_name_modules_by_either_spelling() {
        let words = ModuleWords::parse(
            "modprobe.blacklist=i6300esb,virtio-net rd.driver.blacklist=sr_mod modprobe.blacklist=\"floppy\" \
             module_blacklist=nouveau",
        );
        for module in [
            "i6300esb",
            "virtio_net",
            "virtio-net",
            "sr_mod",
            "floppy",
            "nouveau",
        ] {
            assert!(words.is_blacklisted(module), "{module}");
        }
        assert!(!words.is_blacklisted("e1000") && !words.is_refused("i6300esb"));
        assert!(words.is_refused("nouveau"));
        assert_eq!(words.options("modprobe"), "");
        assert_eq!(ModuleWords::parse(""), ModuleWords::default());
    }
}
