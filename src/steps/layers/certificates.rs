//! The recipe's certificate authorities, as `update-ca-certificates` adds them: in the bundle that most programs read, and by
//! their names and the hashes of their subjects for OpenSSL's folder; and in its list, by which a later run of it adds them again.
//!
//! The kubelet's container has both folders of the host mounted, and containerd reads the bundle, as every program in Go does.

use anyhow::{Context, Result};
use image::paths::{CA_BUNDLE, CA_FOLDER, CERTIFICATES};

use super::found::Found;
use crate::host::cache::Cache;
use crate::install::CA_LIST;
use crate::layer::{Entry, Layer};
use crate::recipe::Authority;

/// The folder that the lines of [`CA_LIST`] are relative to.
const LISTED: &str = "/usr/share/ca-certificates/";

/// The layer over what is `below`; none without authorities.
///
/// # Errors
/// If the bundle or the list is not a text.
pub(super) fn layer(
    cache: &Cache,
    authorities: &[Authority],
    below: &Found,
) -> Result<Option<Layer>> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let bundle = below.text(CA_BUNDLE).unwrap_or_default();
    let mut bundle = with_last_line(bundle).context("reading the bundle of certificates")?;
    let mut entries: Vec<Entry> = Vec::new();
    if let Some(list) = below.text(CA_LIST) {
        let mut list = with_last_line(list).with_context(|| format!("reading {CA_LIST}"))?;
        let folder = CA_FOLDER.trim_start_matches(LISTED);
        for authority in authorities {
            list += &format!("{folder}/{}.crt\n", authority.name);
        }
        entries.push(Entry::file(CA_LIST, 0o644, list));
    }
    for authority in authorities {
        bundle += &authority.pem;
        let file = format!("{CA_FOLDER}/{}.crt", authority.name);
        let name = format!("{}.pem", authority.name);
        entries.push(Entry::file(&file, 0o644, authority.pem.as_str()));
        entries.push(Entry::symlink(format!("{CERTIFICATES}/{name}"), file));
        // Names that differ may have one hash: each has a number.
        let is_free =
            |path: &String| !below.has(path) && !entries.iter().any(|entry| entry.path == *path);
        let link = (0u32..)
            .map(|number| format!("{CERTIFICATES}/{}.{number}", authority.hash))
            .find(is_free)
            .context("no free name for a certificate")?;
        entries.push(Entry::symlink(link, name));
    }
    entries.push(Entry::file(CA_BUNDLE, 0o644, bundle));
    Ok(Some(Layer::new(cache, entries)?))
}

/// A text whose last line is ended.
fn with_last_line(text: Vec<u8>) -> Result<String> {
    let mut text = String::from_utf8(text)?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::found::tests::found;
    use super::*;
    use crate::layer::Kind;

    fn authority(name: &str) -> Authority {
        Authority {
            name: name.to_owned(),
            pem: format!("-----BEGIN {name}\n"),
            hash: "bc162e3a".to_owned(),
        }
    }

    #[test]
    fn authorities_are_in_the_bundle_and_found_by_name_and_hash() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let below = found(vec![
            Entry::file(CA_BUNDLE, 0o644, "debian"),
            Entry::symlink(format!("{CERTIFICATES}/bc162e3a.0"), "other.pem"),
        ]);
        assert!(layer(&cache, &[], &below).unwrap().is_none());
        let own = [authority("b"), authority("a")];
        let layer = layer(&cache, &own, &below).unwrap().unwrap();
        let kind = |path: String| {
            let entry = layer.entries.iter().find(|entry| entry.path == path);
            entry.unwrap_or_else(|| panic!("{path}")).kind.clone()
        };
        let Kind::File(bundle) = kind(CA_BUNDLE.to_owned()) else {
            panic!("no bundle")
        };
        let bundle = String::from_utf8(bundle.read().unwrap()).unwrap();
        // Without update-ca-certificates there is no list.
        assert!(!layer.entries.iter().any(|entry| entry.path == CA_LIST));
        assert_eq!(bundle, "debian\n-----BEGIN b\n-----BEGIN a\n");
        for (link, target) in [
            ("b.pem", format!("{CA_FOLDER}/b.crt")),
            ("a.pem", format!("{CA_FOLDER}/a.crt")),
            ("bc162e3a.1", "b.pem".to_owned()),
            ("bc162e3a.2", "a.pem".to_owned()),
        ] {
            let path = format!("{CERTIFICATES}/{link}");
            assert_eq!(kind(path), Kind::Symlink(target), "{link}");
        }
        // The kubelet's container sees the links and what they lead to.
        for path in [CERTIFICATES, CA_FOLDER] {
            let mounts = image::kubelet::MOUNTS.iter();
            let mut mounts = mounts.filter(|mount| !mount.target.is_empty());
            assert!(
                mounts.any(|mount| path.starts_with(mount.target)),
                "{path} is not mounted"
            );
        }
    }

    /// What is not in its list, a later `update-ca-certificates` leaves out of the bundle.
    #[test]
    fn authorities_are_in_the_list_of_update_ca_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let below = found(vec![Entry::file(
            CA_LIST,
            0o644,
            "# these\nmozilla/One.crt",
        )]);
        let own = [authority("b"), authority("a")];
        let layer = layer(&cache, &own, &below).unwrap().unwrap();
        let entry = layer.entries.iter().find(|entry| entry.path == CA_LIST);
        let Some(Kind::File(list)) = entry.map(|entry| &entry.kind) else {
            panic!("no list")
        };
        let list = String::from_utf8(list.read().unwrap()).unwrap();
        let expected = "# these\nmozilla/One.crt\nslipway/b.crt\nslipway/a.crt\n";
        assert_eq!(list, expected);
        for line in list.lines().filter(|line| line.starts_with("slipway")) {
            let path = format!("{LISTED}{line}");
            assert!(
                layer.entries.iter().any(|entry| entry.path == path),
                "{path}"
            );
        }
    }
}
