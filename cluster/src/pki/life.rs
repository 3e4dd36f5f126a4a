//! How long certificates are valid.

use x509_parser::certificate::X509Certificate;
use x509_parser::pem::{Pem, parse_x509_pem};

use super::Renewal;
use crate::duration::Duration;

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

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

    /// Whether it is valid at this time.
    #[must_use]
    pub const fn is_valid(&self, now: i64) -> bool {
        self.begins <= now && now < self.ends
    }

    /// Whether it is kept at this time. `validity` is how long a new one is valid: one that is valid since long before it was
    /// made ([`super::Wanted::since`]) has no longer life for that.
    #[must_use]
    pub fn lasts(&self, now: i64, renewal: Renewal, validity: Duration) -> bool {
        let left = self.ends.saturating_sub(now);
        let life = self.ends.saturating_sub(self.begins);
        match renewal {
            Renewal::Ended => left > 0,
            Renewal::Soon => self.is_valid(now) && left > life.min(validity.0 / SECOND) / 3,
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
        let validity = Duration(3000 * SECOND);
        for (now, ended, soon) in [
            (999, true, false),
            (1000, true, true),
            (2999, true, true),
            (3000, true, false),
            (3999, true, false),
            (4000, false, false),
        ] {
            assert_eq!(life.lasts(now, Renewal::Ended, validity), ended, "{now}");
            assert_eq!(life.lasts(now, Renewal::Soon, validity), soon, "{now}");
            assert!(!life.lasts(now, Renewal::All, validity));
        }
        // Made at 1000 with a life of 3000, and valid since long before.
        let life = Life {
            begins: -90_000,
            ..life
        };
        assert!(life.lasts(2999, Renewal::Soon, validity));
        assert!(!life.lasts(3000, Renewal::Soon, validity));
        assert_eq!(Life::of_pem("no certificate"), None);
    }
}
