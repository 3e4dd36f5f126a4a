//! Makes the keys and certificates of a cluster from their specifications.

mod keep;
pub mod life;
pub mod pinned;
mod private_key;

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::certs::{Authority, Certificate, CertificateFile, KeyKind, Usage};
use crate::kubeconfigs::{Credentials, Kubeconfig};
use private_key::PrivateKey;

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
    /// The authority that a certificate needs is not among those to make, as its phase is skipped.
    NoAuthority(Authority),
    /// A certificate with this common name, and the library's reason.
    Refused(String, String),
    /// A file that is there, and why it cannot be kept or completed.
    Unusable(String, &'static str),
    /// A file that the finished bootstrap made and that is gone.
    Missing(String),
}

/// How far a bootstrap has come, which decides over what is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has not begun: what is there was brought by the node's config, and half a pair is a mistake.
    Fresh,
    /// It was interrupted: a key without its certificate is its own, and nothing was signed by it.
    Begun,
    /// It is finished: nothing that others trust is made anew.
    Done,
}

/// Which certificates are made anew although they are sound. Authorities never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// Those that have ended.
    #[default]
    Ended,
    /// Those with less than a third of their life left: of a year four months, in which a node that is off, or whose clock is
    /// wrong, is found. And those that are not valid yet, which a clock that was ahead has left.
    Soon,
    /// All.
    All,
}

/// What is to be there.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The folder of the certificates.
    pub folder: &'a str,
    /// The kind of the key that signs service accounts.
    pub accounts: KeyKind,
    /// The certificates, each after its authority's.
    pub certificates: &'a [CertificateFile],
    /// The kubeconfigs.
    pub kubeconfigs: &'a [Kubeconfig],
    /// Which certificates are made anew.
    pub renewal: Renewal,
    /// A time that has passed for certain, from which on new certificates are valid: with a clock that was ahead they are valid
    /// when it is set back, too. None: from a moment before now.
    pub since: Option<SystemTime>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAuthority(authority) => {
                write!(
                    f,
                    "the authority {} is not made: its phase is skipped",
                    authority.name()
                )
            }
            Self::Unusable(file, reason) => write!(f, "{file} {reason}"),
            Self::Missing(file) => write!(
                f,
                "{file} is gone, and other nodes trust it: restore it from a backup"
            ),
            Self::Refused(name, reason) => write!(f, "making the certificate of {name}: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// Makes all keys, certificates and kubeconfigs; `now` is the time.
///
/// # Errors
/// An authority that is skipped, or a name that no certificate can have.
pub fn make(wanted: Wanted<'_>, now: SystemTime) -> Result<Vec<KeyFile>, Error> {
    complete(wanted, now, Progress::Fresh, &|_| None)
}

/// Makes those keys, certificates and kubeconfigs that are not there, or no longer valid; `there` gives the content of a
/// file. The files are in the order in which they must be written: a key stands before its certificate, an authority
/// before what it signed.
///
/// # Errors
/// As [`make`], and what is there and cannot be kept: a half authority, files of another authority.
pub fn complete(
    wanted: Wanted<'_>,
    now: SystemTime,
    progress: Progress,
    there: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<KeyFile>, Error> {
    let mut maker = Maker {
        now: now.into(),
        since: wanted.since.map(Into::into),
        progress,
        renewal: wanted.renewal,
        there,
        authorities: Vec::new(),
        files: Vec::new(),
    };
    for CertificateFile { file, certificate } in wanted.certificates {
        maker.pair(&format!("{}/{file}", wanted.folder), certificate)?;
    }
    maker.accounts(wanted.folder, wanted.accounts)?;
    for kubeconfig in wanted.kubeconfigs {
        maker.kubeconfig(kubeconfig)?;
    }
    Ok(maker.files)
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

struct Maker<'a> {
    now: OffsetDateTime,
    since: Option<OffsetDateTime>,
    progress: Progress,
    renewal: Renewal,
    there: &'a dyn Fn(&str) -> Option<String>,
    authorities: Vec<Signer>,
    files: Vec<KeyFile>,
}

impl Maker<'_> {
    /// Keeps a certificate and its key, or makes both.
    fn pair(&mut self, file: &str, certificate: &Certificate) -> Result<(), Error> {
        let kept = match certificate.usage {
            Usage::Authority => self.keep_authority(file, certificate)?,
            _ => self.keep_leaf(file, certificate)?,
        };
        if !kept {
            let made = self.certificate(certificate)?;
            self.files.push(secret(format!("{file}.key"), made.key));
            self.files
                .push(public(format!("{file}.crt"), made.certificate));
        }
        Ok(())
    }

    /// Keeps the key that signs service accounts, or makes it.
    fn accounts(&mut self, folder: &str, kind: KeyKind) -> Result<(), Error> {
        let (private, shared) = (format!("{folder}/sa.key"), format!("{folder}/sa.pub"));
        let key = match ((self.there)(&private), (self.there)(&shared)) {
            (Some(_), Some(_)) => return Ok(()),
            (None, Some(_)) => return Err(Error::Unusable(shared, "has no sa.key beside it")),
            (Some(text), None) => {
                let wrong = || Error::Unusable(private.clone(), keep::NO_KEY);
                private_key::read(&text).ok_or_else(wrong)?
            }
            (None, None) if self.progress == Progress::Done => return Err(Error::Missing(private)),
            (None, None) => {
                let made = private_key::generate(kind)?;
                self.files.push(secret(private, made.pem));
                made.pair
            }
        };
        self.files.push(public(shared, key.public_key_pem()));
        Ok(())
    }

    fn certificate(&mut self, certificate: &Certificate) -> Result<Made, Error> {
        let refused =
            |error: rcgen::Error| Error::Refused(certificate.name.clone(), error.to_string());
        let PrivateKey { pair, pem } = private_key::generate(certificate.key)?;
        let params = self.params(certificate).map_err(refused)?;
        if certificate.usage == Usage::Authority {
            let made = Made {
                certificate: params.self_signed(&pair).map_err(refused)?.pem(),
                key: pem,
            };
            self.authorities.push(Signer {
                authority: certificate.issuer,
                issuer: Issuer::new(params, pair),
                certificate: made.certificate.clone(),
            });
            return Ok(made);
        }
        let signer = self.signer(certificate.issuer)?;
        let signed = params.signed_by(&pair, &signer.issuer).map_err(refused)?;
        Ok(Made {
            certificate: signed.pem(),
            key: pem,
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
        let moment = self.now - BEFORE;
        params.not_before = self.since.map_or(moment, |since| since.min(moment));
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

    /// Keeps a kubeconfig, or makes it.
    fn kubeconfig(&mut self, kubeconfig: &Kubeconfig) -> Result<(), Error> {
        let path = format!("/etc/kubernetes/{}", kubeconfig.file);
        if self.keep_kubeconfig(&path, kubeconfig)? {
            return Ok(());
        }
        let made = self.certificate(&kubeconfig.certificate)?;
        let signer = self.signer(kubeconfig.certificate.issuer)?;
        let text = kubeconfig.text(Credentials {
            authority: &signer.certificate,
            certificate: &made.certificate,
            key: &made.key,
        });
        self.files.push(secret(path, text));
        Ok(())
    }
}

fn alternative(name: &str) -> Result<SanType, rcgen::Error> {
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(name.try_into()?)),
    }
}
