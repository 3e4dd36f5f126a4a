//! What a node learns of a cluster before it trusts it: the map `cluster-info`, which everybody can read, is signed with
//! the secret of a bootstrap token, and one of its authorities is pinned by its public key
//! (<https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#discovering-what-cluster-ca-to-trust>).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use data_encoding::HEXLOWER;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;

use crate::report::Report;
use crate::yaml::{self, Content, Node};

/// The authorities of a cluster on its nodes, where kubeadm has them.
pub const AUTHORITY: &str = "/etc/kubernetes/pki/ca.crt";

/// What a bootstrap token is. The message does not repeat the token, which is secret.
pub(crate) const TOKEN_FORM: &str =
    "not a bootstrap token; expected 6 lower-case letters or digits, a dot, and 16 more";
/// What a pin is.
pub(crate) const PIN_FORM: &str =
    "sha256: and 64 hexadecimal digits, the hash of an authority's public key";
/// The prefix of a pin.
const SHA256: &str = "sha256:";
/// The prefix of the signatures' keys in the map; the token's id follows.
const SIGNATURE: &str = "jws-kubeconfig-";

/// A bootstrap token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Reads `ID.SECRET`, 6 and 16 lower-case letters or digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let fits = |part: &str, length: usize| {
            let sign = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
            part.len() == length && part.bytes().all(sign)
        };
        (fits(id, 6) && fits(secret, 16)).then(|| Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }

    /// A new token; none if the system has no random numbers.
    #[must_use]
    pub fn random() -> Option<Self> {
        const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let source = SystemRandom::new();
        let mut text = String::new();
        while text.len() < 22 {
            let mut byte = [0];
            source.fill(&mut byte).ok()?;
            // 252 is a multiple of 36: no letter is more likely than another.
            if byte[0] < 252 {
                text.push(char::from(LETTERS[usize::from(byte[0]) % LETTERS.len()]));
            }
        }
        let (id, secret) = text.split_at(6);
        Self::parse(&format!("{id}.{secret}"))
    }

    /// Its id, which is not secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `ID.SECRET`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// SHA-256 of a public key (`SubjectPublicKeyInfo` in DER), as `kubeadm` prints it for
/// `--discovery-token-ca-cert-hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    /// Reads `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(SHA256)?;
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (number, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * number..2 * number + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// The pin of a certificate in PEM; none if the text is not one.
    #[must_use]
    pub fn of_pem(certificate: &str) -> Option<Self> {
        let pem = Pem::iter_from_buffer(certificate.as_bytes()).next()?.ok()?;
        pem.parse_x509()
            .ok()
            .map(|certificate| Self::of(&certificate))
    }

    fn of(certificate: &X509Certificate<'_>) -> Self {
        Self(Sha256::digest(certificate.public_key().raw).into())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHA256)?;
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// Why a map `cluster-info` is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no kubeconfig, or one without this.
    Incomplete(&'static str),
    /// It has no signature for the token with this id, but for those.
    NotSigned(String, Vec<String>),
    /// The signature for the token with this id is not by its secret.
    WrongSignature(String),
    /// None of the authorities that were found is one of those that are expected.
    NotPinned {
        /// The pins.
        expected: Vec<Pin>,
        /// The authorities'.
        found: Vec<Pin>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete(what) => write!(f, "cluster-info has no {what}"),
            Self::NotSigned(id, others) => {
                write!(
                    f,
                    "cluster-info is not signed for the token {id:?}: it is not a token of this cluster, or expired"
                )?;
                match others.is_empty() {
                    true => Ok(()),
                    false => write!(f, " (signed for {})", others.join(", ")),
                }
            }
            Self::WrongSignature(id) => write!(
                f,
                "cluster-info is signed for the token {id:?}, but not with the secret in join.token"
            ),
            Self::NotPinned { expected, found } => write!(
                f,
                "the cluster's authority has the public key {}, expected {} (join.ca-hashes)",
                list(found),
                list(expected)
            ),
        }
    }
}

impl std::error::Error for Refusal {}

fn list(pins: &[Pin]) -> String {
    let texts: Vec<String> = pins.iter().map(Pin::to_string).collect();
    texts.join(" or ")
}

/// What `cluster-info` says, signed by the token, with an authority that is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// The kubeconfig as it is in the map.
    pub kubeconfig: String,
    /// The URL of the control plane.
    pub server: String,
    /// The certificates of its authorities, PEM.
    pub authority: String,
    /// Those of them that are trusted: whose public key is pinned, if any is. PEM.
    pub pinned: String,
}

/// Checks a map `cluster-info`.
///
/// # Errors
/// The first reason to refuse it.
pub fn cluster_info(map: &Value, token: &Token, pins: &[Pin]) -> Result<ClusterInfo, Refusal> {
    let incomplete = |what| move || Refusal::Incomplete(what);
    let data = &map["data"];
    let kubeconfig = data["kubeconfig"]
        .as_str()
        .ok_or_else(incomplete("kubeconfig"))?;
    let id = token.id();
    let signature = data[format!("{SIGNATURE}{id}")].as_str();
    let signature = signature.ok_or_else(|| Refusal::NotSigned(id.to_owned(), signers(data)))?;
    if !is_signed(signature, kubeconfig, token) {
        return Err(Refusal::WrongSignature(id.to_owned()));
    }
    let root = yaml::document(kubeconfig, 0, &mut Report::default());
    let cluster = root.as_ref().and_then(cluster);
    let cluster = cluster.ok_or_else(incomplete("cluster in its kubeconfig"))?;
    let text = |key: &str| cluster.get(key).and_then(Node::text);
    let server = text("server").filter(|server| server.starts_with("https://"));
    let server = server.ok_or_else(incomplete("https URL of a server in its kubeconfig"))?;
    let authority = text("certificate-authority-data")
        .and_then(|text| String::from_utf8(STANDARD.decode(text).ok()?).ok())
        .ok_or_else(incomplete("authority in its kubeconfig"))?;
    Ok(ClusterInfo {
        kubeconfig: kubeconfig.to_owned(),
        server: server.to_owned(),
        pinned: trusted(&authority, pins)?,
        authority,
    })
}

/// The ids of the tokens that the map is signed for.
fn signers(data: &Value) -> Vec<String> {
    let keys = data.as_object().into_iter().flat_map(|data| data.keys());
    keys.filter_map(|key| key.strip_prefix(SIGNATURE))
        .map(str::to_owned)
        .collect()
}

/// The first cluster of a kubeconfig.
fn cluster(root: &Node) -> Option<&Node> {
    match &root.get("clusters")?.content {
        Content::List(items) => items.first()?.get("cluster"),
        _ => None,
    }
}

/// Whether this is a signature of the content (RFC 7515, detached, appendix F) by HMAC with SHA-256 and the token's secret.
fn is_signed(jws: &str, content: &str, token: &Token) -> bool {
    let parts: Vec<&str> = jws.split('.').collect();
    let [header, "", signature] = parts[..] else {
        return false;
    };
    let fields = URL_SAFE_NO_PAD.decode(header).ok();
    let fields: Option<Value> = fields.and_then(|text| serde_json::from_slice(&text).ok());
    let names_token =
        fields.is_some_and(|fields| fields["alg"] == "HS256" && fields["kid"] == token.id());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let signature = URL_SAFE_NO_PAD.decode(signature);
    names_token && signature.is_ok_and(|tag| hmac::verify(&key, signed.as_bytes(), &tag).is_ok())
}

/// Those certificates of a PEM text that a node with these pins trusts, as PEM: all, if it has none and trusts whoever signs with its
/// token, as by kubeadm's `unsafeSkipCAVerification`.
///
/// # Errors
/// If none of them is pinned.
pub fn trusted(authority: &str, pins: &[Pin]) -> Result<String, Refusal> {
    match pins {
        [] => Ok(authority.to_owned()),
        pins => pinned(authority, pins),
    }
}

/// Those certificates of a PEM text whose public key is pinned, as PEM.
///
/// # Errors
/// If there is none.
pub fn pinned(authority: &str, pins: &[Pin]) -> Result<String, Refusal> {
    let (mut kept, mut found) = (String::new(), Vec::new());
    for pem in Pem::iter_from_buffer(authority.as_bytes()).flatten() {
        let Ok(certificate) = pem.parse_x509() else {
            continue;
        };
        let pin = Pin::of(&certificate);
        if pins.contains(&pin) {
            kept += &text(&pem.contents);
        }
        found.push(pin);
    }
    let expected = pins.to_vec();
    match kept.is_empty() {
        true if found.is_empty() => Err(Refusal::Incomplete("certificate of an authority")),
        true => Err(Refusal::NotPinned { expected, found }),
        false => Ok(kept),
    }
}

/// A certificate as PEM (RFC 7468).
fn text(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<&str> = encoded
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes' own case (`cluster-bootstrap/token/jws`), whose id and secret are longer than a token's.
    /// Made by `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kubernetes`; the pin by `openssl x509
    /// -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum`.
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
        let pin = Pin::of_pem(CERTIFICATE).map(|pin| pin.to_string());
        assert_eq!(pin.as_deref(), Some(PIN));
        assert_eq!(Pin::of_pem("no certificate"), None);
    }

    #[test]
    fn a_signature_is_kubernetes_own() {
        let jws =
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
        let content = "Hello from the other side. I must have called a thousand times.";
        let token = |id: &str, secret: &str| Token {
            id: id.to_owned(),
            secret: secret.to_owned(),
        };
        let good = token("joshua", "my voice is my passcode");
        assert!(is_signed(jws, content, &good));
        assert!(!is_signed(jws, &content.replace("side", "sidf"), &good));
        assert!(!is_signed(jws, content, &token("joshua", "another")));
        assert!(!is_signed(
            jws,
            content,
            &token("other", "my voice is my passcode")
        ));
        // The same with its content, and in parts.
        let attached = jws.replace("..", ".SGVsbG8.");
        for wrong in [attached.as_str(), "", "..", "a.b", &jws[..60]] {
            assert!(!is_signed(wrong, content, &good), "{wrong}");
        }
    }

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let text = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(Pin::parse(&text).unwrap().to_string(), text);
        let upper = text.replace("0a", "0A");
        assert_eq!(Pin::parse(&upper), Pin::parse(&text));
        for wrong in [
            &text[7..],
            &text[..70],
            "sha512:00",
            &text.replace('a', "g"),
        ] {
            assert_eq!(Pin::parse(wrong), None, "{wrong}");
        }
    }
}
