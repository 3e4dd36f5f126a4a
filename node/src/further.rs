//! The files of a further control plane: the keys that all control planes share, its own certificates, and a place among
//! etcd's members.
//!
//! The journal is written before the first file: keys that nobody remembers would be a config's to the next start, which could begin another
//! cluster with them. Keys that are fetched are fetched again until all files are written. The static pod of etcd is written once etcd has this
//! node as a learner, the others by the bring-up, once its member votes: an API server beside a learner answers nothing. A cut at any point
//! goes on.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster::discovery::trusted;
use cluster::object::{Join, Object};
use cluster::pki::Progress;
use cluster::shared_keys::{self, CertificateKey};
use linux::atomic_file;
use linux::world::World;

use crate::control_plane::{self, write_changed};
use crate::discover::{Name, discover};
use crate::etcd_place;
use crate::journal::{Journal, SHARED};
use crate::object::Bootstrap;
use crate::waiting::{self, Limits, wait};
use api::{Api, Trust};

/// Writes the files of a further control plane that are not there or not up to date; `request` limits each request for the
/// shared keys.
///
/// # Errors
/// Another cluster's keys or data: nothing is changed then. A cluster that is not proven, that does not answer, or whose
/// etcd does not take this node.
pub(crate) fn prepare(
    world: &World,
    bootstrap: &Bootstrap,
    fetched: Option<&(Join, CertificateKey)>,
    limits: Limits,
    request: Duration,
) -> Result<()> {
    let object = &bootstrap.object;
    let journal = Journal::read(world)?;
    control_plane::refuse_another(world, object, journal.as_ref())?;
    control_plane::refuse_another_version(world, object)?;
    let mut journal = match journal {
        // The authority is noted behind the last key: without it a cut may have left some of those that were fetched, and not the others.
        Some(journal) if journal.authority.is_some() || fetched.is_none() => journal,
        _ => begin(world, object, fetched, limits, request)?,
    };
    control_plane::files(world, bootstrap, Progress::Done, &mut journal)?;
    etcd_place::find(world, object, &mut journal, limits)?;
    control_plane::manifests(world, bootstrap, &journal)?;
    waiting::done(world)
}

/// Begins the journal, or begins anew by it, once the shared keys are known to be the cluster's. Fetched ones are written behind it.
fn begin(
    world: &World,
    object: &Object,
    fetched: Option<&(Join, CertificateKey)>,
    limits: Limits,
    request: Duration,
) -> Result<Journal> {
    let journal = Journal::new(object.name());
    let folder = &object.config.cluster.certificates_dir;
    let Some((join, key)) = fetched else {
        for file in shared_keys::FILES {
            let path = format!("{folder}/{file}");
            ensure!(
                world.in_initrd(&path).exists(),
                "{path} does not exist: a further control plane needs the cluster's shared keys, from its config or by \
                 join.certificate-key; nothing is changed"
            );
        }
        journal.write(world)?;
        return Ok(journal);
    };
    refuse_another_authority(world, object, join)?;
    let endpoint = object.config.control_plane_url();
    let what = format!("the keys of the cluster at {endpoint}");
    let files = wait(world, limits, &what, || {
        let info = discover(object, join, request, Name::Unproven)?.info;
        let authority = Trust::Authority(&info.authority);
        let api = Api::without_certificate(&info.server, authority, request)?;
        let secret = api.with_token(&join.token).get(SHARED)?;
        let secret = secret.context(
            "the cluster has no secret kubeadm-certs: it is removed two hours after its upload \
             (slipway-node certs upload on a control plane)",
        )?;
        Ok(shared_keys::open(&secret, key)?)
    })?;
    journal.write(world)?;
    for (file, text) in files {
        let mode = if file.ends_with(".key") { 0o600 } else { 0o644 };
        write_changed(world, &format!("{folder}/{file}"), &text, mode)?;
    }
    Ok(journal)
}

/// Refuses to fetch keys over those of another cluster.
fn refuse_another_authority(world: &World, object: &Object, join: &Join) -> Result<()> {
    let path = control_plane::authority(object);
    let there = atomic_file::read(&world.in_initrd(&path));
    let there = there.with_context(|| format!("reading {path}"))?;
    let there = there.map(|text| String::from_utf8_lossy(&text).into_owned());
    if let Some(Err(refusal)) = there.map(|text| trusted(&text, &join.pins)) {
        bail!("{path} is another cluster's: {refusal}; nothing is changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
