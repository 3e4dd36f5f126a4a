//! metrics-server's objects, with the certificate by which the API server knows it: this node makes that, and keeps it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cluster::certs::KeyKind;
use cluster::metrics_server::{self, Credentials, HOST};
use cluster::object::Object;
use cluster::objects;
use cluster::pki::pinned::Pinned;
use data_encoding::BASE64;
use linux::atomic_file;
use linux::world::World;

use crate::control_plane::built;

/// The key and the certificate. The cluster has both in a Secret: they are here so that the objects are the same at every start.
const FILE: &str = "/var/lib/slipway/metrics-server.pem";

/// Its objects; none if the cluster object does not have it.
///
/// # Errors
/// If the certificate cannot be made or kept.
pub(crate) fn objects(world: &World, object: &Object) -> Result<Vec<objects::Object>> {
    let Some(image) = &object.metrics_server else {
        return Ok(Vec::new());
    };
    let pinned = pinned(world, object)?;
    let credentials = Credentials {
        certificate: &BASE64.encode(pinned.certificate.as_bytes()),
        key: &BASE64.encode(pinned.key.as_bytes()),
    };
    Ok(metrics_server::objects(image, credentials))
}

/// The same objects without the certificate: nothing is made or read for them.
pub(crate) fn known(object: &Object) -> Vec<objects::Object> {
    let image = object.metrics_server.as_ref();
    let credentials = Credentials {
        certificate: "",
        key: "",
    };
    image.map_or_else(Vec::new, |image| {
        metrics_server::objects(image, credentials)
    })
}

/// Forgets the certificate of a cluster that does not have it any more.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn forget(world: &World, object: &Object) -> Result<()> {
    if object.metrics_server.is_some() {
        return Ok(());
    }
    let file = world.in_initrd(FILE);
    atomic_file::remove(&file).with_context(|| format!("removing {}", file.display()))
}

/// The certificate that is here, or a new one. It is valid for as long as an authority, since it is trusted as one is, and nobody starts the
/// control plane of a cluster every year.
fn pinned(world: &World, object: &Object) -> Result<Pinned> {
    let cluster = &object.config.cluster;
    let validity = cluster.ca_certificate_validity_period;
    let now = SystemTime::now();
    let since = now
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    let file = world.in_initrd(FILE);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let kept = text.and_then(|text| Pinned::read(&String::from_utf8_lossy(&text)));
    if let Some(kept) = kept
        && kept.lasts(i64::try_from(since.as_secs())?, validity)
    {
        return Ok(kept);
    }
    let kind = KeyKind::of_config(&object.config);
    let made = Pinned::make(HOST, kind, validity, now, built(world)?)?;
    atomic_file::write(&file, made.text().as_bytes(), 0o600)
        .with_context(|| format!("writing {}", file.display()))?;
    tracing::info!("the certificate of metrics-server is made");
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::object::{self, Bootstrap};
    use crate::samples::{machine, put};

    const OBJECT: &str = "[node]\naddress = \"10.0.0.7\"\n";
    const WANTED: &str = "[addons]\nmetrics-server = true\n";

    /// A machine whose image brings metrics-server.
    fn with(root: &std::path::Path, object: &str) -> (World, Bootstrap) {
        let world = machine(root, object);
        let file = world.in_run(image::paths::RUN_MANIFEST);
        let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        manifest["kubernetes"]["images"]["metrics-server"] =
            "slipway.local/metrics-server:v0.9.0".into();
        put(&file, &manifest.to_string());
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        (world, bootstrap)
    }

    fn named<'a>(objects: &'a [objects::Object], kind: &str) -> &'a Value {
        let found = objects.iter().find(|object| object.value["kind"] == kind);
        &found.unwrap().value
    }

    #[test]
    fn the_certificate_of_metrics_server_is_kept_until_its_object_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap) = with(folder.path(), &format!("{OBJECT}{WANTED}"));
        fs::create_dir_all(world.in_initrd("/var/lib/slipway")).unwrap();
        let objects = |bootstrap: &Bootstrap| super::objects(&world, &bootstrap.object).unwrap();
        let first = objects(&bootstrap);
        // The API server trusts just what the server has.
        let (secret, service) = (named(&first, "Secret"), named(&first, "APIService"));
        let certificate = &secret["data"]["tls.crt"];
        assert_eq!(&service["spec"]["caBundle"], certificate);
        assert!(service["spec"].get("insecureSkipTLSVerify").is_none());
        let text = BASE64.decode(certificate.as_str().unwrap().as_bytes());
        assert!(text.unwrap().starts_with(b"-----BEGIN CERTIFICATE-----"));
        // What is sent once is not sent again, unless what is kept is half of it.
        assert_eq!(objects(&bootstrap), first);
        let file = world.in_initrd(FILE);
        put(&file, "-----BEGIN");
        assert_ne!(objects(&bootstrap), first);
        forget(&world, &bootstrap.object).unwrap();
        assert!(file.exists());
        put(&world.in_initrd(image::paths::CLUSTER), OBJECT);
        let without = object::read(&world, Duration::ZERO).unwrap().unwrap();
        assert!(objects(&without).is_empty());
        forget(&world, &without.object).unwrap();
        forget(&world, &without.object).unwrap();
        assert!(!file.exists());
    }
}
