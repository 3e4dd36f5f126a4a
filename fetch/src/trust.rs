//! Trusted certificates: the given bundle, or the one that the environment names.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// Where distributions keep the bundle, in the order in which Go's `crypto/x509` looks.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The TLS configuration for a bundle, or for the certificates that the environment names.
pub(crate) fn config(bundle: Option<&[u8]>) -> Result<ClientConfig> {
    let certificates = match bundle {
        Some(pem) => certificates(pem).context("reading the certificate bundle")?,
        None => from_environment()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(certificates.iter().cloned());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    if store.is_empty() {
        return Ok(builder.with_root_certificates(store).with_no_client_auth());
    }
    let verifier = Verifier {
        chains: WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider).build()?,
        roots: certificates,
    };
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        match certificate {
            Ok(certificate) => found.push(certificate),
            Err(e) => bail!("certificate {} is not PEM: {e}", found.len() + 1),
        }
    }
    Ok(found)
}

/// `SSL_CERT_FILE` and `SSL_CERT_DIR` as OpenSSL reads them; without both, the system's bundle if there is one.
fn from_environment() -> Result<Vec<CertificateDer<'static>>> {
    let mut found = Vec::new();
    let file = env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty());
    let folders = env::var_os("SSL_CERT_DIR").filter(|name| !name.is_empty());
    if let Some(file) = &file {
        found = read(Path::new(file)).context("reading the file of SSL_CERT_FILE")?;
    }
    // A bundle is preferred: a folder usually holds the same certificates once more, one file each.
    if found.is_empty()
        && let Some(folders) = &folders
    {
        for folder in env::split_paths(folders) {
            found.extend(read_folder(&folder));
        }
    }
    if file.is_none()
        && folders.is_none()
        && let Some(bundle) = BUNDLES.iter().map(PathBuf::from).find(|path| path.exists())
    {
        found = read(&bundle)?;
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    certificates(&pem).with_context(|| format!("reading {}", path.display()))
}

/// Such folders hold other files too, so a file that is not a certificate is skipped.
fn read_folder(folder: &Path) -> Vec<CertificateDer<'static>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| read(path).ok())
        .flatten()
        .collect()
}

/// webpki's verifier, which also accepts a server whose certificate *is* one of the configured roots: a self-signed
/// certificate in a home lab's config. Go accepts it, webpki calls it `CaUsedAsEndEntity`.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = self.chains.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verdict {
            // webpki checks the validity period before it comes to this error; the name is left to check.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(ref other)))
                if other.to_string().contains("CaUsedAsEndEntity")
                    && self.roots.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
