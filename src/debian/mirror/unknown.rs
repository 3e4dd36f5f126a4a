//! The error of a host that names no mirror: what a mirror is, where Debian lists them, and the one variable to set.

use std::path::PathBuf;

use super::MIRROR_VARIABLE;

/// The words of the error; `apt` has the files that were read.
pub(super) fn error(apt: &[(PathBuf, String)]) -> String {
    let read: Vec<String> = apt
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    let looked = match read.as_slice() {
        [] => "this host has no apt configuration".to_owned(),
        _ => format!("no active Debian entry in {}", read.join(", ")),
    };
    format!(
        "no Debian mirror is known: {looked}. A mirror is a server with Debian's packages; https://www.debian.org/mirror/list \
         has those of each country. Set its base URL, the folder that holds `dists` and `pool`: `export \
         {MIRROR_VARIABLE}=http://HOST/debian`, or `mirror` in the recipe's [debian]"
    )
}
