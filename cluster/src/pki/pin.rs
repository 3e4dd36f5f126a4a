//! The pin of a certificate: who knows it can trust a cluster that it has never seen.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use x509_parser::pem::parse_x509_pem;

/// The kind of the hash, before it.
const KIND: &str = "sha256:";

/// SHA-256 of a certificate's public key as its `SubjectPublicKeyInfo`, hexadecimal after `sha256:`, as kubeadm's
/// `--discovery-token-ca-cert-hash` has it (RFC 7469, section 2.4, defines the hash). None if the text is not a
/// certificate in PEM.
#[must_use]
pub fn pin(certificate: &str) -> Option<String> {
    let (_, pem) = parse_x509_pem(certificate.as_bytes()).ok()?;
    let parsed = pem.parse_x509().ok()?;
    let mut pin = KIND.to_owned();
    for byte in Sha256::digest(parsed.public_key().raw) {
        // Writing to a String cannot fail.
        write!(pin, "{byte:02x}").unwrap_or_default();
    }
    Some(pin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by OpenSSL: `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kubernetes`;
    /// the pin by `openssl x509 -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum`.
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBgjCCASegAwIBAgIUAk0AzPiNbLGcmJMHPUbANji5fKQwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjMwMzU5MTlaGA8yMTI2MTAz
MDAzNTkxOVowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABAll/0bCV92oZ8YvWZw/A4/zqeHPRUK9BvdTYHW+moh7eNd/ZLDm
V4Yk82a3so3psCKCa4g+N0G2Z19q8wJsGpSjUzBRMB0GA1UdDgQWBBSiAGh7MKvH
CkkktZYq4xfdZTV+9DAfBgNVHSMEGDAWgBSiAGh7MKvHCkkktZYq4xfdZTV+9DAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQDeSDSqwCkgIXRtqKWH
/0uOxxorBRzmZN66FQkHNli11AIhAI215A4qE3YnqTU31qcXhSIEEm8JMAd14m8x
fbR126rb
-----END CERTIFICATE-----";
    const PIN: &str = "sha256:27f078b18e8ac51fd4f5e975c9c5ca2b3c087fb55d946efdd2fc405111419f05";

    #[test]
    fn a_pin_is_what_kubeadm_documents() {
        assert_eq!(pin(CERTIFICATE).as_deref(), Some(PIN));
        assert_eq!(pin("no certificate"), None);
    }
}
