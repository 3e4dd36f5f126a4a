//! The administrator's kubeconfig, made on the workstation: no node is asked for it.

use std::time::SystemTime;

use anyhow::{Context, Result};
use cluster::certs::{self, KeyKind};
use cluster::kubeconfigs::{self, Kubeconfig};
use cluster::pki::{self, Progress, Renewal, Wanted};

use super::object::ClusterFile;
use super::secrets::Secrets;

/// The kubeconfig that kubeadm calls by this name.
const ADMIN: &str = "admin.conf";

/// A kubeconfig with a new certificate of the cluster's administrators. `server` takes the place of the object's endpoint.
///
/// # Errors
/// If neither names the API server, or the authority cannot sign.
pub fn kubeconfig(
    file: &ClusterFile,
    secrets: &Secrets,
    server: Option<&str>,
    now: SystemTime,
) -> Result<String> {
    let config = file.config();
    let folder = &config.cluster.certificates_dir;
    let authorities = certs::authorities(config);
    let wanted = Wanted {
        folder,
        accounts: KeyKind::of_config(config),
        certificates: &authorities,
        kubeconfigs: &[admin(file, server)?],
        renewal: Renewal::Ended,
        since: None,
    };
    let there = |path: &str| {
        let below = path.strip_prefix(folder.as_str())?.trim_start_matches('/');
        secrets.pki.get(below).cloned()
    };
    let made = pki::complete(wanted, now, Progress::Fresh, &there)?;
    let found = made.into_iter().find(|made| made.path.ends_with(ADMIN));
    found
        .map(|found| found.text)
        .context("no kubeconfig was made")
}

fn admin(file: &ClusterFile, server: Option<&str>) -> Result<Kubeconfig> {
    let mut all = kubeconfigs::kubeconfigs(file.config()).into_iter();
    let mut admin = all
        .find(|kubeconfig| kubeconfig.file == ADMIN)
        .context("the object has no administrator")?;
    match server {
        Some(server) => server.clone_into(&mut admin.server),
        None => drop(file.endpoint()?),
    }
    Ok(admin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_signed_by_the_cluster_s_authority() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blue.toml");
        let file = ClusterFile::create(&path, &ClusterFile::template("blue").unwrap()).unwrap();
        let now = SystemTime::now();
        let secrets = Secrets::make(file.config(), now).unwrap();
        let error = kubeconfig(&file, &secrets, None, now)
            .unwrap_err()
            .to_string();
        assert!(error.contains("names no endpoint"), "{error}");
        let text = kubeconfig(&file, &secrets, Some("https://127.0.0.1:1"), now).unwrap();
        let given = kubeconfigs::read(&text).unwrap();
        assert_eq!(given.server, "https://127.0.0.1:1");
        assert_eq!(
            given.authority.as_deref(),
            secrets.pki.get("ca.crt").map(String::as_str)
        );
        assert!(given.certificate.is_some() && given.key.is_some());
        assert!(text.contains("kubernetes-admin@blue"), "{text}");
    }
}
