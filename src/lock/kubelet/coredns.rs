//! CoreDNS, which is in no Kubernetes release: each names the version that belongs to it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
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

/// A line of a version's sources that the Kubernetes of its release does not compile with.
struct Obsolete {
    version: &'static str,
    /// The file in the module.
    file: &'static str,
    /// The line, without blanks.
    line: &'static str,
}

/// client-go 0.34 has no field `RetryOnError` any more. `false` is what its absence means, and CoreDNS 1.13 leaves it out.
const OBSOLETE: [Obsolete; 1] = [Obsolete {
    version: "v1.12.1",
    file: "plugin/kubernetes/object/informer.go",
    line: "RetryOnError:false,",
}];

/// Leaves the obsolete line out of a version's sources in `modules`, the folder of Go's modules, which nothing else uses. Go has
/// verified them, and refuses both an overlay and a change of its own there. Tells whether there was one.
///
/// # Errors
/// If the module's file does not have the line exactly once, or cannot be read or written.
pub(super) fn adapt(go_mod: &str, modules: &Path) -> Result<bool> {
    let version = version_in(go_mod);
    let found = OBSOLETE.iter().find(|row| version == Some(row.version));
    let Some(Obsolete {
        version,
        file,
        line,
    }) = found
    else {
        return Ok(false);
    };
    let about = || format!("preparing {file} of CoreDNS {version}");
    let path = modules.join(format!("{MODULE}@{version}/{file}"));
    let text = fs::read_to_string(&path).with_context(about)?;
    let is_obsolete = |text: &&str| text.split_whitespace().collect::<String>() == *line;
    let count = text.lines().filter(is_obsolete).count();
    ensure!(
        count == 1,
        "{file} of CoreDNS {version} has the line {line:?} {count} times, expected once"
    );
    let kept: String = text
        .split_inclusive('\n')
        .filter(|text| !is_obsolete(text))
        .collect();
    fs::write(&path, kept).with_context(about)?;
    Ok(true)
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

    #[test]
    fn a_line_that_kubernetes_does_not_know_any_more_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let go_mod = "require github.com/coredns/coredns v1.12.1";
        let module = folder
            .path()
            .join("modules/github.com/coredns/coredns@v1.12.1");
        let file = module.join("plugin/kubernetes/object/informer.go");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = "cfg := &cache.Config{\n\t\tObjectType:       objType,\n\t\tRetryOnError:     false,\n}\n";
        fs::write(&file, text).unwrap();
        let modules = folder.path().join("modules");
        assert!(adapt(go_mod, &modules).unwrap());
        let expected = "cfg := &cache.Config{\n\t\tObjectType:       objType,\n}\n";
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        // Another file than the one that is known is not compiled silently.
        let error = format!("{:#}", adapt(go_mod, &modules).unwrap_err());
        assert!(error.contains("0 times, expected once"), "{error}");
        let newer = "require github.com/coredns/coredns v1.14.2";
        assert!(!adapt(newer, &modules).unwrap());
    }
}
