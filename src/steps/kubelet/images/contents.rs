//! What each container image consists of: paths of Debian packages, and a program of the release.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use image::container_images::REGISTRY;
use image::kubelet::{ETCD_IMAGE, FLANNEL_IMAGE, KUBE_PROXY_IMAGE, PAUSE_IMAGE};

use crate::debian::pinned::Deb;
use crate::lock::kubelet::Program;
use crate::recipe::ContainerImage;

/// Who runs CoreDNS, as in upstream's image, metrics-server and Amazon's cloud controller. CoreDNS's port is below 1024, which containerd's configuration allows.
const NOBODY: &str = "65532:65532";

/// flannel's program in its image.
const FLANNELD: &str = "/opt/bin/flanneld";

/// What nft consists of: a library that is missing in this list fails the build.
const NFT: &[&str] = &[
    "libbsd0",
    "libc6",
    "libedit2",
    "libgmp10",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnftables1",
    "libnftnl11",
    "libtinfo6",
    "libxtables12",
    "nftables",
];

/// What iptables consists of, beside what nft does.
const IPTABLES: &[&str] = &[
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
];

/// What ipset consists of, by which kube-proxy makes its sets beside IPVS, beside what nft does.
const IPSET: &[&str] = &["ipset", "libipset13t64"];

/// The one program that is all of iptables, by nf_tables as the kernel's own rules are.
pub(super) const XTABLES: &str = "/usr/sbin/xtables-nft-multi";
/// The names by which kube-proxy calls it, which Debian's package leaves to the alternatives of an installation.
const IPTABLES_NAMES: &[&str] = &[
    "/usr/sbin/ip6tables",
    "/usr/sbin/ip6tables-restore",
    "/usr/sbin/ip6tables-save",
    "/usr/sbin/iptables",
    "/usr/sbin/iptables-restore",
    "/usr/sbin/iptables-save",
];

/// What an image is made of: paths of Debian packages, a static program of the release, or both.
pub(super) struct Content<'a> {
    /// The packages.
    pub(super) debs: Vec<Deb>,
    /// Which of their paths.
    pub(super) keep: fn(&str) -> bool,
    /// Further names of [`XTABLES`].
    pub(super) names: &'static [&'static str],
    /// The program, which is the entry point.
    pub(super) program: Option<&'a Program>,
}

/// An image to make.
pub(super) struct Wanted<'a> {
    pub(super) image: ContainerImage,
    /// Its full names; the first one is its reference.
    pub(super) names: Vec<String>,
    pub(super) content: Content<'a>,
    pub(super) entrypoint: Vec<String>,
    /// User and group of its programs; empty for root.
    pub(super) user: &'static str,
    /// The commands that check at build time that its programs start.
    pub(super) proofs: Vec<Vec<String>>,
}

/// The words of a command.
fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A package of the lock's set.
fn deb(debs: &[Deb], name: &str) -> Result<Deb> {
    let found = debs.iter().find(|deb| deb.package.name == name);
    found
        .cloned()
        .with_context(|| format!("the lock's set has no package {name}"))
}

/// What packages of the lock's set give to an image.
fn packages<'a>(debs: &[Deb], names: &[&str], keep: fn(&str) -> bool) -> Result<Content<'a>> {
    let debs = names.iter().map(|name| deb(debs, name));
    Ok(Content {
        debs: debs.collect::<Result<_>>()?,
        keep,
        names: &[],
        program: None,
    })
}

/// kube-proxy, with the programs by which it makes its rules.
fn kube_proxy<'a>(debs: &[Deb], components: &'a BTreeMap<String, Program>) -> Result<Wanted<'a>> {
    // A lock of before has no iptables or no ipset, and builds what it built.
    let has = |parts: &[&str]| debs.iter().any(|deb| deb.package.name == parts[0]);
    let parts = [NFT, IPTABLES, IPSET].into_iter();
    let parts: Vec<_> = parts.filter(|parts| has(parts) || *parts == NFT).collect();
    let content = packages(debs, &parts.concat(), is_of_kube_proxy)?;
    let names = if has(IPTABLES) { IPTABLES_NAMES } else { &[] };
    let mut proofs = vec![words(&["/usr/sbin/nft", "--version"])];
    proofs.extend(names.iter().map(|name| words(&[name, "--version"])));
    if has(IPSET) {
        // Its version is asked of the kernel too.
        proofs.push(words(&["/usr/sbin/ipset", "help"]));
    }
    // Where upstream's image has it, and kubeadm's DaemonSet looks for it.
    let image = ContainerImage::KubeProxy;
    let content = Content { names, ..content };
    let mut wanted = of_release(image, "/usr/local/bin", content, components)?;
    wanted.proofs.extend(proofs);
    wanted.names.push(KUBE_PROXY_IMAGE.to_owned());
    Ok(wanted)
}

/// How an image is made.
pub(super) fn wanted<'a>(
    image: ContainerImage,
    debs: &[Deb],
    components: &'a BTreeMap<String, Program>,
) -> Result<Wanted<'a>> {
    Ok(match image {
        ContainerImage::Pause => Wanted {
            image,
            names: vec![PAUSE_IMAGE.to_owned()],
            content: packages(debs, &["catatonit"], is_pause)?,
            entrypoint: words(&["/usr/bin/catatonit", "-P"]),
            user: "",
            proofs: vec![words(&["/usr/bin/catatonit", "--version"])],
        },
        ContainerImage::Etcd if components.contains_key(image.name()) => {
            let nothing = packages(debs, &[], is_nothing)?;
            let mut wanted = of_release(image, "/usr/bin", nothing, components)?;
            let release = &components[image.name()].version;
            let release = release.trim_start_matches('v');
            wanted.names = vec![
                format!("{REGISTRY}/{}:{release}-0", image.name()),
                ETCD_IMAGE.to_owned(),
            ];
            wanted
        }
        ContainerImage::Etcd => {
            // Kubernetes' tools choose etcd's options by the release in the tag, and write it with a build number.
            let server = deb(debs, "etcd-server")?;
            let release = upstream(&server.package.version);
            let tagged = format!("{REGISTRY}/{}:{release}-0", image.name());
            Wanted {
                image,
                names: vec![tagged, ETCD_IMAGE.to_owned()],
                content: packages(debs, &["etcd-server", "libc6"], is_etcd)?,
                entrypoint: words(&["/usr/bin/etcd"]),
                user: "",
                proofs: vec![words(&["/usr/bin/etcd", "--version"])],
            }
        }
        ContainerImage::KubeApiserver
        | ContainerImage::KubeControllerManager
        | ContainerImage::KubeScheduler => {
            let content = packages(debs, &[], is_nothing)?;
            of_release(image, "/usr/bin", content, components)?
        }
        ContainerImage::KubeProxy => kube_proxy(debs, components)?,
        ContainerImage::Flannel => {
            // Where upstream's image has it, beside nft, by which it makes its rules.
            let content = packages(debs, NFT, is_nft)?;
            let mut wanted = of_release(image, "/opt/bin", content, components)?;
            let program = FLANNELD.to_owned();
            wanted.proofs = vec![
                vec![program.clone(), "--version".to_owned()],
                words(&["/usr/sbin/nft", "--version"]),
            ];
            wanted.entrypoint = vec![program];
            wanted.names.push(FLANNEL_IMAGE.to_owned());
            wanted
        }
        ContainerImage::Coredns
        | ContainerImage::MetricsServer
        | ContainerImage::AwsCloudControllerManager => {
            let content = packages(debs, &[], is_nothing)?;
            Wanted {
                user: NOBODY,
                ..of_release(image, "", content, components)?
            }
        }
    })
}

/// An image of a program of the release, with what it needs beside it.
fn of_release<'a>(
    image: ContainerImage,
    folder: &str,
    content: Content<'a>,
    components: &'a BTreeMap<String, Program>,
) -> Result<Wanted<'a>> {
    let name = image.name();
    let program = components
        .get(name)
        .with_context(|| format!("the lock has no program {name}"))?;
    let path = format!("{folder}/{name}");
    Ok(Wanted {
        image,
        names: vec![format!("{REGISTRY}/{name}:{}", program.version)],
        content: Content {
            program: Some(program),
            ..content
        },
        proofs: vec![vec![path.clone(), "--version".to_owned()]],
        entrypoint: vec![path],
        user: "",
    })
}

fn is_nothing(_: &str) -> bool {
    false
}

pub(super) fn is_pause(path: &str) -> bool {
    path == "/usr/bin/catatonit"
}

fn is_etcd(path: &str) -> bool {
    path == "/usr/bin/etcd" || is_library(path)
}

fn is_nft(path: &str) -> bool {
    path == "/usr/sbin/nft" || is_library(path)
}

fn is_of_kube_proxy(path: &str) -> bool {
    matches!(path, XTABLES | "/usr/sbin/ipset") || is_nft(path)
}

/// Of the C library, only the files for a program without locales and converters.
fn is_library(path: &str) -> bool {
    path == "/usr/lib64"
        || path.starts_with("/usr/lib64/")
        || (path.starts_with("/usr/lib/") && path.contains(".so") && !path.contains("/gconv/"))
}

/// The upstream version of a Debian package's version, without epoch and revision (Debian policy, 5.6.12).
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version
        .rsplit_once('-')
        .map_or(version, |(upstream, _)| upstream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packages_version_gives_the_upstream_one() {
        for (version, upstream) in [
            ("3.5.16-4+b13", "3.5.16"),
            ("1:2.0-1-3", "2.0-1"),
            ("0.2.1", "0.2.1"),
        ] {
            assert_eq!(super::upstream(version), upstream);
        }
    }

    #[test]
    fn of_iptables_only_the_kind_by_nf_tables_is_kept() {
        assert!(is_of_kube_proxy("/usr/sbin/xtables-nft-multi"));
        // Of the two kinds of iptables only the one that the names lead to.
        assert!(!is_of_kube_proxy("/usr/sbin/xtables-legacy-multi"));
        assert!(is_of_kube_proxy(
            "/usr/lib/x86_64-linux-gnu/xtables/libxt_comment.so"
        ));
        assert!(!is_nft(XTABLES));
    }
}
