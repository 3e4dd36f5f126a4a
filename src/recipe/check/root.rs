//! `[root]`: the compression of the root file system, which of its files give rights, and what of the scripts' making it keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use super::size::{TextOrNumber, size};
use crate::recipe::mistakes::{Mistake, Place};

/// How the root file system is packed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawRoot {
    /// none, lz4, lz4hc or zstd, with ",LEVEL" if wanted. Default: lz4 (fast); "zstd,3" is a quarter smaller.
    pub compression: Option<String>,
    /// What is compressed together at most, as "64 KiB" or in bytes: a power of two. Default: 64 KiB.
    pub cluster: Option<TextOrNumber>,
    /// Packages' files that keep their set-uid and set-gid bits, as "/usr/bin/sudo"; all others lose them.
    pub set_uid: Vec<String>,
    /// What packages' scripts generate and is taken as it is, by paths of files and folders: each build has another, each node of an
    /// image the same. Anything else that differs from build to build is refused, or made on a node's first boot.
    pub same_on_every_node: Vec<String>,
}

/// The compression of the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RootOptions {
    /// `lz4`, `lz4hc` or `zstd`, with an optional `,LEVEL`; or `none`.
    pub compression: String,
    /// Maximum size of a compressed cluster, bytes: a power of two from 4096 to 1 MiB.
    pub cluster: u32,
    /// Paths of the packages' files that keep their set-uid and set-gid bits; all others lose them.
    pub set_uid: Vec<String>,
    /// Files and folders that packages' scripts generate and that are taken as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same_on_every_node: Vec<String>,
}

impl Default for RootOptions {
    fn default() -> Self {
        Self {
            compression: "lz4".to_owned(),
            cluster: 65_536,
            set_uid: Vec::new(),
            same_on_every_node: Vec::new(),
        }
    }
}

pub(super) fn check(check: &mut Check<'_>, raw: &RawRoot) -> RootOptions {
    let RawRoot {
        compression: given,
        cluster,
        set_uid,
        same_on_every_node,
    } = raw;
    check.list("root.set-uid", Rule::FilePath);
    check.list("root.same-on-every-node", Rule::FilePath);
    let default = RootOptions::default();
    if let Some(text) = given.as_deref()
        && let Err(mistake) = compression(text, &check.place("root.compression"))
    {
        check.add(*mistake);
    }
    let cluster = match size(check, "root.cluster", cluster.as_ref()) {
        None => default.cluster,
        Some(bytes) => match u32::try_from(bytes) {
            Ok(bytes) if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => bytes,
            _ => {
                check.add(Mistake::at(
                    &check.place("root.cluster"),
                    format!("a cluster cannot have {bytes} bytes"),
                    "expected a power of two from 4 KiB to 1 MiB",
                ));
                default.cluster
            }
        },
    };
    RootOptions {
        compression: given.clone().unwrap_or(default.compression),
        cluster,
        set_uid: set_uid.clone(),
        same_on_every_node: same_on_every_node.clone(),
    }
}

fn compression(text: &str, place: &Place) -> Result<(), Box<Mistake>> {
    const NAMES: [&str; 4] = ["none", "lz4", "lz4hc", "zstd"];
    let (name, level) = match text.split_once(',') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    if !NAMES.contains(&name) {
        return Err(Box::new(
            Mistake::at(
                place,
                format!("{name:?} is not a compression of the root"),
                "expected none, lz4, lz4hc or zstd, with \",LEVEL\" if wanted",
            )
            .nearest(name, NAMES),
        ));
    }
    let highest = match name {
        "lz4hc" => 12,
        "zstd" => 22,
        _ => 0,
    };
    match level.map(str::parse::<u32>) {
        None => Ok(()),
        Some(Ok(level)) if highest > 0 && level <= highest => Ok(()),
        Some(_) if highest == 0 => Err(Box::new(Mistake::at(
            place,
            format!("{name} has no levels"),
            format!("expected \"{name}\""),
        ))),
        Some(_) => Err(Box::new(Mistake::at(
            place,
            format!("{text:?} has no level of {name}"),
            format!("expected a level from 0 to {highest}"),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_checked() {
        let place = Place::top(0);
        for good in ["none", "lz4", "lz4hc", "lz4hc,9", "zstd,3"] {
            assert!(compression(good, &place).is_ok(), "{good}");
        }
        for bad in ["gzip", "lz4,3", "zstd,30", "zstd,", "none,1"] {
            assert!(compression(bad, &place).is_err(), "{bad}");
        }
    }
}
