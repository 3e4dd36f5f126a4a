//! `[ca]`: certificate authorities that the image trusts beside Debian's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use crate::format::certificate::{self, Certificate};
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::Node;

/// Certificate authorities that the image trusts beside those of its packages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawCa {
    /// Files of certificates in PEM, without keys; paths relative to this recipe. The system, the kubelet, containerd and the init
    /// trust them.
    pub certificates: Vec<String>,
}

/// A certificate authority that the image trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Authority {
    /// Its name in the folders of certificates: that of the recipe's file without its suffix, numbered if the file has several.
    pub name: String,
    /// The certificate in PEM.
    pub pem: String,
    /// The hash of its subject, by which OpenSSL looks for it.
    pub hash: String,
}

pub(super) fn check(check: &mut Check<'_>, raw: &RawCa) -> Vec<Authority> {
    check.unique("ca.certificates");
    let items = check.find("ca.certificates").map_or(&[][..], Node::items);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let mut all: Vec<Authority> = Vec::new();
    let mut stems: BTreeMap<String, (Place, PathBuf)> = BTreeMap::new();
    for (file, item) in raw.certificates.iter().zip(items) {
        let path = check.host_path(&item.place, file);
        let stem = stem(&path);
        if let Some((before, other)) = stems.get(&stem) {
            // Each of several recipes may have its own copy of one file beside it.
            if before.file != item.place.file && is_copy(&path, other) {
                continue;
            }
            let found = format!("two files of certificates are called {stem}");
            let mistake = Mistake::at(&item.place, found, "expected files of different names");
            check.add(mistake.also(before, "the first one"));
            continue;
        }
        stems.insert(stem.clone(), (item.place.clone(), path.clone()));
        let found = fs::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| certificate::read(&text));
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                check.add(Mistake::at(
                    &item.place,
                    format!("{} is not usable: {error:#}", path.display()),
                    "expected a file of certificates in PEM, relative to this recipe",
                ));
                continue;
            }
        };
        let several = found.len() > 1;
        for (number, certificate) in found.into_iter().enumerate() {
            if let Some((found, expected)) = wrong(&certificate, now) {
                let found = format!("{found} ({})", path.display());
                check.add(Mistake::at(&item.place, found, expected));
            } else if all.iter().any(|before| before.pem == certificate.pem) {
                let found = format!("the certificate of {} is given twice", certificate.subject);
                check.add(Mistake::at(&item.place, found, "expected each one once"));
            } else {
                all.push(Authority {
                    name: match several {
                        true => format!("{stem}-{}", number + 1),
                        false => stem.clone(),
                    },
                    pem: certificate.pem,
                    hash: certificate.hash,
                });
            }
        }
    }
    all
}

/// Why nothing that a certificate signed would be trusted.
fn wrong(certificate: &Certificate, now: i64) -> Option<(String, &'static str)> {
    let Certificate { subject, end, .. } = certificate;
    if !certificate.is_authority {
        let found = format!("the certificate of {subject} is not of an authority");
        return Some((found, "expected that of the authority that signed it"));
    }
    if certificate.ends < now {
        let found = format!("the certificate of {subject} expired on {end}");
        return Some((found, "expected one that is valid"));
    }
    None
}

fn is_copy(one: &Path, other: &Path) -> bool {
    let texts = (fs::read(one), fs::read(other));
    matches!(texts, (Ok(one), Ok(other)) if one == other)
}

/// The file's name without its suffix, of characters that every tool takes.
fn stem(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy());
    let plain = |c: char| match c.is_ascii_alphanumeric() || "-_.".contains(c) {
        true => c,
        false => '_',
    };
    stem.unwrap_or_default().chars().map(plain).collect()
}
