//! Private keys in the forms of kubeadm: how they are made, written and read.
//!
//! ring, which signs, makes no RSA keys and reads only PKCS#8. So RSA keys are made by another library, which does nothing else,
//! and keys in the two older forms are wrapped: `RSA PRIVATE KEY` (PKCS#1, RFC 8017, appendix A.1.2), which kubeadm writes, and
//! `EC PRIVATE KEY` (RFC 5915), which it writes for elliptic curves.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384};
use rsa::RsaPrivateKey;
use rsa::pkcs1::{EncodeRsaPrivateKey as _, LineEnding};
use rsa::rand_core::OsRng;
use x509_parser::pem::Pem;

use super::Error;
use crate::certs::KeyKind;

/// Tags of DER.
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const NULL: u8 = 0x05;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// `rsaEncryption`, 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// `id-ecPublicKey`, 1.2.840.10045.2.1.
const CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// The curves that ring signs by: `secp256r1`, 1.2.840.10045.3.1.7, and `secp384r1`, 1.3.132.0.34.
const CURVES: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
];

/// A key that signs, and its file.
pub(super) struct PrivateKey {
    pub(super) pair: KeyPair,
    /// PEM: PKCS#1 of RSA, as of kubeadm, else PKCS#8.
    pub(super) pem: String,
}

/// Makes a key.
///
/// # Errors
/// Bits that ring does not sign by (RSA: 2048 to 4096), or no random numbers.
pub(super) fn generate(kind: KeyKind) -> Result<PrivateKey, Error> {
    let refused = |error: &dyn ToString| Error::Refused("a new key".to_owned(), error.to_string());
    let algorithm = match kind {
        KeyKind::Rsa(bits) => return generate_rsa(bits),
        KeyKind::Ecdsa(384) => &PKCS_ECDSA_P384_SHA384,
        KeyKind::Ecdsa(_) => &PKCS_ECDSA_P256_SHA256,
    };
    let pair = KeyPair::generate_for(algorithm).map_err(|error| refused(&error))?;
    let pem = pair.serialize_pem();
    Ok(PrivateKey { pair, pem })
}

fn generate_rsa(bits: u32) -> Result<PrivateKey, Error> {
    let refused = |reason: String| Error::Refused(format!("a new RSA key of {bits} bits"), reason);
    let size = usize::try_from(bits).map_err(|error| refused(error.to_string()))?;
    let made = RsaPrivateKey::new(&mut OsRng, size).map_err(|error| refused(error.to_string()))?;
    let pem = made.to_pkcs1_pem(LineEnding::LF);
    let pem = pem.map_err(|error| refused(error.to_string()))?.to_string();
    // ring checks the key's parts once more, before anything is signed by it.
    let pair = read(&pem).ok_or_else(|| refused("its parts do not fit each other".to_owned()))?;
    Ok(PrivateKey { pair, pem })
}

/// Reads the first private key in PEM: PKCS#8, PKCS#1 or RFC 5915. None if there is none, or none that ring signs by.
pub(super) fn read(text: &str) -> Option<KeyPair> {
    let parts = Pem::iter_from_buffer(text.as_bytes()).flatten();
    // OpenSSL writes the curve in a part of its own before the key.
    let mut keys = parts.filter(|part| part.label.ends_with("PRIVATE KEY"));
    let key = keys.next()?;
    match key.label.as_str() {
        "PRIVATE KEY" => pair(key.contents),
        "RSA PRIVATE KEY" => pair(pkcs8(RSA, &value(NULL, &[]), &key.contents)),
        "EC PRIVATE KEY" => CURVES
            .iter()
            .find_map(|curve| pair(pkcs8(CURVE, &value(OBJECT, curve), &key.contents))),
        _ => None,
    }
}

fn pair(pkcs8: Vec<u8>) -> Option<KeyPair> {
    KeyPair::try_from(pkcs8).ok()
}

/// `PrivateKeyInfo` of PKCS#8 (RFC 5208, section 5): version, algorithm with its parameters, key.
fn pkcs8(algorithm: &[u8], parameters: &[u8], key: &[u8]) -> Vec<u8> {
    let algorithm = [&value(OBJECT, algorithm)[..], parameters].concat();
    let parts = [
        value(INTEGER, &[0]),
        value(SEQUENCE, &algorithm),
        value(OCTETS, key),
    ];
    value(SEQUENCE, &parts.concat())
}

/// A value in DER (X.690, section 8.1): tag, length, content.
fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let first = length.iter().position(|byte| *byte != 0);
    let length = &length[first.unwrap_or(length.len() - 1)..];
    let mut bytes = vec![tag];
    if content.len() >= 0x80 {
        // The number of the length's bytes: at most eight.
        bytes.extend(u8::try_from(length.len()).map(|count| 0x80 | count));
    }
    bytes.extend_from_slice(length);
    bytes.extend_from_slice(content);
    bytes
}
