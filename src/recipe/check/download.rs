//! Files of a server that a recipe names by URL and SHA-256.

use image::kubelet::CREDENTIAL_PROVIDERS;
use image::paths::{ADDONS, CLUSTER, CONFIG_ADDONS};
use serde::Serialize;

use super::Check;
use super::names::Rule;
use crate::node_files::CONTAINERD_DROP_INS;
use crate::recipe::mistakes::{Mistake, Place};

/// Files and folders whose files a check of the recipe reads, so that they cannot be files that only a build has.
const READ: [&str; 5] = [
    CLUSTER,
    ADDONS,
    CONFIG_ADDONS,
    CREDENTIAL_PROVIDERS,
    CONTAINERD_DROP_INS,
];
/// Parts of the paths of other folders of such files.
const READ_FOLDERS: [&str; 2] = ["/modprobe.d/", "/modules-load.d/"];

/// A file of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Download {
    /// Its URL, without user and password. It is in no key: the hash says which file it is.
    #[serde(skip)]
    pub url: String,
    /// SHA-256 of the file, hexadecimal and in lower case.
    pub sha256: String,
}

impl Check<'_> {
    /// The SHA-256 that a recipe gives, in lower case.
    pub(super) fn sha256(&mut self, given: &str, place: &Place) -> Option<String> {
        let digits = given.to_ascii_lowercase();
        if fetch::Digest::sha256(&digits).is_some() {
            return Some(digits);
        }
        self.add(Mistake::at(
            place,
            format!("{given:?} is not a SHA-256"),
            "expected 64 hexadecimal digits, as `sha256sum` prints them",
        ));
        None
    }

    /// A file of a server: `at` is the place of the URL.
    pub(super) fn download(
        &mut self,
        (url, at): (&str, &Place),
        sha256: Option<(&str, &Place)>,
    ) -> Option<Download> {
        if let Err(why) = Rule::Url.check(url) {
            self.add(why.mistake(at));
        }
        let Some((digits, place)) = sha256 else {
            self.add(Mistake::at(
                at,
                "a file of a server without its `sha256`",
                "expected sha256 = \"…\" beside the URL: nothing else says that it is the file that is meant",
            ));
            return None;
        };
        Some(Download {
            url: url.to_owned(),
            sha256: self.sha256(digits, place)?,
        })
    }

    /// Adds the mistake of a file whose content has to be known when the recipe is checked.
    pub(super) fn not_read(&mut self, path: &str, place: &Place) {
        let is_one = |read: &str| {
            let rest = path.strip_prefix(read);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let reads = READ.iter().any(|read| is_one(read))
            || READ_FOLDERS.iter().any(|folder| path.contains(folder));
        if reads {
            self.add(Mistake::at(
                place,
                format!(
                    "{path} cannot be a file of a server: its content is checked with the recipe"
                ),
                "expected content or source",
            ));
        }
    }
}
