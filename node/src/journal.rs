//! The journal of a control plane's bootstrap, or of a worker's join.
//!
//! It lies in `/var/lib/slipway` and not on `state`: the keys that it speaks of are in `/etc`, whose upper layer is on
//! `/var` as well, and a node that loses `/var` loses both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use anyhow::{Context, Result, ensure};
use image::paths::CLUSTER;
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde::{Deserialize, Serialize};

/// The journal's file.
pub(crate) const FILE: &str = "/var/lib/slipway/cluster.json";
/// Its folder.
const FOLDER: &str = "/var/lib/slipway";
/// The secret with the shared keys, for nodes that join within two hours of its upload. Among what is applied it has the hash of the key
/// of its upload: it is none of the cluster's objects, and goes by itself.
pub(crate) const SHARED: &str = "/api/v1/namespaces/kube-system/secrets/kubeadm-certs";
/// Version of its form.
const VERSION: u32 = 1;

/// How far the bootstrap or the join has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Journal {
    /// Version of this file's form: 1.
    version: u32,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// SHA-256 of the certificate of the cluster's authority, hexadecimal, once all its files are written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) authority: Option<String>,
    /// The ids of the bootstrap tokens that were made: none is made twice, it would be valid for longer than it was given.
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    pub(crate) tokens: BTreeSet<String>,
    /// Objects by their paths in the API, to SHA-256 of what was applied last.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(crate) applied: BTreeMap<String, String>,
    /// Whether the node joined the cluster as a worker, and did not begin it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) joined: bool,
    /// Its place among etcd's members, if the node is a further control plane that has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) member: Option<Member>,
    /// Whether the node has its labels and taints. They are set once: an administrator may change them.
    #[serde(default)]
    pub(crate) marked: bool,
}

/// The place of a further control plane among etcd's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Member {
    /// The member's id.
    pub(crate) id: u64,
    /// The members that its etcd was started with, as `NAME=URL,…`.
    pub(crate) initial_cluster: String,
    /// Whether it votes.
    pub(crate) promoted: bool,
}

impl Journal {
    /// The journal of a bootstrap that begins.
    pub(crate) fn new(cluster: &str) -> Self {
        Self {
            version: VERSION,
            cluster: cluster.to_owned(),
            ..Self::default()
        }
    }

    /// Refuses a node of another cluster, or of this one in the other role: `joined` as in the journal.
    ///
    /// # Errors
    /// What the node is, and what it is to be.
    pub(crate) fn refuse_another(&self, cluster: &str, joined: bool) -> Result<()> {
        let other = &self.cluster;
        ensure!(
            other == cluster,
            "this node belongs to the cluster {other:?} ({FILE}), and {CLUSTER} names {cluster:?}; nothing is changed"
        );
        let (found, wanted) = match joined {
            true => ("control plane", "worker"),
            false => ("worker", "control-plane"),
        };
        ensure!(
            self.joined == joined,
            "this node is a {found} of the cluster {cluster:?} ({FILE}), and its role is {wanted}; nothing is changed"
        );
        Ok(())
    }

    /// The journal of a worker that joins.
    pub(crate) fn of_worker(cluster: &str) -> Self {
        Self {
            joined: true,
            ..Self::new(cluster)
        }
    }

    /// Whether etcd has taken something of this node's bring-up, so that it has data.
    pub(crate) fn has_begun(&self) -> bool {
        self.marked || !self.applied.is_empty()
    }

    /// Forgets what is in etcd, and this node's place in it; the keys stay known.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            authority: self.authority.take(),
            ..Self::new(&self.cluster)
        };
    }

    /// Reads the journal, if a bootstrap has begun.
    ///
    /// # Errors
    /// If it does not parse, or is of another version.
    pub(crate) fn read(world: &World) -> Result<Option<Self>> {
        let file = world.in_initrd(FILE);
        let about = || format!("reading {}", file.display());
        let Some(text) = atomic_file::read(&file).with_context(about)? else {
            return Ok(None);
        };
        let journal: Self = serde_json::from_slice(&text).with_context(about)?;
        let version = journal.version;
        ensure!(
            version == VERSION,
            "{FILE} is of version {version}, expected {VERSION}"
        );
        Ok(Some(journal))
    }

    /// Writes the journal, unless it says so already; it is on the disk when this returns.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn write(&self, world: &World) -> Result<()> {
        folder(&world.in_initrd(FOLDER), 0o755)?;
        let file = world.in_initrd(FILE);
        let text = serde_json::to_vec_pretty(self).context("writing the journal as JSON")?;
        // A start that goes on writes what the one before it did.
        let about = || format!("writing {}", file.display());
        if atomic_file::read(&file).with_context(about)?.as_ref() == Some(&text) {
            // Which may have ended between the file's name and its flush.
            let folder = File::open(world.in_initrd(FOLDER)).with_context(about)?;
            return folder.sync_all().with_context(about);
        }
        atomic_file::write(&file, &text, 0o600).with_context(about)
    }
}
