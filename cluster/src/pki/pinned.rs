//! A server's certificate that is signed by its own key: its clients trust this one certificate, and no authority.

use std::fmt;
use std::time::SystemTime;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose};
use time::OffsetDateTime;

use super::life::Life;
use super::private_key;
use super::{BEFORE, Error, Renewal};
use crate::certs::KeyKind;
use crate::duration::Duration;

/// The first line of a certificate in PEM.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl fmt::Debug for Pinned {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Pinned");
        shown.field("certificate", &self.certificate);
        shown.finish_non_exhaustive()
    }
}

impl Pinned {
    /// Makes a certificate for a server of this name of DNS, which is valid for so long from `now` on; with `since`, a time that has
    /// passed for certain, from then on.
    ///
    /// # Errors
    /// If the name is none of DNS, or there are no random numbers.
    pub fn make(
        host: &str,
        kind: KeyKind,
        validity: Duration,
        now: SystemTime,
        since: SystemTime,
    ) -> Result<Self, Error> {
        let refused = |error: rcgen::Error| Error::Refused(host.to_owned(), error.to_string());
        let now = OffsetDateTime::from(now);
        let mut params = CertificateParams::new([host.to_owned()]).map_err(refused)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, host);
        params.not_before = OffsetDateTime::from(since).min(now - BEFORE);
        params.not_after = now + time::Duration::nanoseconds(validity.0);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // It signs nothing, so that whoever has the key is this server and no other.
        params.is_ca = IsCa::ExplicitNoCa;
        let key = private_key::generate(kind)?;
        let made = params.self_signed(&key.pair).map_err(refused)?;
        Ok(Self {
            certificate: made.pem(),
            key: key.pem,
        })
    }

    /// Both from one text, the key before the certificate; none if they are not both there.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (key, certificate) = text.split_at(text.find(BEGIN)?);
        private_key::read(key)?;
        Life::of_pem(certificate)?;
        Some(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        })
    }

    /// Both as one text, as [`Pinned::read`] takes it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", self.key, self.certificate)
    }

    /// Whether more than a third of its life is left at this time, seconds since 1970, and it is valid. `validity` is that of a new one.
    #[must_use]
    pub fn lasts(&self, now: i64, validity: Duration) -> bool {
        let life = Life::of_pem(&self.certificate);
        life.is_some_and(|life| life.lasts(now, Renewal::Soon, validity))
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use x509_parser::extensions::GeneralName;

    use super::super::life;
    use super::*;

    const HOST: &str = "metrics-server.kube-system.svc";
    const DAY: u64 = 24 * 3600;

    #[test]
    fn a_pinned_certificate_is_for_its_server_alone_and_renewed_in_time() {
        let validity = Duration(i64::try_from(90 * DAY).unwrap() * 1_000_000_000);
        let at = |day: u64| UNIX_EPOCH + std::time::Duration::from_secs(day * DAY);
        let kind = KeyKind::Ecdsa(256);
        let made = Pinned::make(HOST, kind, validity, at(100), at(10)).unwrap();
        assert_eq!(Pinned::read(&made.text()), Some(made.clone()));
        assert!(!format!("{made:?}").contains("PRIVATE KEY"));
        let pem = life::pem(&made.certificate).unwrap();
        let certificate = life::parsed(&pem).unwrap();
        assert!(!certificate.is_ca());
        assert!(certificate.verify_signature(None).is_ok());
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names, [GeneralName::DNSName(HOST)]);
        let usage = certificate.extended_key_usage().unwrap().unwrap();
        assert!(usage.value.server_auth && !usage.value.client_auth);
        for (day, lasts) in [(9, false), (10, true), (159, true), (161, false)] {
            let now = i64::try_from(day * DAY).unwrap();
            assert_eq!(made.lasts(now, validity), lasts, "{day}");
        }
    }

    #[test]
    fn half_a_pair_is_none() {
        let validity = Duration(1_000_000_000);
        let kind = KeyKind::Ecdsa(384);
        let made = Pinned::make(HOST, kind, validity, UNIX_EPOCH, UNIX_EPOCH).unwrap();
        for text in ["", &made.key, &made.certificate] {
            assert_eq!(Pinned::read(text), None);
        }
        let wrong = Pinned::make("a b\u{e9}", kind, validity, UNIX_EPOCH, UNIX_EPOCH);
        assert!(wrong.is_err());
    }
}
