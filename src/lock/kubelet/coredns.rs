//! CoreDNS, which is in no Kubernetes release: each names the version that belongs to it.

use cluster::release::Kubeadm;

/// The program's name.
pub(super) const NAME: &str = "coredns";
/// Its Go module.
pub(super) const MODULE: &str = "github.com/coredns/coredns";

/// The version that kubeadm of a release installs; none for a release that is not known, which takes the newest.
pub(super) fn version_for(release: &str) -> Option<&'static str> {
    Kubeadm::parse(release).map(|kubeadm| kubeadm.release.coredns)
}

/// The version that a `go.mod` requires, as `v1.14.2`.
pub(super) fn version_in(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("require ").unwrap_or(line);
        line.strip_prefix(MODULE)?
            .strip_prefix(' ')?
            .split_whitespace()
            .next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_the_version_of_its_kubeadm() {
        assert_eq!(version_for("v1.36.3"), Some("v1.14.2"));
        assert_eq!(version_for("v1.34.4"), Some("v1.12.1"));
        assert_eq!(version_for("v1.99.0"), None);
    }

    #[test]
    fn the_version_is_read_from_the_modules() {
        for (text, version) in [
            (
                "require (\n\tgithub.com/coredns/caddy v1.1.4 // indirect\n\tgithub.com/coredns/coredns v1.14.2\n)\n",
                Some("v1.14.2"),
            ),
            (
                "require github.com/coredns/coredns v1.12.1",
                Some("v1.12.1"),
            ),
            ("require github.com/coredns/coredns-more v1.0.0", None),
            ("", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }
}
