//! The addresses of the API servers as the cluster gave them last, on the disk: a node that boots while the API server that it
//! joined by is gone begins with them.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde::{Deserialize, Serialize};

/// The file, beside the journal of the node's join.
pub(crate) const FILE: &str = "/var/lib/slipway/api-servers.json";
/// Its folder.
const FOLDER: &str = "/var/lib/slipway";
/// Version of its form.
const VERSION: u32 = 1;

/// The cluster whose API servers they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Of {
    /// Its name.
    pub(crate) cluster: String,
    /// SHA-256 of the certificate of its authority, hexadecimal.
    pub(crate) authority: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cache {
    version: u32,
    #[serde(flatten)]
    of: Of,
    #[serde(flatten)]
    kept: Kept,
}

/// The addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    /// Those of the cluster's last list.
    pub(crate) servers: Vec<SocketAddr>,
    /// Those of the lists before it, the last ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) former: Vec<SocketAddr>,
}

/// The addresses that were kept for this cluster; none if there is no file.
///
/// # Errors
/// A file that is damaged, or of another cluster: it is not used, and the next list of the cluster replaces it.
pub(crate) fn read(world: &World, of: &Of) -> Result<Kept> {
    let file = world.in_initrd(FILE);
    let about = || format!("reading {FILE}");
    let Some(text) = atomic_file::read(&file).with_context(about)? else {
        return Ok(Kept::default());
    };
    let cache: Cache = serde_json::from_slice(&text).with_context(about)?;
    let version = cache.version;
    ensure!(
        version == VERSION,
        "{FILE} is of version {version}, expected {VERSION}"
    );
    let Of { cluster, authority } = &cache.of;
    ensure!(
        cache.of == *of,
        "{FILE} belongs to the cluster {cluster:?} with the authority {authority}, and this node to {:?} with {}",
        of.cluster,
        of.authority
    );
    Ok(cache.kept)
}

/// Keeps the addresses; they are on the disk when this returns.
///
/// # Errors
/// Names the file.
pub(crate) fn write(world: &World, of: &Of, kept: &Kept) -> Result<()> {
    let cache = Cache {
        version: VERSION,
        of: of.clone(),
        kept: kept.clone(),
    };
    folder(&world.in_initrd(FOLDER), 0o755)?;
    let text = serde_json::to_vec_pretty(&cache).context("writing the API servers as JSON")?;
    atomic_file::write(&world.in_initrd(FILE), &text, 0o600)
        .with_context(|| format!("writing {FILE}"))
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    fn of(cluster: &str, authority: &str) -> Of {
        Of {
            cluster: cluster.to_owned(),
            authority: authority.to_owned(),
        }
    }

    #[test]
    fn what_is_kept_is_read_again_and_what_is_damaged_or_of_another_cluster_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let blue = of("blue", "ab12");
        assert_eq!(read(&world, &blue).unwrap(), Kept::default());
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut servers = Kept {
            servers: all(&["10.0.0.5:6443", "[fd00::6]:6443"]),
            former: all(&["10.0.0.4:6443"]),
        };
        write(&world, &blue, &servers).unwrap();
        assert_eq!(read(&world, &blue).unwrap(), servers);
        for other in [of("red", "ab12"), of("blue", "cd34")] {
            let error = format!("{:#}", read(&world, &other).unwrap_err());
            assert!(
                error.contains("belongs to the cluster \"blue\" with the authority ab12"),
                "{error}"
            );
        }
        let file = world.in_initrd(FILE);
        let whole = std::fs::read_to_string(&file).unwrap();
        put(&file, &whole.replace("\"version\": 1", "\"version\": 2"));
        let error = format!("{:#}", read(&world, &blue).unwrap_err());
        assert!(error.contains("of version 2, expected 1"), "{error}");
        for damaged in ["", &whole[..whole.len() / 2], "null"] {
            put(&file, damaged);
            let error = format!("{:#}", read(&world, &blue).unwrap_err());
            assert!(error.starts_with("reading /var/lib/slipway/"), "{error}");
        }
        // A file of before there were former ones.
        servers.former.clear();
        write(&world, &blue, &servers).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("former"), "{text}");
        assert_eq!(read(&world, &blue).unwrap(), servers);
    }
}
