//! The versions that a release of Kubernetes implies, and the place of each file by the conventions of its publisher.

use cluster::release::{Kubeadm, Version};
use serde::{Deserialize, Serialize};

/// The architectures of published releases that an image can have, by Debian's name, which Go uses too.
pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// The programs of the Kubernetes release server (<https://kubernetes.io/releases/download/>).
const PROGRAMS: [&str; 7] = [
    "kubelet",
    "kubectl",
    "kubeadm",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];
/// The images whose tag is the release itself.
const RELEASED: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];

/// The constants of a minor release: those of kubeadm (`cmd/kubeadm/app/constants/constants.go`), and the CNI plugins and
/// crictl of `build/dependencies.yaml`. Minors that are in `cluster`'s table of kubeadm take etcd and CoreDNS from there.
struct Minor {
    minor: u32,
    /// etcd and CoreDNS, for minors that `cluster` does not know.
    older: Option<(&'static str, &'static str)>,
    pause: &'static str,
    cni: &'static str,
    crictl: &'static str,
}

const MINORS: [Minor; 5] = [
    Minor {
        minor: 32,
        older: Some(("3.5.24-0", "v1.11.3")),
        pause: "3.10",
        cni: "v1.6.0",
        crictl: "v1.31.1",
    },
    Minor {
        minor: 33,
        older: Some(("3.5.24-0", "v1.12.0")),
        pause: "3.10",
        cni: "v1.6.2",
        crictl: "v1.32.0",
    },
    Minor {
        minor: 34,
        older: None,
        pause: "3.10.1",
        cni: "v1.7.1",
        crictl: "v1.33.0",
    },
    Minor {
        minor: 35,
        older: None,
        pause: "3.10.1",
        cni: "v1.8.0",
        crictl: "v1.34.0",
    },
    Minor {
        minor: 36,
        older: None,
        pause: "3.10.2",
        cni: "v1.9.1",
        crictl: "v1.35.0",
    },
];

/// How a downloaded file becomes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unpack {
    /// It is the program.
    None,
    /// A tar archive, compressed by gzip.
    TarGz,
}

impl Unpack {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::TarGz => "tar-gz",
        }
    }
}

/// A file of a release before its hash is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    pub(crate) path: &'static str,
    pub(crate) unpack: Unpack,
}

/// The versions that one release implies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Implied {
    release: String,
    crictl: &'static str,
    etcd: &'static str,
    coredns: &'static str,
    pause: &'static str,
    cni: &'static str,
}

impl Implied {
    /// What `1.36.3` implies; none for a version that is not a patch release of a known minor.
    pub(crate) fn of(version: &str) -> Option<Self> {
        let read = Version::parse(version)?;
        let patch = read.rest.is_empty() && read.numbers[0] == 1 && !version.starts_with('v');
        let row = MINORS
            .iter()
            .find(|row| patch && row.minor == read.minor())?;
        let (etcd, coredns) = match row.older {
            Some(older) => older,
            None => {
                let kubeadm = Kubeadm::parse(version)?;
                (kubeadm.etcd_tag(&read), kubeadm.release.coredns)
            }
        };
        Some(Self {
            release: read.to_string(),
            crictl: row.crictl,
            etcd,
            coredns,
            pause: row.pause,
            cni: row.cni,
        })
    }

    /// The minors that are known, as `1.32`.
    pub(crate) fn minors() -> Vec<String> {
        MINORS
            .iter()
            .map(|row| format!("1.{}", row.minor))
            .collect()
    }

    /// The CoreDNS of the release.
    pub(super) const fn coredns(&self) -> &'static str {
        self.coredns
    }

    /// The version of crictl, the CNI plugins or etcd, which have releases of their own.
    pub(crate) fn own_version(&self, name: &str) -> Option<String> {
        match name {
            "crictl" => Some(self.crictl.to_owned()),
            "cni-plugins" => Some(self.cni.to_owned()),
            // The tag has the number of the image's build.
            "etcd" => Some(format!("v{}", self.etcd.split('-').next()?)),
            _ => None,
        }
    }

    /// The published files for an architecture. Their URLs begin with the word of a base: see
    /// [`super::add::Bases`].
    pub(crate) fn files(&self, architecture: &str) -> Vec<File> {
        let release = &self.release;
        let mut files: Vec<File> = PROGRAMS
            .into_iter()
            .map(|name| File {
                name,
                url: format!("{{release}}/{release}/bin/linux/{architecture}/{name}"),
                path: "",
                unpack: Unpack::None,
            })
            .collect();
        let crictl = self.crictl;
        files.push(File {
            name: "crictl",
            url: format!(
                "{{github}}/kubernetes-sigs/cri-tools/releases/download/{crictl}/crictl-{crictl}-linux-{architecture}.tar.gz"
            ),
            path: "crictl",
            unpack: Unpack::TarGz,
        });
        let cni = self.cni;
        files.push(File {
            name: "cni-plugins",
            url: format!(
                "{{github}}/containernetworking/plugins/releases/download/{cni}/cni-plugins-linux-{architecture}-{cni}.tgz"
            ),
            path: ".",
            unpack: Unpack::TarGz,
        });
        files
    }

    /// The images: (name, repository below the registry, tag).
    pub(super) fn images(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut images: Vec<_> = RELEASED
            .into_iter()
            .map(|name| (name, name, self.release.clone()))
            .collect();
        images.push(("coredns", "coredns/coredns", self.coredns.to_owned()));
        images.push(("etcd", "etcd", self.etcd.to_owned()));
        images.push(("pause", "pause", self.pause.to_owned()));
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_release_implies_its_files_and_images() {
        let implied = Implied::of("1.36.3").unwrap();
        let urls: Vec<String> = implied
            .files("arm64")
            .into_iter()
            .map(|file| file.url)
            .collect();
        assert!(urls.contains(&"{release}/v1.36.3/bin/linux/arm64/kubelet".to_owned()));
        assert!(
            urls.iter()
                .any(|url| url.ends_with("/crictl-v1.35.0-linux-arm64.tar.gz"))
        );
        let images = implied.images();
        assert!(images.contains(&("coredns", "coredns/coredns", "v1.14.2".to_owned())));
        assert!(images.contains(&("etcd", "etcd", "3.6.8-0".to_owned())));
        assert!(images.contains(&("kube-proxy", "kube-proxy", "v1.36.3".to_owned())));
        assert_eq!(Implied::of("1.34.0").unwrap().etcd, "3.6.4-0");
        for minor in Implied::minors() {
            assert!(Implied::of(&format!("{minor}.1")).is_some(), "{minor}");
        }
    }

    #[test]
    fn what_is_not_a_patch_release_of_a_known_minor_implies_nothing() {
        for text in [
            "1.36",
            "v1.36.3",
            "1.36.3-rc.1",
            "1.31.0",
            "1.99.0",
            "2.36.3",
            "",
            "1.036.1",
        ] {
            assert_eq!(Implied::of(text), None, "{text}");
        }
    }
}
