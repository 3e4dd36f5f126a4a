//! Our Go module, which requires a release of Kubernetes, and what the linker writes into its programs.
//!
//! `go install k8s.io/kubernetes/cmd/kubelet@…` cannot work: that module replaces its staging modules by local folders,
//! and Go ignores replacements in a dependency. So a module of ours requires it, with each staging module
//! `k8s.io/NAME` replaced by its published version `v0.Y.Z`; the names come from the release's `go.mod`.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::{coredns, version};

/// The module of Kubernetes.
pub(super) const MODULE: &str = "k8s.io/kubernetes";

/// The modules that a program is compiled from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modules<'a> {
    /// `go.mod` of our module.
    pub(super) go_mod: &'a str,
    /// `go.sum`: the hash of every module.
    pub(super) go_sum: &'a str,
}

/// Sets the version variables: without them a node would report `v0.0.0-master`, which every other program refuses. The
/// time and the commit of upstream's builds are not recorded in a module.
pub(super) fn link_flags(release: &str) -> Result<String> {
    let (major, minor, _) = version::parse(release)
        .with_context(|| format!("{release:?} is not a release of Kubernetes"))?;
    let mut flags = "-s -w -buildid=".to_owned();
    for (name, value) in [
        ("gitVersion", release),
        ("gitMajor", &major.to_string()),
        ("gitMinor", &minor.to_string()),
        ("gitCommit", ""),
        ("gitTreeState", "archive"),
        ("buildDate", "1970-01-01T00:00:00Z"),
    ] {
        write!(flags, " -X k8s.io/component-base/version.{name}={value}")?;
    }
    Ok(flags)
}

/// `go.mod` of our module, derived from that of the release; without a version of CoreDNS it is for Go to choose the newest.
pub(super) fn go_mod(theirs: &str, release: &str, coredns: Option<&str>) -> Result<String> {
    let staged = release
        .strip_prefix("v1.")
        .map(|rest| format!("v0.{rest}"))
        .with_context(|| format!("{release:?} is not a release of Kubernetes 1"))?;
    let go = theirs
        .lines()
        .find(|line| line.starts_with("go "))
        .context("the release's go.mod names no Go version")?;
    let mut text = format!("module slipway/kubelet\n\n{go}\n\nrequire {MODULE} {release}\n");
    if let Some(version) = coredns {
        writeln!(text, "require {} {version}", coredns::MODULE)?;
    }
    text.push_str("\nreplace (\n");
    let mut count = 0;
    for line in theirs.lines() {
        let line = line.trim().trim_start_matches("replace ");
        let Some((name, target)) = line.split_once(" => ") else {
            continue;
        };
        if target.trim().starts_with("./staging/") {
            writeln!(text, "\t{name} => {name} {staged}")?;
            count += 1;
        }
    }
    ensure!(
        count > 0,
        "the release's go.mod has no staging modules: its format is unknown"
    );
    text.push_str(")\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_become_published_ones() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\tk8s.io/api \
                      v0.0.0\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/mount-utils => \
                      ./staging/src/k8s.io/mount-utils\n\tother => other v1\n)\n\nreplace k8s.io/x => \
                      ./staging/src/k8s.io/x\n";
        assert_eq!(
            go_mod(theirs, "v1.36.3", Some("v1.14.2")).unwrap(),
            "module slipway/kubelet\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.3\nrequire \
             github.com/coredns/coredns v1.14.2\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/mount-utils => k8s.io/mount-utils v0.36.3\n\tk8s.io/x => k8s.io/x \
             v0.36.3\n)\n"
        );
        let error = go_mod("module m\ngo 1.26\n", "v1.36.3", None).unwrap_err();
        assert!(error.to_string().contains("staging"), "{error}");
        assert!(go_mod(theirs, "v2.0.0", None).is_err());
        let newest = go_mod(theirs, "v1.36.3", None).unwrap();
        assert!(!newest.contains(coredns::MODULE), "{newest}");
    }

    #[test]
    fn the_node_will_know_its_version() {
        let flags = link_flags("v1.36.3").unwrap();
        for part in ["gitVersion=v1.36.3 ", "gitMajor=1 ", "gitMinor=36 "] {
            assert!(flags.contains(part), "{flags}");
        }
        assert!(link_flags("1.36").is_err());
    }
}
