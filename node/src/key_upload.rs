//! Puts the keys that all control planes share into the cluster, sealed, for two hours: what `kubeadm init --upload-certs` does.

use std::fs;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use cluster::discovery::Token;
use cluster::duration::{Duration, time_after};
use cluster::object::Object;
use cluster::objects::upload::{LIFE, owner, readers, secret};
use cluster::shared_keys::{CertificateKey, FILES, seal};
use linux::world::World;
use reqwest::StatusCode;
use serde_json::Value;

use crate::control_plane::sha256;
use crate::journal::{Journal, SHARED};
use crate::object::Bootstrap;
use crate::unset_clock::{self, Reading};
use crate::waiting::{Limits, wait};
use api::{Api, is_temporary, path, status};

/// The phase of kubeadm that an object may skip.
const PHASE: &str = "upload-certs";
/// Where secrets of the namespace are made.
pub(crate) const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
/// How often the secret is written again that somebody else writes at the same time.
const ATTEMPTS: usize = 3;

/// The texts of the shared files, in the order of [`FILES`].
///
/// # Errors
/// Names a file that is missing: a control plane without it could not join.
pub(crate) fn shared(world: &World, object: &Object) -> Result<[String; FILES.len()]> {
    let folder = &object.config.cluster.certificates_dir;
    let mut texts = [const { String::new() }; FILES.len()];
    for (file, text) in FILES.iter().zip(&mut texts) {
        let path = world.in_initrd(&format!("{folder}/{file}"));
        *text = fs::read_to_string(&path).with_context(|| {
            format!(
                "reading {}, which every control plane has; nothing is uploaded",
                path.display()
            )
        })?;
    }
    Ok(texts)
}

/// Uploads the files, in place of an earlier upload. Returns when it ends, RFC 3339.
///
/// # Errors
/// What the API server says. The token of an upload that fails is taken back, so that nothing outlives it.
pub(crate) fn upload(
    api: &Api,
    texts: &[String; FILES.len()],
    key: &CertificateKey,
    now: SystemTime,
) -> Result<String> {
    upload_with(api, texts, key, now, |_| Ok(()))
}

/// The same by this reading of the clock: if that was not synchronised, the end of the upload moves once it is set.
///
/// # Errors
/// As [`upload`], and if the end cannot be kept.
pub(crate) fn upload_by(
    world: &World,
    api: &Api,
    texts: &[String; FILES.len()],
    key: &CertificateKey,
    by: &Reading,
) -> Result<String> {
    let hash = sha256(key.text().as_bytes());
    let _alone = unset_clock::alone(world)?;
    upload_with(api, texts, key, by.wall, |owner| {
        unset_clock::note(world, by, SHARED, owner, Some(&hash))
    })
}

/// `note` is called with the token that ends the upload, before that is sent.
fn upload_with(
    api: &Api,
    texts: &[String; FILES.len()],
    key: &CertificateKey,
    now: SystemTime,
    note: impl FnOnce(&Value) -> Result<()>,
) -> Result<String> {
    let expires = time_after(now, LIFE);
    let random = "the system has no random numbers";
    let sealed = seal(texts, key).context(random)?;
    let token = Token::random().context(random)?;
    let owner = owner(&token, &expires);
    note(&owner)?;
    // Made, not applied: the server gives the uid by which the upload ends with the token.
    let owner = api.post(SECRETS, &owner)?;
    let uid = owner["metadata"]["uid"].as_str().unwrap_or_default();
    ensure!(
        !uid.is_empty(),
        "the API server gave {} no uid",
        path(&owner)
    );
    let rest = || {
        replace(api, &secret(sealed.clone(), &owner))?;
        readers()
            .iter()
            .try_for_each(|object| api.apply(&path(object), object))
    };
    match rest() {
        Ok(()) => Ok(expires),
        Err(error) => {
            if let Err(second) = api.delete(&path(&owner), uid) {
                tracing::debug!("the token of the failed upload stays until {expires}: {second:#}");
            }
            Err(error)
        }
    }
}

/// Writes the secret as a whole. It is not applied: owners are merged by that, and two of them may not control one object.
fn replace(api: &Api, secret: &Value) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let written = match api.get(SHARED)? {
            None => api.post(SECRETS, secret),
            Some(there) => {
                let mut secret = secret.clone();
                secret["metadata"]["resourceVersion"] =
                    there["metadata"]["resourceVersion"].clone();
                api.put(SHARED, &secret)
            }
        };
        match written {
            // Another upload at the same time.
            Err(error) if status(&error) == Some(StatusCode::CONFLICT) => {}
            // An older one that was removed in between.
            Err(error) if status(&error) == Some(StatusCode::NOT_FOUND) => {}
            result => return result.map(drop),
        }
    }
    bail!("the secret of {SHARED} was written by somebody else {ATTEMPTS} times meanwhile")
}

/// Uploads the files of a first control plane whose object has `certificate-key`: once for each key.
///
/// # Errors
/// What the API server refuses for good, or for longer than the limits.
pub(crate) fn once(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
    limits: Limits,
) -> Result<()> {
    let config = &bootstrap.object.config;
    let Some(key) = CertificateKey::parse(&config.init.certificate_key) else {
        return Ok(());
    };
    let hash = sha256(key.text().as_bytes());
    if config.skips(PHASE) || journal.applied.get(SHARED) == Some(&hash) {
        return Ok(());
    }
    let texts = shared(world, &bootstrap.object)?;
    let expires = wait(
        world,
        limits,
        "the upload of the shared keys",
        || match upload_by(world, api, &texts, &key, &Reading::now(world)) {
            Err(error) if !is_temporary(&error) => Ok(Err(error)),
            result => result.map(Ok),
        },
    )??;
    tracing::info!("the shared keys are in the cluster until {expires}");
    journal.applied.insert(SHARED.to_owned(), hash);
    journal.write(world)
}

/// Now, as the API server writes it.
pub(crate) fn shown(now: SystemTime) -> String {
    time_after(now, Duration(0))
}

#[cfg(test)]
mod tests;
