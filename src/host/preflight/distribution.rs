//! Distribution: the host's os-release, and its commands for packages and certificates, for remedies.

use std::fs;

/// Distributions whose commands differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    Fedora,
    Arch,
    Suse,
    Alpine,
    Other,
}

impl Distribution {
    /// That of this host.
    pub(super) fn here() -> Self {
        let text = ["/etc/os-release", "/usr/lib/os-release"]
            .iter()
            .find_map(|path| fs::read_to_string(path).ok());
        Self::of(&text.unwrap_or_default())
    }

    /// By `ID`, then by the words of `ID_LIKE` (os-release(5)).
    pub(super) fn of(os_release: &str) -> Self {
        let value = |key: &str| {
            let mut lines = os_release.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches(['"', '\''])
        };
        let words = [value("ID"), value("ID_LIKE")];
        let mut words = words.iter().flat_map(|words| words.split_whitespace());
        let known = words.find_map(|word| match word {
            "debian" | "ubuntu" => Some(Self::Debian),
            "fedora" | "rhel" | "centos" => Some(Self::Fedora),
            "arch" => Some(Self::Arch),
            "suse" | "opensuse" => Some(Self::Suse),
            "alpine" => Some(Self::Alpine),
            _ => None,
        });
        known.unwrap_or(Self::Other)
    }

    /// What installs `newuidmap` and `newgidmap`.
    pub(super) const fn install_uidmap(self) -> &'static str {
        match self {
            Self::Debian => "have root run `apt-get install uidmap`",
            Self::Fedora => "have root run `dnf install shadow-utils`",
            Self::Arch => "have root run `pacman -S shadow`",
            Self::Suse => "have root run `zypper install shadow`",
            Self::Alpine => "have root run `apk add shadow-subids`",
            Self::Other => {
                "have root install the package with newuidmap and newgidmap (uidmap, shadow or shadow-utils)"
            }
        }
    }

    /// What installs the usual certificate authorities.
    pub(super) const fn install_certificates(self) -> &'static str {
        match self {
            Self::Debian => "have root run `apt-get install ca-certificates`",
            Self::Fedora => "have root run `dnf install ca-certificates`",
            Self::Arch => "have root run `pacman -S ca-certificates`",
            Self::Suse => "have root run `zypper install ca-certificates-mozilla`",
            Self::Alpine => "have root run `apk add ca-certificates`",
            Self::Other => "have root install the package ca-certificates",
        }
    }

    /// What adds an authority, CA.crt, to those that the host trusts.
    pub(super) const fn trust_authority(self) -> &'static str {
        match self {
            Self::Debian | Self::Alpine => {
                "have root run `cp CA.crt /usr/local/share/ca-certificates/ && update-ca-certificates`"
            }
            Self::Fedora => {
                "have root run `cp CA.crt /etc/pki/ca-trust/source/anchors/ && update-ca-trust`"
            }
            Self::Arch => "have root run `trust anchor --store CA.crt`",
            Self::Suse => {
                "have root run `cp CA.crt /etc/pki/trust/anchors/ && update-ca-certificates`"
            }
            Self::Other => "have root add it to the host's certificates",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_and_their_descendants_are_known() {
        for (text, expected) in [
            ("ID=debian\n", Distribution::Debian),
            (
                "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n",
                Distribution::Debian,
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Distribution::Debian,
            ),
            ("ID=fedora\nVERSION_ID=43\n", Distribution::Fedora),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Distribution::Fedora,
            ),
            ("ID=arch\n", Distribution::Arch),
            (
                "ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n",
                Distribution::Suse,
            ),
            ("ID=alpine\n", Distribution::Alpine),
            ("ID=nixos\n", Distribution::Other),
            ("", Distribution::Other),
        ] {
            assert_eq!(Distribution::of(text), expected, "{text}");
        }
    }
}
