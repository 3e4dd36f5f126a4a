//! Which keys and certificates that are there can be kept.

use std::net::IpAddr;

use rcgen::{Issuer, KeyPair};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::life::{self, Life, parsed, pem};
use super::{Error, Maker, Progress, Signer, private_key};
use crate::address;
use crate::certs::{Certificate, Usage};
use crate::kubeconfigs::{self, Kubeconfig};

/// The messages of a file that is of no use.
const NO_CERTIFICATE: &str = "is not a certificate";
const NOT_ITS_KEY: &str = "is not the key of the certificate beside it";
pub(super) const NO_KEY: &str =
    "is not a private key of ECDSA P-256 or P-384, of Ed25519, or of RSA with 2048 to 4096 bits";
const HALF: &str = "is half of an authority: the other file is missing";
const ANOTHER: &str = "belongs to another cluster: this node's authority did not sign it";

impl Maker<'_> {
    /// Whether the authority is there. Half of one is completed only if an interrupted bootstrap left it: the key is
    /// written first.
    pub(super) fn keep_authority(
        &mut self,
        file: &str,
        certificate: &Certificate,
    ) -> Result<bool, Error> {
        let (public, private) = (format!("{file}.crt"), format!("{file}.key"));
        let (text, key) = match ((self.there)(&public), (self.there)(&private)) {
            (Some(text), Some(key)) => (text, key),
            (None, None) if self.progress == Progress::Done => return Err(Error::Missing(private)),
            (None, None) => return Ok(false),
            (None, Some(_)) if self.progress == Progress::Begun => return Ok(false),
            (None, Some(_)) => return Err(Error::Unusable(private, HALF)),
            (Some(_), None) => return Err(Error::Unusable(public, HALF)),
        };
        let pem = pem(&text).ok_or_else(|| Error::Unusable(public.clone(), NO_CERTIFICATE))?;
        let parsed = parsed(&pem).ok_or_else(|| Error::Unusable(public.clone(), NO_CERTIFICATE))?;
        if !parsed.is_ca() {
            return Err(Error::Unusable(public, "is not an authority's certificate"));
        }
        let Some(key) = private_key::read(&key) else {
            return Err(Error::Unusable(private, NO_KEY));
        };
        if !fits(&key, &parsed) {
            return Err(Error::Unusable(private, NOT_ITS_KEY));
        }
        if parsed.validity().not_after.timestamp() <= self.now.unix_timestamp() {
            return Err(Error::Unusable(public, "is expired"));
        }
        let issuer = Issuer::from_ca_cert_pem(&text, key);
        let issuer =
            issuer.map_err(|error| Error::Refused(certificate.name.clone(), error.to_string()))?;
        self.authorities.push(Signer {
            authority: certificate.issuer,
            issuer,
            certificate: text,
        });
        Ok(true)
    }

    /// Whether a certificate and its key are there and valid.
    pub(super) fn keep_leaf(&self, file: &str, certificate: &Certificate) -> Result<bool, Error> {
        let public = format!("{file}.crt");
        match ((self.there)(&public), (self.there)(&format!("{file}.key"))) {
            (Some(text), Some(key)) => self.is_valid(&public, &text, &key, certificate),
            _ => Ok(false),
        }
    }

    /// Whether a kubeconfig is there and leads to this cluster by a valid certificate. One that names files in place of
    /// data is another program's, which renews them.
    pub(super) fn keep_kubeconfig(&self, path: &str, wanted: &Kubeconfig) -> Result<bool, Error> {
        let Some(text) = (self.there)(path) else {
            return Ok(false);
        };
        let Some(given) = kubeconfigs::read(&text) else {
            return Ok(false);
        };
        let signer = self.signer(wanted.certificate.issuer)?;
        let authority = given.authority.as_deref().map(str::trim);
        if authority != Some(signer.certificate.trim()) {
            return self.of_another(path);
        }
        if (&given.server, &given.server_name) != (&wanted.server, &wanted.server_name) {
            return Ok(false);
        }
        match (given.certificate, given.key) {
            _ if given.certificate_file.is_some() => Ok(true),
            (Some(text), Some(key)) => self.is_valid(path, &text, &key, &wanted.certificate),
            _ => Ok(false),
        }
    }

    /// Whether a certificate is this authority's, not expired, with its subject and at least its names.
    fn is_valid(
        &self,
        file: &str,
        text: &str,
        key: &str,
        wanted: &Certificate,
    ) -> Result<bool, Error> {
        let pem = pem(text);
        let Some(found) = pem.as_ref().and_then(parsed) else {
            return Ok(false);
        };
        let signer = self.signer(wanted.issuer)?;
        let authority = life::pem(&signer.certificate);
        let signed = authority
            .as_ref()
            .and_then(parsed)
            .is_some_and(|authority| found.verify_signature(Some(authority.public_key())).is_ok());
        if !signed {
            return self.of_another(file);
        }
        // A curve that is not read here (P-521) was another program's choice, and is kept.
        let unread = key.contains("BEGIN EC PRIVATE KEY");
        let own = private_key::read(key).map_or(unread, |key| fits(&key, &found));
        let (now, validity) = (self.now.unix_timestamp(), wanted.validity);
        let lasts = Life::of(&found).lasts(now, self.renewal, validity);
        Ok(own && lasts && describes(&found, wanted))
    }

    /// Before the bootstrap a file of another authority is another cluster's; afterwards it is made anew.
    fn of_another(&self, file: &str) -> Result<bool, Error> {
        match self.progress {
            Progress::Fresh => Err(Error::Unusable(file.to_owned(), ANOTHER)),
            _ => Ok(false),
        }
    }
}

fn fits(key: &KeyPair, certificate: &X509Certificate<'_>) -> bool {
    use rcgen::PublicKeyData as _;
    key.subject_public_key_info() == certificate.public_key().raw
}

/// Whether a certificate has the subject, the usage and all names of a specification.
fn describes(found: &X509Certificate<'_>, wanted: &Certificate) -> bool {
    let text = |value: Option<&str>| value.map(str::to_owned);
    let subject = found.subject();
    let name = subject
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok());
    let mut organisations = subject.iter_organization();
    let organisation = organisations.next().and_then(|name| name.as_str().ok());
    let (server, client) = match found.extended_key_usage() {
        Ok(Some(usage)) => (usage.value.server_auth, usage.value.client_auth),
        _ => (false, false),
    };
    let usage = match wanted.usage {
        Usage::Authority => false,
        Usage::Client => client,
        Usage::Server => server,
        Usage::Peer => server && client,
    };
    let names = alternatives(found);
    usage
        && name == Some(wanted.name.as_str())
        && text(organisation) == wanted.organisation
        && wanted.names.iter().all(|name| names.contains(name))
}

fn alternatives(found: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = found.subject_alternative_name() else {
        return Vec::new();
    };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => ip(bytes).map(|address| address.to_string()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(text).collect()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => {
            let address = <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)?;
            address::parse(&address.to_string())
        }
    }
}
