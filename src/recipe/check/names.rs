//! Rules for names: the syntax of each kind of name, and the message for an invalid one.

use crate::debian::mirror::SNAPSHOT;
use crate::recipe::mistakes::{Mistake, Place, nearest};

/// A kind of name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    ImageName,
    ImageVersion,
    RunName,
    Component,
    ArchiveName,
    Suite,
    VendorComponent,
    PackagePattern,
    Version,
    Package,
    Locale,
    Url,
    Snapshot,
    Module,
    ModuleAlias,
    CmdlineWord,
    Unit,
    User,
    Account,
    Zone,
    ModuleOptions,
    FilePath,
}

/// The reason for refusing a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Why {
    found: String,
    expected: &'static str,
    help: Option<String>,
}

impl Why {
    pub(super) fn mistake(self, place: &Place) -> Mistake {
        let mistake = Mistake::at(place, self.found, self.expected);
        match self.help {
            Some(help) => mistake.help(help),
            None => mistake,
        }
    }
}

/// The types of units, `systemd.unit(5)`.
const UNIT_KINDS: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];

/// Components of Debian's archive.
const COMPONENTS: [&str; 4] = ["main", "contrib", "non-free", "non-free-firmware"];

/// Where a login belongs.
pub(super) const LOGIN_HELP: &str = "write `machine HOST login USER password PASSWORD` into a file that SLIPWAY_AUTH_FILE names, or into \
     apt's auth.conf.d; for a registry `docker login` (docs/write-a-recipe.md, Private mirrors and registries)";

impl Rule {
    pub(super) fn check(self, name: &str) -> Result<(), Why> {
        let rest = |allowed: &dyn Fn(char) -> bool| name.chars().all(allowed);
        let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let (what, good, expected) = match self {
            Self::ImageName => (
                "an image name",
                name.starts_with(|c: char| c.is_ascii_lowercase())
                    && rest(&|c| lower(c) || c == '-')
                    && !name.ends_with('-')
                    && name.len() <= 40,
                "expected lower-case letters, digits and hyphens, beginning with a letter, at most 40",
            ),
            Self::RunName => (
                "the name of a program of `build.run`",
                name.starts_with(|c: char| c.is_ascii_lowercase())
                    && rest(&|c| lower(c) || c == '-')
                    && name.len() <= 40,
                "expected lower-case letters, digits and hyphens, beginning with a letter, at most 40",
            ),
            // A `+` would start a boot counter and a `_` would end the name.
            Self::ImageVersion => (
                "an image version",
                name.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && rest(&|c| c.is_ascii_alphanumeric() || "-.~".contains(c))
                    && name.len() <= 40,
                "expected letters, digits, dots, hyphens and tildes, at most 40",
            ),
            Self::Component => return component(name),
            Self::ArchiveName
            | Self::Suite
            | Self::VendorComponent
            | Self::PackagePattern
            | Self::Version => {
                return self.of_archives(name);
            }
            Self::Package => return package(name),
            Self::Locale => (
                "a locale",
                name.len() >= 2 && rest(&|c| c.is_ascii_alphanumeric() || "_.@-".contains(c)),
                "expected a locale as \"de_DE.UTF-8\"",
            ),
            Self::Url if fetch::has_login(name) => return Err(login("the URL")),
            Self::Url => (
                "a URL",
                ["http://", "https://"].iter().any(|scheme| {
                    name.strip_prefix(scheme)
                        .is_some_and(|host| !host.is_empty())
                }) && rest(&|c| c.is_ascii_graphic()),
                "expected a URL that begins with http:// or https://",
            ),
            Self::Snapshot if name == SNAPSHOT => return Ok(()),
            Self::Snapshot => return snapshot(name),
            Self::Module => (
                "a module name",
                !name.is_empty() && rest(&|c| c.is_ascii_alphanumeric() || "_-".contains(c)),
                "expected a module's name without path and suffix, as \"virtio_blk\"",
            ),
            Self::ModuleAlias
            | Self::ModuleOptions
            | Self::Account
            | Self::Zone
            | Self::FilePath => {
                return self.of_system(name);
            }
            Self::CmdlineWord => return cmdline(name),
            Self::Unit => return unit(name),
            Self::User => (
                "a user or group name",
                name.parse::<u32>().is_ok()
                    || name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
                        && rest(&|c| lower(c) || "_-".contains(c)),
                "expected the name of a user or group, or a number",
            ),
        };
        outcome(name, what, good, expected)
    }

    /// Words about the running system: its modules, accounts, files and time zone.
    fn of_system(self, name: &str) -> Result<(), Why> {
        let rest = |allowed: &dyn Fn(char) -> bool| name.chars().all(allowed);
        let (what, good, expected) = match self {
            Self::ModuleAlias => (
                "a module name or alias",
                !name.is_empty() && rest(&|c| c.is_ascii_graphic() && !"#;/".contains(c)),
                "expected a module's name without path and suffix, as \"br_netfilter\"",
            ),
            // systemd's strict form, https://systemd.io/USER_NAMES
            Self::Account => (
                "the name of an account",
                name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && rest(&|c| c.is_ascii_alphanumeric() || "_-".contains(c))
                    && name.len() <= 31,
                "expected letters, digits, hyphens and underscores, beginning with a letter, at most 31",
            ),
            Self::Zone => (
                "a time zone",
                name.split('/').all(|part| !["", ".", ".."].contains(&part))
                    && rest(&|c| c.is_ascii_alphanumeric() || "/_+-".contains(c)),
                "expected a name as \"Europe/Berlin\" or \"Etc/UTC\"",
            ),
            Self::FilePath => (
                "the path of a file",
                name.strip_prefix('/').is_some_and(|path| {
                    path.split('/').all(|part| !["", ".", ".."].contains(&part))
                }) && !name.chars().any(char::is_control),
                "expected an absolute path, as \"/usr/bin/sudo\"",
            ),
            _ => (
                "a module's options",
                !name.trim().is_empty()
                    && name.split_whitespace().all(|word| !word.starts_with('='))
                    && rest(&|c| (c.is_ascii_graphic() || c == ' ') && !"#\\".contains(c)),
                "expected words as \"max_bonds=0 miimon=100\" on one line",
            ),
        };
        outcome(name, what, good, expected)
    }

    /// The names in `[[debian.archives]]`, and the versions that an archive has.
    fn of_archives(self, name: &str) -> Result<(), Why> {
        let rest = |allowed: &dyn Fn(char) -> bool| name.chars().all(allowed);
        let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let (what, good, expected) = match self {
            Self::ArchiveName => (
                "the name of an archive",
                name.starts_with(|c: char| c.is_ascii_lowercase())
                    && rest(&|c| lower(c) || c == '-')
                    && name.len() <= 40,
                "expected lower-case letters, digits and hyphens, beginning with a letter, at most 40",
            ),
            Self::Suite => (
                "a suite",
                name == "/"
                    || name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.')
                        && rest(&|c| c.is_ascii_alphanumeric() || "._+~/-".contains(c))
                        && name.split('/').all(|part| part != ".."),
                "expected a suite as \"trixie\", or a folder as \"./\" or \"debian/\" for a flat archive",
            ),
            Self::VendorComponent => (
                "a component",
                name.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && rest(&|c| c.is_ascii_alphanumeric() || "._+~/-".contains(c))
                    && name.split('/').all(|part| !["", ".."].contains(&part)),
                "expected a component as in apt's sources, as \"main\" or \"stable\"",
            ),
            Self::Version => (
                "a version or a pattern of versions",
                !name.is_empty() && rest(&|c| c.is_ascii_alphanumeric() || ".+~:-*?".contains(c)),
                "expected one of the archive's versions, as \"1.7.24~ds1-6\", or a pattern, as \"1.7.*\"",
            ),
            _ => (
                "a package name or a pattern of such names",
                !name.is_empty() && rest(&|c| lower(c) || "+-.*?".contains(c)),
                "expected lower-case letters, digits, `+`, `-`, `.`, and `*` and `?` in patterns",
            ),
        };
        outcome(name, what, good, expected)
    }
}

/// A snapshot archive that is not [`SNAPSHOT`].
fn snapshot(name: &str) -> Result<(), Why> {
    Rule::Url.check(name).map_err(|why| match why.help {
        Some(_) => why,
        None => Why {
            expected: "expected \"debian\", or a URL that begins with http:// or https://",
            help: nearest(name, [SNAPSHOT]).map(|word| format!("did you mean `{word}`?")),
            ..why
        },
    })
}

/// The mistake of an address that has a user or a password.
pub(super) fn of_login(place: &Place, what: &str) -> Mistake {
    login(what).mistake(place)
}

/// Why an address with a user or a password is refused, without the address.
fn login(what: &str) -> Why {
    Why {
        found: format!("{what} has a user or a password"),
        expected: "expected it without: recipe and lock are no place for secrets",
        help: Some(LOGIN_HELP.to_owned()),
    }
}

fn outcome(name: &str, what: &str, good: bool, expected: &'static str) -> Result<(), Why> {
    match good {
        true => Ok(()),
        false => Err(Why {
            found: format!("{name:?} is not {what}"),
            expected,
            help: None,
        }),
    }
}

fn component(name: &str) -> Result<(), Why> {
    if COMPONENTS.contains(&name) {
        return Ok(());
    }
    Err(Why {
        found: format!("Debian has no component {name:?}"),
        expected: "expected main, contrib, non-free or non-free-firmware",
        help: nearest(name, COMPONENTS).map(|near| format!("did you mean `{near}`?")),
    })
}

/// Debian Policy 5.6.1.
fn package(name: &str) -> Result<(), Why> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    if name.len() >= 2
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(good)
    {
        return Ok(());
    }
    let help = if name.contains(['=', '<', '>']) {
        Some("give the name alone: the lock pins versions, and [debian.versions] says which are allowed".to_owned())
    } else if name.contains(':') {
        Some("packages are of the image's architecture; give the name alone".to_owned())
    } else if name.to_lowercase() != name && package(&name.to_lowercase()).is_ok() {
        Some(format!("did you mean `{}`?", name.to_lowercase()))
    } else {
        None
    };
    Err(Why {
        found: format!("{name:?} is not a Debian package name"),
        expected: "expected lower-case letters, digits, `+`, `-` and `.`",
        help,
    })
}

fn cmdline(word: &str) -> Result<(), Why> {
    let key = word.split('=').next().unwrap_or(word);
    if [image::cmdline::ROOTHASH, image::cmdline::ROOT_URL].contains(&key) {
        return Err(Why {
            found: format!("`{key}` cannot be set by a recipe"),
            expected: "expected a word that the build does not write itself",
            help: Some("the build adds it when the root is sealed".to_owned()),
        });
    }
    let words = image::cmdline::words(word);
    let plain = word.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if words.len() == 1 && plain && word.matches('"').count().is_multiple_of(2) {
        return Ok(());
    }
    Err(Why {
        found: format!("{word:?} is not one word of a kernel command line"),
        expected: "expected one ASCII word, as \"console=ttyS0\"",
        help: (words.len() > 1 && plain).then(|| format!("write it as {} items", words.len())),
    })
}

fn unit(name: &str) -> Result<(), Why> {
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let good = |c: char| c.is_ascii_alphanumeric() || "@:-_.\\".contains(c);
    if UNIT_KINDS.contains(&kind) && !stem.is_empty() && name.chars().all(good) {
        return Ok(());
    }
    let help = match nearest(kind, UNIT_KINDS) {
        _ if kind.is_empty() && stem.chars().all(good) => {
            Some(format!("did you mean `{stem}.service`?"))
        }
        Some(near) if near != kind => Some(format!("did you mean `{stem}.{near}`?")),
        _ => None,
    };
    Err(Why {
        found: format!("{name:?} is not a systemd unit name"),
        expected: "expected a name that ends in .service, .socket, .timer, .mount, .target, …",
        help,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_held_against_their_rule() {
        let good = [
            (Rule::ImageName, "node-2"),
            (Rule::ImageVersion, "1.0~rc1"),
            (Rule::Package, "libstdc++6"),
            (Rule::Url, "http://mirror.example/debian"),
            (Rule::Snapshot, "debian"),
            (
                Rule::Snapshot,
                "https://snapshot.example/archive/{archive}/{time}",
            ),
            (Rule::Module, "virtio_blk"),
            (Rule::CmdlineWord, "console=ttyS0,115200"),
            (Rule::CmdlineWord, "dyndbg=\"file a b\""),
            (Rule::Unit, "getty@tty1.service"),
            (Rule::User, "systemd-network"),
            (Rule::User, "1000"),
        ];
        for (rule, name) in good {
            assert_eq!(rule.check(name), Ok(()), "{name}");
        }
        let bad = [
            (Rule::ImageName, "Node"),
            (Rule::ImageName, "no_de"),
            (Rule::ImageVersion, "1+2"),
            (Rule::Package, "curl=8.0"),
            (Rule::Package, "a_b"),
            (Rule::Package, "Curl"),
            (Rule::Url, "mirror.example/debian"),
            (Rule::Snapshot, "debain"),
            (Rule::Module, "virtio_blk.ko.xz/"),
            (Rule::CmdlineWord, "quiet splash"),
            (Rule::CmdlineWord, "roothash=00"),
            (Rule::Unit, "ssh"),
            (Rule::Unit, "ssh.servce"),
            (Rule::User, "Root"),
        ];
        for (rule, name) in bad {
            assert!(rule.check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_nearest_unit_kind_is_offered() {
        let why = Rule::Unit.check("ssh.servce").unwrap_err();
        assert_eq!(why.help.as_deref(), Some("did you mean `ssh.service`?"));
    }
}
