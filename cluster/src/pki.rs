//! Makes the keys and certificates of a cluster from their specifications.
//!
//! Keys are of elliptic curves: the library makes no RSA keys, and says so.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::certs::{Authority, Certificate, CertificateFile, KeyKind, Usage};
use crate::kubeconfigs::{Credentials, Kubeconfig};

/// Certificates are valid from a moment before: clocks of other machines may be behind.
const BEFORE: Duration = Duration::minutes(5);

/// A file of keys or certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// Its absolute path.
    pub path: String,
    /// PEM, or a kubeconfig.
    pub text: String,
    /// Whether only root may read it.
    pub secret: bool,
}

impl fmt::Debug for KeyFile {
    /// Without the text: it may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("KeyFile");
        shown
            .field("path", &self.path)
            .field("secret", &self.secret);
        shown.finish_non_exhaustive()
    }
}

/// Why keys or certificates were not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The configuration asks for RSA keys of this many bits.
    Rsa(u32),
    /// The authority that a certificate needs is not among those to make, as its phase is skipped.
    NoAuthority(Authority),
    /// A certificate with this common name, and the library's reason.
    Refused(String, String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(bits) => write!(
                f,
                "RSA keys ({bits} bits) cannot be made on a node; set encryptionAlgorithm to ECDSA-P256"
            ),
            Self::NoAuthority(authority) => {
                write!(
                    f,
                    "the authority {} is not made: its phase is skipped",
                    authority.name()
                )
            }
            Self::Refused(name, reason) => write!(f, "making the certificate of {name}: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// Makes all keys, certificates and kubeconfigs; `folder` is that of the certificates, `accounts` the kind of the key that
/// signs service accounts, `now` the time.
///
/// # Errors
/// RSA keys, an authority that is skipped, or a name that no certificate can have.
pub fn make(
    folder: &str,
    accounts: KeyKind,
    certificates: &[CertificateFile],
    kubeconfigs: &[Kubeconfig],
    now: SystemTime,
) -> Result<Vec<KeyFile>, Error> {
    let mut maker = Maker {
        now: now.into(),
        authorities: Vec::new(),
    };
    let mut files = Vec::new();
    for CertificateFile { file, certificate } in certificates {
        let made = maker.certificate(certificate)?;
        files.push(public(format!("{folder}/{file}.crt"), made.certificate));
        files.push(secret(format!("{folder}/{file}.key"), made.key));
    }
    let accounts = key(accounts)?;
    files.push(secret(format!("{folder}/sa.key"), accounts.serialize_pem()));
    files.push(public(
        format!("{folder}/sa.pub"),
        accounts.public_key_pem(),
    ));
    for kubeconfig in kubeconfigs {
        let text = maker.kubeconfig(kubeconfig)?;
        files.push(secret(format!("/etc/kubernetes/{}", kubeconfig.file), text));
    }
    Ok(files)
}

fn public(path: String, text: String) -> KeyFile {
    KeyFile {
        path,
        text,
        secret: false,
    }
}

fn secret(path: String, text: String) -> KeyFile {
    KeyFile {
        path,
        text,
        secret: true,
    }
}

/// A certificate and its key, as PEM.
struct Made {
    certificate: String,
    key: String,
}

/// An authority that was made.
struct Signer {
    authority: Authority,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

struct Maker {
    now: OffsetDateTime,
    authorities: Vec<Signer>,
}

impl Maker {
    fn certificate(&mut self, certificate: &Certificate) -> Result<Made, Error> {
        let refused =
            |error: rcgen::Error| Error::Refused(certificate.name.clone(), error.to_string());
        let key = key(certificate.key)?;
        let params = self.params(certificate).map_err(refused)?;
        if certificate.usage == Usage::Authority {
            let made = Made {
                certificate: params.self_signed(&key).map_err(refused)?.pem(),
                key: key.serialize_pem(),
            };
            self.authorities.push(Signer {
                authority: certificate.issuer,
                issuer: Issuer::new(params, key),
                certificate: made.certificate.clone(),
            });
            return Ok(made);
        }
        let signer = self.signer(certificate.issuer)?;
        let signed = params.signed_by(&key, &signer.issuer).map_err(refused)?;
        Ok(Made {
            certificate: signed.pem(),
            key: key.serialize_pem(),
        })
    }

    fn signer(&self, authority: Authority) -> Result<&Signer, Error> {
        let found = self
            .authorities
            .iter()
            .find(|signer| signer.authority == authority);
        found.ok_or(Error::NoAuthority(authority))
    }

    fn params(&self, certificate: &Certificate) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(organisation) = &certificate.organisation {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organisation.as_str());
        }
        params
            .distinguished_name
            .push(DnType::CommonName, certificate.name.as_str());
        params.not_before = self.now - BEFORE;
        params.not_after = self.now + Duration::nanoseconds(certificate.validity.0);
        params.subject_alt_names = certificate
            .names
            .iter()
            .map(|name| alternative(name))
            .collect::<Result<_, _>>()?;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = certificate.usage != Usage::Authority;
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = match certificate.usage {
            Usage::Authority => {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.key_usages.push(KeyUsagePurpose::KeyCertSign);
                Vec::new()
            }
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Peer => vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        };
        Ok(params)
    }

    fn kubeconfig(&mut self, kubeconfig: &Kubeconfig) -> Result<String, Error> {
        let made = self.certificate(&kubeconfig.certificate)?;
        let signer = self.signer(kubeconfig.certificate.issuer)?;
        Ok(kubeconfig.text(Credentials {
            authority: &signer.certificate,
            certificate: &made.certificate,
            key: &made.key,
        }))
    }
}

fn key(kind: KeyKind) -> Result<KeyPair, Error> {
    let algorithm = match kind {
        KeyKind::Rsa(bits) => return Err(Error::Rsa(bits)),
        KeyKind::Ecdsa(384) => &PKCS_ECDSA_P384_SHA384,
        KeyKind::Ecdsa(_) => &PKCS_ECDSA_P256_SHA256,
    };
    KeyPair::generate_for(algorithm)
        .map_err(|error| Error::Refused("a new key".to_owned(), error.to_string()))
}

fn alternative(name: &str) -> Result<SanType, rcgen::Error> {
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(name.try_into()?)),
    }
}
