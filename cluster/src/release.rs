//! Versions, and the one table of what differs between those of kubeadm.

mod older;

use std::fmt;

use older::OLDER;

/// A version of Kubernetes or of an image: three numbers, and what follows a hyphen or a plus sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major, minor and patch.
    pub numbers: [u32; 3],
    /// The rest, with the sign that it begins with.
    pub rest: String,
}

impl Version {
    /// Reads a semantic version with or without a `v` before it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut parts = numbers.split('.').map(number);
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        let sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_');
        let whole = parts.next().is_none() && rest.chars().all(sign);
        whole.then(|| Self {
            numbers,
            rest: rest.to_owned(),
        })
    }

    /// The minor number.
    #[must_use]
    pub const fn minor(&self) -> u32 {
        self.numbers[1]
    }

    /// Whether this is older than another version (semantic versioning, 11: a version before its release is older than that, and what
    /// follows a plus sign does not count).
    #[must_use]
    pub fn is_older_than(&self, other: &Self) -> bool {
        // A number is older than a word.
        let identifiers = |version: &Self| -> Vec<(Option<String>, u64)> {
            let before = version.rest.split('+').next().unwrap_or_default();
            let parts = before.trim_start_matches('-').split('.');
            let parts = parts.map(|part| match part.parse::<u64>() {
                Ok(number) => (None, number),
                Err(_) => (Some(part.to_owned()), 0),
            });
            parts.collect()
        };
        let is_release = |version: &Self| !version.rest.starts_with('-');
        let rank = |version: &Self| (version.numbers, is_release(version), identifiers(version));
        rank(self) < rank(other)
    }

    /// Whether this is at least that version; a version before its release is below it.
    #[must_use]
    pub fn at_least(&self, numbers: [u32; 3]) -> bool {
        self.numbers > numbers || (self.numbers == numbers && !self.rest.starts_with('-'))
    }
}

/// Digits without a zero before them.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let zero = text.len() > 1 && text.starts_with('0');
    (digits && !zero).then(|| text.parse().ok())?
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "v{major}.{minor}.{patch}{}", self.rest)
    }
}

/// The flags that etcd's static pod is given for its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdFlags {
    /// Those of etcd 3.6.
    Current,
    /// Those of etcd 3.6, or the experimental ones if the image's tag is below it.
    ByTag,
    /// The experimental ones, whatever the image's tag.
    Experimental,
}

/// What a minor version of kubeadm does in its own way.
#[derive(Debug)]
pub struct Release {
    /// Its minor version.
    pub minor: u32,
    /// The tag of etcd's image for each minor version of Kubernetes, newest first, with the first patch version of
    /// kubeadm that has it.
    pub etcd: &'static [(u32, u32, &'static str)],
    /// The flags of etcd.
    pub etcd_flags: EtcdFlags,
    /// The tag of CoreDNS's image.
    pub coredns: &'static str,
    /// The tag of the pause image that the kubelet is given, if it is given one.
    pub pause: Option<&'static str>,
    /// The feature gates that are known, and whether each is on if the configuration is silent.
    pub gates: &'static [(&'static str, bool)],
    /// The algorithms of keys that it knows.
    pub algorithms: &'static [&'static str],
    /// Whether an external etcd has endpoints for HTTP: its endpoints, if the configuration names no others.
    pub http_endpoints: bool,
    /// Whether the controller manager is given the folder of FlexVolume plugins.
    pub flexvolume: bool,
    /// The organisation of the API server's client certificate for kubelets. Without one it is authorised by a binding.
    pub kubelet_client: Option<&'static str>,
    /// Whether the container runtime's socket is an annotation of the node, if `NodeLocalCRISocket` is off.
    pub marks_socket: bool,
    /// Whether the node of a dry run has the annotation of the container runtime's socket.
    pub annotates_socket: bool,
    /// Whether probes name a port of their container. Before that they have its number, and the container no port for them.
    pub named_probes: bool,
    /// Whether what is empty is written, as Go's types had it before Kubernetes 1.34: an object's time of creation as null, a kubeconfig's
    /// preferences as a map.
    pub writes_empty: bool,
}

/// The versions of kubeadm that cluster objects may have, oldest first.
pub const RELEASES: [Release; 3] = [
    Release {
        minor: 34,
        etcd: &[
            (34, 2, "3.6.5-0"),
            (34, 0, "3.6.4-0"),
            (33, 3, "3.5.24-0"),
            (33, 0, "3.5.21-0"),
        ],
        etcd_flags: EtcdFlags::ByTag,
        coredns: "v1.12.1",
        pause: Some("3.10.1"),
        gates: &[
            ("ControlPlaneKubeletLocalMode", true),
            ("NodeLocalCRISocket", true),
            ("PublicKeysECDSA", false),
            ("RootlessControlPlane", false),
            ("WaitForAllControlPlaneComponents", true),
        ],
        algorithms: &ALGORITHMS,
        http_endpoints: false,
        flexvolume: true,
        kubelet_client: Some("kubeadm:cluster-admins"),
        marks_socket: true,
        annotates_socket: true,
        named_probes: true,
        writes_empty: false,
    },
    Release {
        minor: 35,
        etcd: &[(35, 0, "3.6.6-0"), (34, 0, "3.6.5-0"), (33, 0, "3.5.24-0")],
        etcd_flags: EtcdFlags::ByTag,
        coredns: "v1.13.1",
        pause: None,
        gates: &[
            ("ControlPlaneKubeletLocalMode", true),
            ("NodeLocalCRISocket", true),
            ("PublicKeysECDSA", false),
            ("RootlessControlPlane", false),
        ],
        algorithms: &ALGORITHMS,
        http_endpoints: true,
        flexvolume: true,
        kubelet_client: Some("kubeadm:cluster-admins"),
        marks_socket: true,
        annotates_socket: false,
        named_probes: true,
        writes_empty: false,
    },
    Release {
        minor: 36,
        etcd: &[(34, 0, "3.6.8-0")],
        etcd_flags: EtcdFlags::Current,
        coredns: "v1.14.2",
        pause: None,
        gates: &[
            ("NodeLocalCRISocket", true),
            ("PublicKeysECDSA", false),
            ("RootlessControlPlane", false),
        ],
        algorithms: &ALGORITHMS,
        http_endpoints: true,
        flexvolume: false,
        kubelet_client: None,
        marks_socket: false,
        annotates_socket: false,
        named_probes: true,
        writes_empty: false,
    },
];

/// The algorithms of keys.
pub const ALGORITHMS: [&str; 5] = [
    "ECDSA-P256",
    "ECDSA-P384",
    "RSA-2048",
    "RSA-3072",
    "RSA-4096",
];

/// A version of kubeadm that is known, with its row.
#[derive(Clone, Debug)]
pub struct Kubeadm {
    /// The version.
    pub version: Version,
    /// Its row.
    pub release: &'static Release,
}

impl Kubeadm {
    /// The version of a text, if it is known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::among(RELEASES.iter(), Version::parse(text)?)
    }

    /// The same, or one of the older ones that no object may have: what kubeadm itself made of a configuration is known of them too.
    #[must_use]
    pub fn of_configuration(text: &str) -> Option<Self> {
        let version = Version::parse(text)?;
        let patch = version.numbers[2];
        let older = OLDER.iter().filter(|older| patch >= older.first_patch);
        let older = older.map(|older| &older.release);
        Self::among(RELEASES.iter().chain(older), version)
    }

    fn among(
        mut releases: impl Iterator<Item = &'static Release>,
        version: Version,
    ) -> Option<Self> {
        let known = |release: &&Release| version.numbers[..2] == [1, release.minor];
        let release = releases.find(known)?;
        Some(Self { version, release })
    }

    /// The first patch version of the newest minor version that is known.
    #[must_use]
    pub fn newest() -> Self {
        let release = &RELEASES[RELEASES.len() - 1];
        let version = Version {
            numbers: [1, release.minor, 0],
            rest: String::new(),
        };
        Self { version, release }
    }

    /// The tag of etcd's image for a version of Kubernetes. Kubernetes newer or older than the table takes the nearest row.
    #[must_use]
    pub fn etcd_tag(&self, kubernetes: &Version) -> &'static str {
        let fits = |row: &&(u32, u32, &'static str)| self.version.numbers[2] >= row.1;
        let mut rows = self.release.etcd.iter().filter(fits);
        let last = rows.clone().next_back();
        let below = rows.find(|row| kubernetes.minor() >= row.0);
        below.or(last).map_or("", |row| row.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_a_v() {
        for (text, expected) in [
            ("1.34.4", Some("v1.34.4")),
            ("v1.36.0-rc.1", Some("v1.36.0-rc.1")),
            ("v1.35.1+k3s1", Some("v1.35.1+k3s1")),
            ("3.5.24-0", Some("v3.5.24-0")),
            ("1.34", None),
            ("stable-1", None),
            ("1.034.1", None),
        ] {
            let read = Version::parse(text).map(|version| version.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
        let version = |text| Version::parse(text).unwrap();
        assert!(version("1.34.0").at_least([1, 34, 0]));
        assert!(!version("1.34.0-rc.1").at_least([1, 34, 0]));
        assert!(version("1.34.1-rc.1").at_least([1, 34, 0]));
    }

    #[test]
    fn versions_are_older_by_their_numbers_and_by_what_is_before_a_release() {
        let version = |text: &str| Version::parse(text).unwrap();
        let ascending = [
            "1.9.11",
            "1.35.0-alpha.1",
            "1.35.0-rc.2",
            "1.35.0-rc.10",
            "1.35.0-rc.10.1",
            "1.35.0",
            "1.35.2",
            "1.36.0-beta.0",
            "1.36.0",
        ];
        for (at, older) in ascending.iter().enumerate() {
            for (later, newer) in ascending.iter().enumerate() {
                let found = version(older).is_older_than(&version(newer));
                assert_eq!(found, at < later, "{older} {newer}");
            }
        }
        let (built, plain) = (version("1.36.0+k3s1"), version("v1.36.0"));
        assert!(!built.is_older_than(&plain) && !plain.is_older_than(&built));
    }

    #[test]
    fn an_older_kubeadm_reads_configurations_and_makes_no_object() {
        for (text, read) in [
            ("1.33.13", true),
            ("1.33.12", false),
            ("1.33.6", false),
            ("1.32.13", true),
            ("1.32.12", false),
            ("1.32.2", false),
            ("1.31.14", false),
        ] {
            assert!(Kubeadm::parse(text).is_none(), "{text}");
            assert_eq!(Kubeadm::of_configuration(text).is_some(), read, "{text}");
        }
    }

    #[test]
    fn etcd_follows_kubernetes_and_kubeadm() {
        let tag = |kubeadm: &str, kubernetes: &str| {
            let kubernetes = Version::parse(kubernetes).unwrap();
            Kubeadm::parse(kubeadm).unwrap().etcd_tag(&kubernetes)
        };
        assert_eq!(tag("1.34.4", "1.34.4"), "3.6.5-0");
        assert_eq!(tag("1.34.0", "1.34.0"), "3.6.4-0");
        assert_eq!(tag("1.34.4", "1.33.1"), "3.5.24-0");
        assert_eq!(tag("1.36.3", "1.37.0"), "3.6.8-0");
        assert_eq!(tag("1.35.4", "1.35.4"), "3.6.6-0");
    }
}
