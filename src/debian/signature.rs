//! Verifies the signatures of archives: OpenPGP, cleartext or detached, against Debian's pinned keys or the recipe's.
//!
//! The library checks the cryptography; this module has the policy: which primary keys are trusted, binding and expiry
//! of subkeys, revocation, digest algorithms, times. It returns only the signed text.

use anyhow::{Context as _, Result, bail, ensure};
use pgp::composed::{
    CleartextSignedMessage, Deserializable as _, DetachedSignature, SignedPublicKey,
    SignedPublicSubKey,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureType};
use pgp::types::{KeyDetails, Tag, VerifyingKey};

use crate::format::time::rfc3339;

/// An archive key: its primary fingerprint, pinned, and the certificate.
struct Pinned {
    /// The key's owner.
    owner: &'static str,
    /// Primary fingerprint, as published by Debian with each release's announcement of keys (ftp-master's page
    /// `keys.html`) and as printed by `gpg --show-keys` for the files below.
    fingerprint: &'static str,
    /// The file of the same name in Debian's package `debian-archive-keyring`, version 2025.1.
    certificate: &'static [u8],
}

const PINNED: &[Pinned] = &[
    Pinned {
        owner: "Debian Archive Automatic Signing Key (13/trixie)",
        fingerprint: "04b54c3cdca79751b16bc6b5225629df75b188bd",
        certificate: include_bytes!("keys/debian-archive-trixie-automatic.pgp"),
    },
    Pinned {
        owner: "Debian Security Archive Automatic Signing Key (13/trixie)",
        fingerprint: "5e04a1e3223a19a20706e20f9904613d4cce68c6",
        certificate: include_bytes!("keys/debian-archive-trixie-security-automatic.pgp"),
    },
    Pinned {
        owner: "Debian Stable Release Key (13/trixie)",
        fingerprint: "41587f7db8c774bccf131416762f67a0b2c39de4",
        certificate: include_bytes!("keys/debian-archive-trixie-stable.pgp"),
    },
    Pinned {
        owner: "Debian Archive Automatic Signing Key (12/bookworm)",
        fingerprint: "b8b80b5b623eab6ad8775c45b7c5d7d6350947f8",
        certificate: include_bytes!("keys/debian-archive-bookworm-automatic.pgp"),
    },
    Pinned {
        owner: "Debian Security Archive Automatic Signing Key (12/bookworm)",
        fingerprint: "05ab90340c0c5e797f44a8c8254cf3b5aec0a8f0",
        certificate: include_bytes!("keys/debian-archive-bookworm-security-automatic.pgp"),
    },
    Pinned {
        owner: "Debian Stable Release Key (12/bookworm)",
        fingerprint: "4d64fec119c2029067d6e791f8d2585b8783d481",
        certificate: include_bytes!("keys/debian-archive-bookworm-stable.pgp"),
    },
];

/// A clock may be behind the signer's by this, in seconds.
const CLOCK_TOLERANCE: u64 = 24 * 3600;

/// The first words of an armoured certificate.
const ARMOUR: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// The trusted keys.
#[derive(Debug)]
pub struct Keyring {
    /// All of them, in words: "… is not one of".
    all: String,
    certificates: Vec<(String, SignedPublicKey)>,
}

impl Keyring {
    /// Debian's archive keys, each checked against its pinned fingerprint.
    ///
    /// # Errors
    /// If an embedded certificate does not match its fingerprint: the program is damaged.
    pub fn debian() -> Result<Self> {
        let pinned = PINNED
            .iter()
            .map(|pinned| (pinned.owner, pinned.fingerprint, pinned.certificate));
        Self::pinned(pinned)
    }

    /// Keys by owner, primary fingerprint (hexadecimal, lower case) and certificate (binary).
    ///
    /// # Errors
    /// If a certificate does not parse or has another fingerprint.
    pub fn pinned<'k>(
        keys: impl IntoIterator<Item = (&'k str, &'k str, &'k [u8])>,
    ) -> Result<Self> {
        let mut certificates = Vec::new();
        for (owner, fingerprint, certificate) in keys {
            let certificate = SignedPublicKey::from_bytes(certificate)
                .with_context(|| format!("reading the certificate of {owner}"))?;
            let found = certificate.primary_key.fingerprint().to_string();
            ensure!(
                found == fingerprint,
                "the certificate of {owner} has the fingerprint {found}, expected {fingerprint}"
            );
            certificates.push((owner.to_owned(), certificate));
        }
        Ok(Self {
            all: "Debian's that this program knows".to_owned(),
            certificates,
        })
    }

    /// The keys of files, each with its path for messages: certificates in binary form, or armoured ones, several after one
    /// another. `all` are the keys in words.
    ///
    /// # Errors
    /// If a file is not certificates and nothing else.
    pub fn of_files<'k>(
        all: &str,
        files: impl IntoIterator<Item = (String, &'k [u8])>,
    ) -> Result<Self> {
        let mut certificates = Vec::new();
        for (path, content) in files {
            let read = certificates_of(content).with_context(|| format!("reading {path}"))?;
            certificates.extend(read.into_iter().map(|certificate| {
                let fingerprint = certificate.primary_key.fingerprint();
                (format!("the key {fingerprint} of {path}"), certificate)
            }));
        }
        Ok(Self {
            all: all.to_owned(),
            certificates,
        })
    }

    /// The text of a cleartext-signed message, if at least one signature is good at `now` (seconds since 1970). Line
    /// ends of the text are single line feeds.
    ///
    /// # Errors
    /// If the message has another form, or no signature is good; with the reason for each.
    pub fn signed_text(&self, message: &str, now: u64) -> Result<String> {
        // Text before or after the signed part is not signed; a message with such text is refused.
        ensure!(
            message.starts_with("-----BEGIN PGP SIGNED MESSAGE-----")
                && message
                    .trim_ascii_end()
                    .ends_with("-----END PGP SIGNATURE-----")
                && message
                    .matches("-----BEGIN PGP SIGNED MESSAGE-----")
                    .count()
                    == 1,
            "it is not one OpenPGP cleartext-signed message and nothing else"
        );
        let (message, _) =
            CleartextSignedMessage::from_string(message).context("reading the signed message")?;
        let text = message.signed_text();
        self.any_counts(message.signatures(), text.as_bytes(), now)?;
        Ok(text.replace("\r\n", "\n"))
    }

    /// Checks that at least one of the detached signatures (armoured or binary) over a text is good at `now` (seconds since
    /// 1970).
    ///
    /// # Errors
    /// If there is no signature, or none is good; with the reason for each.
    pub fn signed_apart(&self, text: &[u8], signatures: &[u8], now: u64) -> Result<()> {
        let (read, _) =
            DetachedSignature::from_reader_many(signatures).context("reading the signatures")?;
        let read: Vec<Signature> = read
            .map(|signature| Ok(signature?.signature))
            .collect::<Result<_>>()
            .context("reading the signatures")?;
        self.any_counts(&read, text, now)
    }

    fn any_counts(&self, signatures: &[Signature], text: &[u8], now: u64) -> Result<()> {
        let mut refusals = Vec::new();
        for signature in signatures {
            match self.check(signature, text, now) {
                Ok(()) => return Ok(()),
                Err(e) => refusals.push(format!("{e:#}")),
            }
        }
        if refusals.is_empty() {
            bail!("it has no signature");
        }
        bail!("no signature counts: {}", refusals.join("; "))
    }

    fn check(&self, signature: &Signature, text: &[u8], now: u64) -> Result<()> {
        let issuer = issuer(signature);
        for (owner, certificate) in &self.certificates {
            let refuse = || format!("the signature of {owner}");
            let primary = &certificate.primary_key;
            if is_from(signature, primary) {
                signature_is_sound(signature, primary, now).with_context(refuse)?;
                primary_is_good(certificate, true, now).with_context(refuse)?;
                return signature.verify(primary, text).with_context(refuse);
            }
            for subkey in &certificate.public_subkeys {
                if is_from(signature, &subkey.key) {
                    signature_is_sound(signature, &subkey.key, now).with_context(refuse)?;
                    primary_is_good(certificate, false, now).with_context(refuse)?;
                    subkey_is_good(certificate, subkey, now).with_context(refuse)?;
                    return signature.verify(&subkey.key, text).with_context(refuse);
                }
            }
        }
        bail!("the key {issuer} is not one of {}", self.all)
    }
}

/// The certificates of a file.
fn certificates_of(content: &[u8]) -> Result<Vec<SignedPublicKey>> {
    let text = std::str::from_utf8(content).unwrap_or_default();
    let mut all = Vec::new();
    if text.contains("-----BEGIN PGP PRIVATE KEY BLOCK-----") {
        bail!("it is a private key; expected the certificate alone (`gpg --export --armor`)");
    }
    if text.contains(ARMOUR) {
        // Keyrings of vendors are often armoured blocks after one another, with words between them.
        for block in text.split(ARMOUR).skip(1) {
            let block = format!("{ARMOUR}{block}");
            let (read, _) = SignedPublicKey::from_armor_many(block.as_bytes())?;
            all.extend(read.collect::<pgp::errors::Result<Vec<_>>>()?);
        }
    } else {
        let read = SignedPublicKey::from_bytes_many(content)?;
        all.extend(read.collect::<pgp::errors::Result<Vec<_>>>()?);
    }
    ensure!(
        !all.is_empty(),
        "it has no OpenPGP certificate, armoured or binary"
    );
    Ok(all)
}

fn issuer(signature: &Signature) -> String {
    signature
        .issuer_fingerprint()
        .first()
        .map(ToString::to_string)
        .or_else(|| {
            signature
                .issuer_key_id()
                .first()
                .map(|id| format!("{id:?}"))
        })
        .unwrap_or_else(|| "that it does not name".to_owned())
}

fn is_from(signature: &Signature, key: &impl KeyDetails) -> bool {
    let fingerprints = signature.issuer_fingerprint();
    if fingerprints.is_empty() {
        return signature.issuer_key_id().contains(&&key.legacy_key_id());
    }
    fingerprints.contains(&&key.fingerprint())
}

/// Kind, digest and times of the signature over the text.
fn signature_is_sound(signature: &Signature, key: &impl KeyDetails, now: u64) -> Result<()> {
    ensure!(
        matches!(
            signature.typ(),
            Some(SignatureType::Text | SignatureType::Binary)
        ),
        "it does not sign a document"
    );
    strong(signature)?;
    let created = created(signature)?;
    ensure!(
        created >= u64::from(key.created_at().as_secs()),
        "it is older than its key"
    );
    ensure!(
        created <= now + CLOCK_TOLERANCE,
        "it was made in the future; is this machine's clock right?"
    );
    if let Some(lifetime) = signature
        .signature_expiration_time()
        .filter(|d| d.as_secs() > 0)
    {
        ensure!(
            created + u64::from(lifetime.as_secs()) > now,
            "it has expired"
        );
    }
    Ok(())
}

fn strong(signature: &Signature) -> Result<()> {
    let algorithm = signature.hash_alg();
    ensure!(
        matches!(
            algorithm,
            Some(
                HashAlgorithm::Sha256
                    | HashAlgorithm::Sha384
                    | HashAlgorithm::Sha512
                    | HashAlgorithm::Sha3_256
                    | HashAlgorithm::Sha3_512
            )
        ),
        "its digest {algorithm:?} is too weak"
    );
    Ok(())
}

fn created(signature: &Signature) -> Result<u64> {
    let time = signature.created().context("it has no creation time")?;
    Ok(u64::from(time.as_secs()))
}

/// The primary key's self-signature is valid, not expired, not revoked, and permits signing if required.
fn primary_is_good(certificate: &SignedPublicKey, signs: bool, now: u64) -> Result<()> {
    let primary = &certificate.primary_key;
    ensure!(
        certificate.details.revocation_signatures.is_empty(),
        "its primary key is revoked"
    );
    let mut own = Vec::new();
    for user in &certificate.details.users {
        for signature in &user.signatures {
            if is_from(signature, primary)
                && signature.is_certification()
                && signature
                    .verify_certification(primary, Tag::UserId, &user.id)
                    .is_ok()
            {
                own.push(signature);
            }
        }
    }
    for signature in &certificate.details.direct_signatures {
        if is_from(signature, primary) && signature.verify_key(primary).is_ok() {
            own.push(signature);
        }
    }
    let newest = newest(own).context("its primary key has no valid signature of itself")?;
    not_expired(newest, primary, now).context("its primary key")?;
    ensure!(
        !signs || newest.key_flags().sign(),
        "its primary key is not meant to sign documents"
    );
    Ok(())
}

/// The subkey is bound by its primary key and, for signing, has a back-signature; not expired, not revoked.
fn subkey_is_good(
    certificate: &SignedPublicKey,
    subkey: &SignedPublicSubKey,
    now: u64,
) -> Result<()> {
    let primary = &certificate.primary_key;
    let mut bindings = Vec::new();
    for signature in &subkey.signatures {
        if signature
            .verify_subkey_binding(primary, &subkey.key)
            .is_err()
        {
            continue;
        }
        ensure!(
            signature.typ() != Some(SignatureType::SubkeyRevocation),
            "its subkey is revoked"
        );
        bindings.push(signature);
    }
    let binding = newest(bindings).context("its subkey is not bound to the primary key")?;
    not_expired(binding, &subkey.key, now).context("its subkey")?;
    ensure!(
        binding.key_flags().sign(),
        "its subkey is not meant to sign"
    );
    let back = binding
        .embedded_signature()
        .context("its subkey does not acknowledge its primary key")?;
    strong(back)?;
    back.verify_primary_key_binding(&subkey.key, primary)
        .context("its subkey does not acknowledge its primary key")
}

fn newest(signatures: Vec<&Signature>) -> Option<&Signature> {
    signatures
        .into_iter()
        .filter(|signature| strong(signature).is_ok())
        .max_by_key(|signature| signature.created().map(|time| time.as_secs()))
}

fn not_expired(own: &Signature, key: &impl VerifyingKey, now: u64) -> Result<()> {
    if let Some(lifetime) = own.key_expiration_time().filter(|d| d.as_secs() > 0) {
        let end = u64::from(key.created_at().as_secs()) + u64::from(lifetime.as_secs());
        ensure!(end > now, "expired at {}", rfc3339(end));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
