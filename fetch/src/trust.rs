//! Trusted certificates: the given bundle, or the one that the environment names.

use std::env;
use std::ffi::OsStr;
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
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let (file, folders) = (set("SSL_CERT_FILE"), set("SSL_CERT_DIR"));
    if file.is_some() || folders.is_some() {
        return named(file.as_deref(), folders.as_deref());
    }
    let bundle = BUNDLES.iter().map(Path::new).find(|path| path.exists());
    bundle.map_or_else(|| Ok(Vec::new()), read)
}

/// The certificates of a file and of all folders in a list.
fn named(file: Option<&OsStr>, folders: Option<&OsStr>) -> Result<Vec<CertificateDer<'static>>> {
    let mut found = match file {
        Some(file) => read(Path::new(file)).context("reading the file of SSL_CERT_FILE")?,
        None => Vec::new(),
    };
    if let Some(folders) = folders {
        for folder in env::split_paths(folders) {
            found.extend(read_folder(&folder));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] = include_bytes!("../tests/data/named.pem");
    const OTHER: &[u8] = include_bytes!("../tests/data/other.pem");

    #[test]
    fn the_file_and_the_folders_of_the_environment_are_trusted_together() {
        let place = tempfile::tempdir().unwrap();
        let (file, folder) = (place.path().join("corp.pem"), place.path().join("certs"));
        fs::write(&file, ONE).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("other.pem"), OTHER).unwrap();
        fs::write(folder.join("README"), "no certificate").unwrap();
        let (file, folder) = (file.as_os_str(), folder.as_os_str());
        for (file, folder, count) in [
            (Some(file), None, 1),
            (None, Some(folder), 1),
            (Some(file), Some(folder), 2),
        ] {
            assert_eq!(named(file, folder).unwrap().len(), count);
        }
        let missing = place.path().join("none");
        let error = named(Some(missing.as_os_str()), Some(folder)).unwrap_err();
        assert!(format!("{error:#}").contains("SSL_CERT_FILE"), "{error:#}");
    }
}
