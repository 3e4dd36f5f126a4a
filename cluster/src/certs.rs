//! The certificates of a cluster, as specifications: who each is for, who signs it, its names and how long it is valid.

use std::collections::BTreeSet;

use crate::address;
use crate::config::Config;
use crate::duration::Duration;

/// An authority of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// That of the API server and its clients.
    Kubernetes,
    /// That of the API server as a proxy.
    FrontProxy,
    /// That of etcd.
    Etcd,
}

impl Authority {
    /// The common name of its certificate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd-ca",
        }
    }

    /// Its certificate's file below the folder of certificates, without `.crt`; its key beside it has `.key`.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Kubernetes => "ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd/ca",
        }
    }
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To sign certificates.
    Authority,
    /// By a client.
    Client,
    /// By a server.
    Server,
    /// By a server that is a client of its like.
    Peer,
}

/// The algorithm of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An elliptic curve with this many bits.
    Ecdsa(u32),
    /// RSA with this many bits.
    Rsa(u32),
}

impl KeyKind {
    /// The kind of a cluster's keys. Where the gate that came before `encryptionAlgorithm` is set, it decides (`EncryptionAlgorithmType` of
    /// `cmd/kubeadm/app/apis/kubeadm/types.go`); a kubeadm that does not know it has refused it.
    #[must_use]
    pub fn of_config(config: &Config) -> Self {
        match config.cluster.feature_gates.get("PublicKeysECDSA") {
            Some(true) => Self::Ecdsa(256),
            Some(false) => Self::Rsa(2048),
            None => Self::of(&config.cluster.encryption_algorithm),
        }
    }

    /// The kind of an `encryptionAlgorithm`.
    fn of(algorithm: &str) -> Self {
        match algorithm {
            "ECDSA-P256" => Self::Ecdsa(256),
            "ECDSA-P384" => Self::Ecdsa(384),
            "RSA-3072" => Self::Rsa(3072),
            "RSA-4096" => Self::Rsa(4096),
            _ => Self::Rsa(2048),
        }
    }
}

/// What a certificate is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The common name of its subject.
    pub name: String,
    /// The organisation of its subject.
    pub organisation: Option<String>,
    /// Who signs it: for an authority's own that authority.
    pub issuer: Authority,
    /// What it may be used for.
    pub usage: Usage,
    /// Its key.
    pub key: KeyKind,
    /// How long it is valid.
    pub validity: Duration,
    /// The names and addresses that it is for.
    pub names: BTreeSet<String>,
}

/// A certificate in a file below the folder of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// The file without `.crt`; the key's has `.key`.
    pub file: &'static str,
    /// The certificate.
    pub certificate: Certificate,
}

impl CertificateFile {
    const fn new(file: &'static str, certificate: Certificate) -> Self {
        Self { file, certificate }
    }
}

/// The certificates, each after its authority's.
#[must_use]
pub fn certificates(config: &Config) -> Vec<CertificateFile> {
    let phases = [
        (authority(config, Authority::Kubernetes), "certs/ca"),
        (api_server(config), "certs/apiserver"),
        (kubelet_client(config), "certs/apiserver-kubelet-client"),
        (
            authority(config, Authority::FrontProxy),
            "certs/front-proxy-ca",
        ),
        (front_proxy_client(config), "certs/front-proxy-client"),
    ];
    let etcd = config.cluster.etcd.local.iter().flat_map(|_| etcd(config));
    let all = phases.into_iter().chain(etcd);
    all.filter(|(_, phase)| !config.skips(phase))
        .map(|(file, _)| file)
        .collect()
}

/// The certificates of the authorities alone.
#[must_use]
pub fn authorities(config: &Config) -> Vec<CertificateFile> {
    let mut all = certificates(config);
    all.retain(|file| file.certificate.usage == Usage::Authority);
    all
}

/// A client's certificate of the cluster's own authority.
pub(crate) fn client(config: &Config, name: &str, organisation: Option<&str>) -> Certificate {
    let mut certificate = leaf(config, name, Authority::Kubernetes, Usage::Client);
    certificate.organisation = organisation.map(str::to_owned);
    certificate
}

fn leaf(config: &Config, name: &str, issuer: Authority, usage: Usage) -> Certificate {
    Certificate {
        name: name.to_owned(),
        organisation: None,
        issuer,
        usage,
        key: KeyKind::of_config(config),
        validity: config.cluster.certificate_validity_period,
        names: BTreeSet::new(),
    }
}

fn authority(config: &Config, authority: Authority) -> CertificateFile {
    let mut certificate = leaf(config, authority.name(), authority, Usage::Authority);
    certificate.validity = config.cluster.ca_certificate_validity_period;
    certificate.names.insert(authority.name().to_owned());
    CertificateFile::new(authority.file(), certificate)
}

fn api_server(config: &Config) -> CertificateFile {
    let name = "kube-apiserver";
    let mut certificate = leaf(config, name, Authority::Kubernetes, Usage::Server);
    let own = api_server_names(config);
    certificate.names = set(own.iter().chain(&config.cluster.api_server.cert_sans));
    CertificateFile::new("apiserver", certificate)
}

/// The names and addresses of the API server, without those that the configuration adds.
fn api_server_names(config: &Config) -> Vec<String> {
    let networking = &config.cluster.networking;
    let mut names = vec![
        config.init.node_registration.name.clone(),
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{}", networking.dns_domain),
        config.init.local_api_endpoint.advertise_address.clone(),
    ];
    let service = address::service_address(&networking.service_subnet, 1);
    names.extend(service.map(|address| address.to_string()));
    let endpoint = address::host_and_port(&config.cluster.control_plane_endpoint);
    names.extend(endpoint.map(|(host, _)| host.to_owned()));
    names
}

fn kubelet_client(config: &Config) -> CertificateFile {
    let organisation = config.kubeadm.release.kubelet_client;
    let certificate = client(config, "kube-apiserver-kubelet-client", organisation);
    CertificateFile::new("apiserver-kubelet-client", certificate)
}

fn front_proxy_client(config: &Config) -> CertificateFile {
    let name = "front-proxy-client";
    let certificate = leaf(config, name, Authority::FrontProxy, Usage::Client);
    CertificateFile::new(name, certificate)
}

fn etcd(config: &Config) -> Vec<(CertificateFile, &'static str)> {
    let local = config.cluster.etcd.local.clone().unwrap_or_default();
    let member = |file, extra: &[String]| {
        let node = &config.init.node_registration.name;
        let mut certificate = leaf(config, node, Authority::Etcd, Usage::Peer);
        let address = &config.init.local_api_endpoint.advertise_address;
        let own = [node, address, "localhost", "127.0.0.1", "::1"].map(str::to_owned);
        certificate.names = set(own.iter().chain(extra));
        CertificateFile { file, certificate }
    };
    let client = |file, name| CertificateFile {
        file,
        certificate: leaf(config, name, Authority::Etcd, Usage::Client),
    };
    vec![
        (authority(config, Authority::Etcd), "certs/etcd-ca"),
        (
            member("etcd/server", &local.server_cert_sans),
            "certs/etcd-server",
        ),
        (
            member("etcd/peer", &local.peer_cert_sans),
            "certs/etcd-peer",
        ),
        (
            client("etcd/healthcheck-client", "kube-etcd-healthcheck-client"),
            "certs/etcd-healthcheck-client",
        ),
        (
            client("apiserver-etcd-client", "kube-apiserver-etcd-client"),
            "certs/apiserver-etcd-client",
        ),
    ]
}

/// Names and addresses, each once; addresses in their common form.
fn set<'a>(names: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let common = |name: &String| {
        address::parse(name).map_or_else(|| name.clone(), |address| address.to_string())
    };
    names.map(common).collect()
}
