//! The keys that all control planes of a cluster share, as `kubeadm init phase upload-certs` keeps them in the cluster: the
//! secret `kubeadm-certs`, each file sealed with AES-256-GCM by the certificate key, its nonce of 12 bytes before it
//! (<https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/>).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value};

/// Bytes of a certificate key.
const LENGTH: usize = 32;
/// What a certificate key is. The message does not repeat the key, which is secret.
pub(crate) const FORM: &str = "not a certificate key; expected 64 hexadecimal digits";
/// The shared files below the folder of certificates: kubeadm's names in the secret have a dash for each slash.
pub const FILES: [&str; 8] = [
    "ca.crt",
    "ca.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "sa.pub",
    "sa.key",
    "etcd/ca.crt",
    "etcd/ca.key",
];

/// The key that opens the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateKey([u8; LENGTH]);

impl fmt::Debug for CertificateKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateKey").finish_non_exhaustive()
    }
}

impl CertificateKey {
    /// Reads 64 hexadecimal digits, as `kubeadm certs certificate-key` prints them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 2 * LENGTH || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; LENGTH];
        for (number, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * number..2 * number + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// A new key; none if the system has no random numbers.
    #[must_use]
    pub fn random() -> Option<Self> {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Its 64 hexadecimal digits.
    #[must_use]
    pub fn text(&self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

/// Why the secret gives no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The secret lacks this file.
    Missing(&'static str),
    /// The certificate key does not open this file, or somebody changed it.
    Sealed(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(file) => write!(f, "the secret kubeadm-certs has no {file}"),
            Self::Sealed(file) => write!(
                f,
                "the certificate key does not open {file} of the secret kubeadm-certs: \
                 it is the key of an earlier upload, or of another cluster"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// The files of the secret, by their paths below the folder of certificates.
///
/// # Errors
/// A file that is missing, or that the key does not open.
pub fn open(secret: &Value, key: &CertificateKey) -> Result<Vec<(&'static str, String)>, Refusal> {
    FILES
        .into_iter()
        .map(|file| {
            let sealed = secret["data"][name(file)].as_str();
            let sealed = sealed.ok_or(Refusal::Missing(file))?;
            let text = unseal(sealed, key).ok_or(Refusal::Sealed(file))?;
            Ok((file, text))
        })
        .collect()
}

/// Seals files, given by their paths in the order of [`FILES`], as `data` of the secret; none if the system has no random
/// numbers.
#[must_use]
pub fn seal(texts: &[String; FILES.len()], key: &CertificateKey) -> Option<Map<String, Value>> {
    let sealed = |(file, text): (&&str, &String)| Some((name(file), sealed(text, key)?.into()));
    FILES.iter().zip(texts).map(sealed).collect()
}

/// The name of a file in the secret.
fn name(file: &str) -> String {
    file.replace('/', "-")
}

fn sealed(text: &str, key: &CertificateKey) -> Option<String> {
    // Random, as kubeadm's: one key seals eight files, far from where two nonces of 96 bits are likely to be the same.
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key.0).ok()?);
    let mut bytes = text.as_bytes().to_vec();
    let unique = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(unique, Aad::empty(), &mut bytes)
        .ok()?;
    Some(STANDARD.encode([&nonce[..], &bytes].concat()))
}

fn unseal(sealed: &str, key: &CertificateKey) -> Option<String> {
    let mut bytes = STANDARD.decode(sealed).ok()?;
    let mut text = bytes.split_off(NONCE_LEN.min(bytes.len()));
    let nonce = Nonce::try_assume_unique_for_key(&bytes).ok()?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key.0).ok()?);
    let opened = key.open_in_place(nonce, Aad::empty(), &mut text).ok()?;
    String::from_utf8(opened.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    /// What Go's `cipher.NewGCM(…).Seal(nonce, nonce, text, nil)`, which kubeadm calls, makes of a line with this key.
    const SEALED: &str =
        "CgsMDQ4PEBESExQVQpAX5UafkjL/SvhOm/6xAbtXnG7rL9OZxnTmnOU13vevBemLa7IdX9DYuXE=";

    fn secret() -> Value {
        let files = FILES.map(|file| (file.replace('/', "-"), json!(SEALED)));
        json!({"data": files.into_iter().collect::<serde_json::Map<_, _>>()})
    }

    #[test]
    fn what_kubeadm_sealed_is_opened() {
        let key = CertificateKey::parse(KEY).unwrap();
        let files = open(&secret(), &key).unwrap();
        assert_eq!(files.len(), FILES.len());
        assert_eq!(files[7].0, "etcd/ca.key");
        assert!(
            files
                .iter()
                .all(|(_, text)| text == "-----BEGIN CERTIFICATE-----\n")
        );
    }

    #[test]
    fn what_is_sealed_is_opened_by_its_key_alone_and_never_twice_the_same() {
        let (key, other) = (
            CertificateKey::random().unwrap(),
            CertificateKey::random().unwrap(),
        );
        assert_eq!(CertificateKey::parse(&key.text()), Some(key.clone()));
        let texts = FILES.map(|file| format!("the text of {file}"));
        let secret = json!({"data": seal(&texts, &key).unwrap()});
        let opened = open(&secret, &key).unwrap();
        assert!(opened.iter().map(|(_, text)| text).eq(&texts));
        assert_eq!(open(&secret, &other), Err(Refusal::Sealed("ca.crt")));
        let names: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(names[1..4], ["ca.key", "etcd-ca.crt", "etcd-ca.key"]);
        assert_ne!(json!(seal(&texts, &key)), secret["data"]);
    }

    #[test]
    fn another_key_and_a_changed_secret_are_refused_by_the_files_name() {
        let other = CertificateKey::parse(&KEY.replace("00", "ff")).unwrap();
        assert_eq!(open(&secret(), &other), Err(Refusal::Sealed("ca.crt")));
        let key = CertificateKey::parse(KEY).unwrap();
        for (changed, refusal) in [
            (json!(null), Refusal::Missing("sa.key")),
            (json!("CgsM"), Refusal::Sealed("sa.key")),
            (
                json!(SEALED.replace("9DYuXE=", "9DYuXF=")),
                Refusal::Sealed("sa.key"),
            ),
        ] {
            let mut secret = secret();
            secret["data"]["sa.key"] = changed;
            assert_eq!(open(&secret, &key), Err(refusal));
        }
        for wrong in ["", &KEY[1..], &KEY.replace("1f", "1g")] {
            assert_eq!(CertificateKey::parse(wrong), None);
        }
        assert!(!format!("{key:?}").contains("01"));
    }
}
