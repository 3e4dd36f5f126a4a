//! How long certificates are valid.

use x509_parser::certificate::X509Certificate;
use x509_parser::pem::{Pem, parse_x509_pem};

use super::Renewal;

/// The first part of a text in PEM.
pub(super) fn pem(text: &str) -> Option<Pem> {
    parse_x509_pem(text.as_bytes()).ok().map(|(_, pem)| pem)
}

/// The certificate of a part.
pub(super) fn parsed(pem: &Pem) -> Option<X509Certificate<'_>> {
    pem.parse_x509().ok()
}

/// The life of a certificate, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it begins.
    pub begins: i64,
    /// When it ends.
    pub ends: i64,
}

impl Life {
    /// Of the first certificate in PEM; none if the text is not one.
    #[must_use]
    pub fn of_pem(text: &str) -> Option<Self> {
        let pem = pem(text)?;
        parsed(&pem).map(|certificate| Self::of(&certificate))
    }

    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            begins: validity.not_before.timestamp(),
            ends: validity.not_after.timestamp(),
        }
    }

    /// Whether it is kept at this time.
    #[must_use]
    pub fn lasts(&self, now: i64, renewal: Renewal) -> bool {
        let left = self.ends.saturating_sub(now);
        match renewal {
            Renewal::Ended => left > 0,
            Renewal::Soon => left > self.ends.saturating_sub(self.begins) / 3,
            Renewal::All => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
        let life = Life {
            begins: 1000,
            ends: 4000,
        };
        for (now, ended, soon) in [
            (1000, true, true),
            (2999, true, true),
            (3000, true, false),
            (3999, true, false),
            (4000, false, false),
        ] {
            assert_eq!(life.lasts(now, Renewal::Ended), ended, "{now}");
            assert_eq!(life.lasts(now, Renewal::Soon), soon, "{now}");
            assert!(!life.lasts(now, Renewal::All));
        }
        assert_eq!(Life::of_pem("no certificate"), None);
    }
}
