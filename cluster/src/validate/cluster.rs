//! The rules of `ClusterConfiguration`, without its networks.

use super::{absolute, arguments, names, repository};
use crate::address;
use crate::release::Release;
use crate::report::Report;
use crate::types::{Cluster, Etcd, ExternalEtcd, LocalEtcd};
use crate::wording::either;

/// The rules of `dns`, which come before those of `networking`.
pub(super) fn dns(cluster: &Cluster, report: &mut Report) {
    if !cluster.dns.image_repository.is_empty() {
        repository(&cluster.dns.image_repository, "dns.imageRepository", report);
    }
}

pub(super) fn check(cluster: &Cluster, release: &Release, report: &mut Report) {
    names(&cluster.api_server.cert_sans, "apiServer.certSANs", report);
    arguments(
        &cluster.api_server.extra_args,
        "apiServer.extraArgs",
        report,
    );
    arguments(
        &cluster.controller_manager.extra_args,
        "controllerManager.extraArgs",
        report,
    );
    arguments(&cluster.scheduler.extra_args, "scheduler.extraArgs", report);
    absolute(&cluster.certificates_dir, "certificatesDir", report);
    gates(cluster, release, report);
    repository(&cluster.image_repository, "imageRepository", report);
    etcd(&cluster.etcd, release, report);
    let algorithm = &cluster.encryption_algorithm;
    if !release.algorithms.contains(&algorithm.as_str()) {
        let expected = either(release.algorithms);
        report.refuse(
            "encryptionAlgorithm",
            format!("{algorithm:?} is not known; expected {expected}"),
        );
    }
}

fn gates(cluster: &Cluster, release: &Release, report: &mut Report) {
    let known: Vec<&str> = release.gates.iter().map(|(name, _)| *name).collect();
    for name in cluster
        .feature_gates
        .keys()
        .filter(|name| !known.contains(&name.as_str()))
    {
        let message = format!(
            "{name} is not a feature gate of kubeadm 1.{}; expected {}",
            release.minor,
            either(&known)
        );
        report.refuse("featureGates", message);
    }
}

fn etcd(etcd: &Etcd, release: &Release, report: &mut Report) {
    match (&etcd.local, &etcd.external) {
        (Some(_), Some(_)) => {
            report.refuse("etcd", "both local and external; expected one of them")
        }
        (Some(local), None) => local_etcd(local, report),
        (None, Some(external)) => external_etcd(external, release, report),
        (None, None) => report.refuse("etcd", "expected local or external"),
    }
}

fn local_etcd(local: &LocalEtcd, report: &mut Report) {
    absolute(&local.data_dir, "etcd.local.dataDir", report);
    names(&local.server_cert_sans, "etcd.local.serverCertSANs", report);
    names(&local.peer_cert_sans, "etcd.local.peerCertSANs", report);
    if !local.image_repository.is_empty() {
        repository(
            &local.image_repository,
            "etcd.local.imageRepository",
            report,
        );
    }
    arguments(&local.extra_args, "etcd.local.extraArgs", report);
}

fn external_etcd(external: &ExternalEtcd, release: &Release, report: &mut Report) {
    let ExternalEtcd {
        ca_file,
        cert_file,
        key_file,
        ..
    } = external;
    if cert_file.is_empty() != key_file.is_empty() {
        report.refuse(
            "etcd.external",
            "expected both certFile and keyFile, or none",
        );
    }
    if !cert_file.is_empty() && !key_file.is_empty() && ca_file.is_empty() {
        report.refuse("etcd.external", "certFile and keyFile need caFile");
    }
    let secret = ![ca_file, cert_file, key_file]
        .iter()
        .all(|file| file.is_empty());
    let urls = external.endpoints.as_deref();
    // The kubeadm that knows endpoints for HTTP is the first one that asks for any.
    if release.http_endpoints && urls.is_none_or(<[String]>::is_empty) {
        let message = "expected at least one endpoint";
        report.refuse("etcd.external.endpoints", message);
    }
    endpoints(urls, "etcd.external.endpoints", secret, report);
    // Without their own they are those above, which are then named twice. They may be without certificates.
    let own = external.http_endpoints.as_deref();
    endpoints(own, "etcd.external.httpEndpoints", false, report);
    for (file, name) in [
        (ca_file, "caFile"),
        (cert_file, "certFile"),
        (key_file, "keyFile"),
    ] {
        if !file.is_empty() {
            absolute(file, &format!("etcd.external.{name}"), report);
        }
    }
}

/// URLs; with certificates they are of HTTPS.
fn endpoints(urls: Option<&[String]>, field: &str, secret: bool, report: &mut Report) {
    for (number, url) in urls.into_iter().flatten().enumerate() {
        let mut refuse = |wrong: &str| {
            let message = format!("{url:?} {wrong}; expected https://HOST:PORT");
            report.refuse_item(field, number, message);
        };
        match address::url_parts(url) {
            Err(wrong) => refuse(wrong),
            Ok((scheme, _)) => {
                if secret && !scheme.eq_ignore_ascii_case("https") {
                    refuse("is not of https, and there are certificates");
                }
                if scheme.is_empty() {
                    refuse("has no scheme");
                }
            }
        }
    }
}
