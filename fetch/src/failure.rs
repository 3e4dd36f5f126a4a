//! Reasons why a download failed, as far as callers distinguish them.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::digest::Digest;
use crate::masked::login_end;

/// Why a download failed.
#[derive(Debug)]
pub enum Failure {
    /// The request itself is wrong.
    Address {
        /// The address as it may be shown: without user and query.
        url: String,
        /// The mistake in it.
        why: String,
    },
    /// The server answered with a status that another attempt does not change.
    Status {
        /// The address as it may be shown: without user and query.
        url: String,
        /// HTTP status code.
        code: u16,
        /// The server's challenge (`WWW-Authenticate`), with 401.
        challenge: Option<String>,
        /// What is known of the login that was sent, or of the lack of one.
        note: Option<String>,
    },
    /// The server refused in its own protocol, for a reason that another attempt does not change.
    Refused {
        /// The address as it may be shown: without user and query.
        url: String,
        /// The reason.
        why: String,
    },
    /// The content is larger than the caller accepts.
    TooLarge {
        /// The address as it may be shown: without user and query.
        url: String,
        /// The most bytes that were acceptable.
        limit: u64,
    },
    /// There is no memory left for the content and those that are fetched beside it.
    NoRoom {
        /// The address as it may be shown: without user and query.
        url: String,
        /// The bytes that all together may have.
        room: u64,
    },
    /// The content has another digest than expected.
    Digest {
        /// The address as it may be shown: without user and query.
        url: String,
        /// The expected digest.
        expected: Box<Digest>,
        /// The digest of the content.
        found: Box<Digest>,
    },
    /// No complete answer within the patience.
    Unreachable {
        /// The address as it may be shown: without user and query.
        url: String,
        /// Number of attempts.
        attempts: u32,
        /// The reason of the last attempt.
        why: String,
    },
    /// The file cannot be written.
    Disk {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Failure {
    /// Whether the server answered that the file does not exist.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Status {
                code: 404 | 410,
                ..
            }
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { url, why } => write!(f, "cannot fetch {url}: {why}"),
            Self::Status {
                url, code, note, ..
            } => {
                let name = reqwest::StatusCode::from_u16(*code)
                    .ok()
                    .and_then(|status| status.canonical_reason())
                    .unwrap_or("unknown status");
                write!(f, "fetching {url}: the server answered {code} {name}")?;
                note.as_ref().map_or(Ok(()), |note| write!(f, "; {note}"))
            }
            Self::Refused { url, why } => write!(f, "fetching {url}: {why}"),
            Self::TooLarge { url, limit } => {
                write!(
                    f,
                    "fetching {url}: it is larger than the limit of {limit} bytes"
                )
            }
            Self::NoRoom { url, room } => {
                write!(
                    f,
                    "fetching {url}: with all that is fetched beside it, it needs more memory than {room} bytes"
                )
            }
            Self::Digest {
                url,
                expected,
                found,
            } => write!(
                f,
                "fetching {url}: digest mismatch: expected {expected}, found {found}"
            ),
            Self::Unreachable {
                url,
                attempts: 1,
                why,
            } => write!(f, "fetching {url}: {why}"),
            Self::Unreachable { url, attempts, why } => {
                write!(
                    f,
                    "fetching {url}: given up after {attempts} attempts: {why}"
                )
            }
            Self::Disk { path, source } => write!(f, "writing {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Disk { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The address as it may be shown: without user name, password, query and fragment, any of which may be a secret.
#[must_use]
pub fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = &url[..end];
    let start = url.find("://").map_or(0, |at| at + 3);
    let user = login_end(url, start).unwrap_or(start);
    format!("{}{}", &url[..start], &url[user..])
}

/// An error with all its causes, as one sentence; with the machine's clock, where a certificate counts as not yet or no
/// longer valid by it.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text + &clock_note(error).unwrap_or_default()
}

/// What to say behind an error of which a certificate is the cause that counts as not yet or no longer valid: the machine's clock.
#[must_use]
pub fn clock_note(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(is_of_another_time).then(|| {
        let now = httpdate::fmt_http_date(SystemTime::now());
        format!("; the machine's clock says {now}: set it if it is wrong")
    })
}

/// Whether the error is that of a certificate whose time has not come or is over.
fn is_of_another_time(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    // An I/O error does not name the error that it was made of as its source, and is made of another one here.
    if let Some(inner) = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
    {
        return is_of_another_time(inner);
    }
    let error = error.downcast_ref();
    matches!(
        error,
        Some(rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_not_shown() {
        assert_eq!(
            shown("http://me:secret@mirror.example/x"),
            "http://mirror.example/x"
        );
        assert_eq!(shown("http://mirror.example/x"), "http://mirror.example/x");
        assert_eq!(shown("no address"), "no address");
        // Also where a URL parser would refuse or normalize the address.
        for url in [
            "http://me:secret@mirror.example/x?token=secret#secret",
            "http://me:sec@ret@mirror.example:99999/x?a b=secret",
            "http://secret@mirror.example",
            "http://me:sec/ret@mirror.example/x",
            "http://mirror.example?secret",
        ] {
            let text = shown(url);
            assert!(
                text.starts_with("http://mirror.example") && !text.contains("sec"),
                "{text}"
            );
        }
    }
}
