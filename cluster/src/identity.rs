//! The identity of a node towards its cluster: the kubelet's client certificate, and the request for it.

use std::fmt;
use std::time::SystemTime;

use time::OffsetDateTime;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

/// The prefix of a node's user name.
const USER: &str = "system:node:";

/// Why a certificate is not the identity of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is none in the file.
    Absent,
    /// It is expired.
    Expired,
    /// It is another user's.
    Another(String),
    /// None of the authorities signed it.
    Foreign,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("is not a certificate"),
            Self::Expired => f.write_str("is expired"),
            Self::Another(user) => write!(f, "is the certificate of {user:?}"),
            Self::Foreign => f.write_str("is not signed by this cluster's authority"),
        }
    }
}

/// The user name of a node.
#[must_use]
pub fn user(node: &str) -> String {
    format!("{USER}{node}")
}

/// Checks the client certificate of a node: PEM, with other texts around it; `authority` are the certificates of the
/// authorities, PEM.
///
/// # Errors
/// The first fault.
pub fn check(certificate: &str, authority: &str, node: &str, now: SystemTime) -> Result<(), Fault> {
    let pem = certificates(certificate).next().ok_or(Fault::Absent)?;
    let found = pem.parse_x509().map_err(|_| Fault::Absent)?;
    let signed = certificates(authority).any(|pem| {
        let authority = pem.parse_x509();
        authority
            .is_ok_and(|authority| found.verify_signature(Some(authority.public_key())).is_ok())
    });
    let name = common_name(found.subject()).unwrap_or_default();
    let now = OffsetDateTime::from(now).unix_timestamp();
    match () {
        () if !signed => Err(Fault::Foreign),
        () if name != user(node) => Err(Fault::Another(name)),
        () if found.validity().not_after.timestamp() <= now => Err(Fault::Expired),
        () => Ok(()),
    }
}

/// The name of the node whose client certificate this is, PEM with other texts around it.
#[must_use]
pub fn node(certificate: &str) -> Option<String> {
    let pem = certificates(certificate).next()?;
    let name = common_name(pem.parse_x509().ok()?.subject())?;
    name.strip_prefix(USER).map(str::to_owned)
}

/// The user that a request for a certificate is for, PEM.
#[must_use]
pub fn requester(request: &str) -> Option<String> {
    let pem = Pem::iter_from_buffer(request.as_bytes()).next()?.ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    common_name(&request.certification_request_info.subject)
}

fn certificates(text: &str) -> impl Iterator<Item = Pem> {
    Pem::iter_from_buffer(text.as_bytes())
        .flatten()
        .filter(|pem| pem.label == "CERTIFICATE")
}

fn common_name(name: &X509Name<'_>) -> Option<String> {
    let first = name.iter_common_name().next()?;
    first.as_str().ok().map(str::to_owned)
}
