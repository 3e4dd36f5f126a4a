//! `/etc/ssl/certs` as `update-ca-certificates` makes it, without its 1,400 programs.
//!
//! That script starts several programs for each authority, twice in an installation: a tenth of the time of a build. While dpkg
//! configures packages, a script that only remembers that it was called stands in its place; what it would have done is then done here.
//! Where anything is not as the packages of Debian have it (another script, hooks, authorities of the administrator, two with one
//! subject), the script itself does it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::format::certificate;
use crate::format::digest;
use crate::host::cache;
use crate::host::sandbox::Sandbox;
use crate::host::tree;

/// The script.
const SCRIPT: &str = "usr/sbin/update-ca-certificates";
/// SHA-256 of those whose work is known: that of Debian 13.
const KNOWN: &[&str] = &["2cb06c85b5f01c4f6b72c3983d9f66d44aac0a7ac997ee55e7e429aedbc3934d"];
/// Where the script waits, beside itself.
const AWAY: &str = "usr/sbin/.update-ca-certificates.slipway";
/// Present once the script was called.
const CALLED: &str = "run/slipway-update-ca-certificates";
/// The list of the script, an absolute path of the tree: which authorities are enabled, each a path below [`AUTHORITIES`].
pub(crate) const CA_LIST: &str = "/etc/ca-certificates.conf";
const AUTHORITIES: &str = "usr/share/ca-certificates";
/// Authorities of the administrator.
const LOCAL: &str = "usr/local/share/ca-certificates";
/// Programs that are told what has changed.
const HOOKS: &str = "etc/ca-certificates/update.d";
const CERTS: &str = "etc/ssl/certs";
/// All certificates in one file, in [`CERTS`].
const BUNDLE: &str = "ca-certificates.crt";

/// Runs `configure`, during which the script is only remembered, and does what it was called for.
///
/// # Errors
/// That of `configure`, or if the certificates cannot be written.
pub(super) fn aside(
    root: &Path,
    sandbox: &Sandbox,
    configure: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if !put_aside(root)? {
        return configure();
    }
    // After a failure the tree is removed with all that is in it.
    configure()?;
    fs::rename(root.join(AWAY), root.join(SCRIPT))
        .context("putting update-ca-certificates back")?;
    let called = root.join(CALLED);
    if !called.exists() {
        return Ok(());
    }
    cache::remove(&called)?;
    if let Some(certificates) = Certificates::read(root)? {
        return certificates.write(root);
    }
    sandbox
        .command("update-ca-certificates")
        .run()
        .map(|_| ())
        .context("updating the certificates")
}

/// Replaces the script, if it is a known one that calls no hooks.
fn put_aside(root: &Path) -> Result<bool> {
    let script = root.join(SCRIPT);
    let hooks = fs::read_dir(root.join(HOOKS)).is_ok_and(|mut hooks| hooks.next().is_some());
    let is_file = fs::symlink_metadata(&script).is_ok_and(|meta| meta.is_file());
    if hooks || !is_file || !KNOWN.contains(&digest::sha256(&script)?.as_str()) {
        return Ok(false);
    }
    fs::rename(&script, root.join(AWAY))?;
    fs::write(&script, format!("#!/bin/sh\n: > /{CALLED}\n"))?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(true)
}

/// What belongs into the folder of certificates.
#[derive(Debug, PartialEq, Eq)]
struct Certificates {
    /// Links and their targets.
    links: BTreeMap<String, PathBuf>,
    bundle: String,
}

impl Certificates {
    /// Nothing if the script has to do it.
    fn read(root: &Path) -> Result<Option<Self>> {
        let mut all = Self {
            links: BTreeMap::new(),
            bundle: String::new(),
        };
        let list = root.join(CA_LIST.trim_start_matches('/'));
        let Ok(conf) = fs::read_to_string(list) else {
            return Ok(None);
        };
        for line in conf.lines().filter(|line| !line.is_empty()) {
            if line.starts_with('!') {
                return Ok(None);
            }
            if !line.starts_with('#') && !all.add(root, line) {
                return Ok(None);
            }
        }
        if has_files(&root.join(LOCAL))? || !all.covers(&root.join(CERTS))? {
            return Ok(None);
        }
        Ok(Some(all))
    }

    /// Adds an authority by its path below the folder of all; whether it is as expected.
    fn add(&mut self, root: &Path, line: &str) -> bool {
        let path = Path::new("/").join(AUTHORITIES).join(line);
        let Ok(text) = fs::read_to_string(root.join(AUTHORITIES).join(line)) else {
            return false;
        };
        let stem = (path.file_name())
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".crt"));
        // What the script's sed changes in names.
        let Some(stem) = stem.filter(|stem| !stem.contains([' ', '(', ')', ','])) else {
            return false;
        };
        let found = match certificate::read(text.as_bytes()) {
            Ok(found) if found.len() == 1 => found,
            _ => return false,
        };
        self.bundle += &text;
        if !text.ends_with('\n') {
            self.bundle.push('\n');
        }
        let name = format!("{stem}.pem");
        let by_hash = format!("{}.0", found[0].hash);
        let hashed = self.links.insert(by_hash, PathBuf::from(&name));
        hashed.is_none() && self.links.insert(name, path).is_none()
    }

    /// Whether a folder has nothing but what is in this.
    fn covers(&self, folder: &Path) -> Result<bool> {
        Ok(tree::walk(folder)?.iter().all(|item| {
            let name = &item.inside[1..];
            let target = fs::read_link(&item.path).ok();
            let is_bundle = name == BUNDLE && item.meta.is_file();
            is_bundle || (target.is_some() && self.links.get(name) == target.as_ref())
        }))
    }

    fn write(&self, root: &Path) -> Result<()> {
        let folder = root.join(CERTS);
        let about = || format!("writing /{CERTS}");
        for (name, target) in &self.links {
            let link = folder.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(target, &link).with_context(about)?;
            }
        }
        let bundle = folder.join(BUNDLE);
        fs::write(&bundle, &self.bundle).with_context(about)?;
        fs::set_permissions(&bundle, Permissions::from_mode(0o644)).with_context(about)
    }
}

fn has_files(folder: &Path) -> Result<bool> {
    if !folder.exists() {
        return Ok(false);
    }
    Ok(tree::walk(folder)?.iter().any(|item| !item.meta.is_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = include_str!("../format/certificate/odd.pem");

    fn system(conf: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [AUTHORITIES, CERTS, LOCAL, "etc", "run", "usr/sbin"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join(AUTHORITIES).join("Odd.crt"), ODD.trim_end()).unwrap();
        fs::write(root.join(CA_LIST.trim_start_matches('/')), conf).unwrap();
        folder
    }

    #[test]
    fn enabled_authorities_are_linked_by_name_and_hash_and_bundled() {
        let folder = system("# of Debian\n\nOdd.crt\n");
        let root = folder.path();
        // Twice, as an installation does.
        for _ in 0..2 {
            let all = Certificates::read(root).unwrap().unwrap();
            all.write(root).unwrap();
        }
        let certs = root.join(CERTS);
        let link = |name: &str| fs::read_link(certs.join(name)).unwrap();
        let authority = "/usr/share/ca-certificates/Odd.crt";
        assert_eq!(link("Odd.pem"), Path::new(authority));
        assert_eq!(link("bc162e3a.0"), Path::new("Odd.pem"));
        let bundle = fs::read_to_string(certs.join(BUNDLE)).unwrap();
        assert_eq!(bundle.trim_end(), ODD.trim_end());
        assert!(bundle.ends_with('\n'));
        assert_eq!(tree::walk(&certs).unwrap().len(), 3);
    }

    #[test]
    fn what_is_not_as_packages_have_it_is_left_to_the_script() {
        let is_left = |conf: &str, more: &[(&str, &str)]| {
            let folder = system(conf);
            for (path, content) in more {
                fs::write(folder.path().join(path), content).unwrap();
            }
            Certificates::read(folder.path()).unwrap().is_none()
        };
        assert!(!is_left("Odd.crt\n", &[]));
        assert!(is_left("!Odd.crt\n", &[]));
        assert!(is_left("absent.crt\n", &[]));
        let share = |name: &str| format!("{AUTHORITIES}/{name}");
        // Two with one subject; a name that the script changes; several in a file.
        assert!(is_left("Odd.crt\nB.crt\n", &[(&share("B.crt"), ODD)]));
        assert!(is_left("A b.crt\n", &[(&share("A b.crt"), ODD)]));
        let two = format!("{ODD}{ODD}");
        assert!(is_left("B.crt\n", &[(&share("B.crt"), &two)]));
        let local = format!("{LOCAL}/own.crt");
        assert!(is_left("Odd.crt\n", &[(&local, ODD)]));
        let other = format!("{CERTS}/ssl-cert-snakeoil.pem");
        assert!(is_left("Odd.crt\n", &[(&other, ODD)]));
    }

    #[test]
    fn an_unknown_script_runs_itself() {
        let folder = system("");
        let root = folder.path();
        assert!(!put_aside(root).unwrap());
        fs::write(root.join(SCRIPT), "#!/bin/sh\n").unwrap();
        assert!(!put_aside(root).unwrap());
        assert_eq!(
            fs::read_to_string(root.join(SCRIPT)).unwrap(),
            "#!/bin/sh\n"
        );
    }
}
