//! Keys that sign results of steps: Ed25519 (RFC 8032). A secret key is a file, a public key is one word.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

/// The first word of a secret key's file.
const SECRET: &str = "slipway-cache-secret";
/// Bytes of a seed and of a public key.
const LENGTH: usize = 32;

/// A public key: `NAME:BASE64`. The name is for people; the signature alone counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    bytes: [u8; LENGTH],
}

impl FromStr for PublicKey {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            anyhow!(
                "{text:?} is not a public key: expected NAME:BASE64, as `slipway cache keygen` prints it"
            )
        };
        let (name, encoded) = text.split_once(':').ok_or_else(wrong)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| wrong())?;
        let bytes = bytes.try_into().map_err(|_| wrong())?;
        check_name(name).map_err(|_| wrong())?;
        Ok(Self {
            name: name.to_owned(),
            bytes,
        })
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, STANDARD.encode(self.bytes))
    }
}

impl PublicKey {
    /// Whether the key has signed the message.
    pub(super) fn has_signed(&self, message: &str, signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.bytes);
        key.verify(message.as_bytes(), signature).is_ok()
    }
}

/// A secret key.
pub struct SecretKey {
    name: String,
    pair: Ed25519KeyPair,
}

/// Without the secret.
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretKey").field(&self.name).finish()
    }
}

impl SecretKey {
    /// Makes a key and writes it to a new file that only its owner reads. A folder that is missing is made, for its owner alone.
    ///
    /// # Errors
    /// If the name has other characters than letters, digits, `-`, `_` and `.`, the file exists, or cannot be written.
    pub fn create(name: &str, path: &Path) -> Result<Self> {
        check_name(name)?;
        let mut seed = [0; LENGTH];
        let filled = SystemRandom::new().fill(&mut seed);
        filled.map_err(|_| anyhow!("the kernel gave no random bytes"))?;
        let key = Self::from_seed(name, &seed)?;
        let about = || format!("writing {}", path.display());
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        if let Some(folder) = folder {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .with_context(|| format!("making the folder {}", folder.display()))?;
        }
        let mut file = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .with_context(about)?;
        writeln!(file, "{SECRET} {name} {}", STANDARD.encode(seed)).with_context(about)?;
        file.as_file().sync_all().with_context(about)?;
        file.persist_noclobber(path).with_context(about)?;
        Ok(key)
    }

    /// Reads the file of a key.
    ///
    /// # Errors
    /// If it cannot be read, others than its owner can read it, or it is not of a key.
    pub fn read(path: &Path) -> Result<Self> {
        let about = || format!("reading the signing key {}", path.display());
        let mode = fs::metadata(path).with_context(about)?.permissions().mode();
        ensure!(
            mode & 0o077 == 0,
            "{}: others can read it (mode {:o}); `chmod 600` it",
            about(),
            mode & 0o777
        );
        let text = fs::read_to_string(path).with_context(about)?;
        // No part of the text goes into an error: it is a secret.
        let words: Vec<&str> = text.split_whitespace().collect();
        let [SECRET, name, seed] = words[..] else {
            bail!("{}: expected a file of `slipway cache keygen`", about());
        };
        let seed = STANDARD.decode(seed).ok();
        let seed = seed.filter(|seed| seed.len() == LENGTH);
        let seed = seed.with_context(|| format!("{}: it is damaged", about()))?;
        Self::from_seed(name, &seed).with_context(about)
    }

    fn from_seed(name: &str, seed: &[u8]) -> Result<Self> {
        check_name(name)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(seed);
        Ok(Self {
            name: name.to_owned(),
            pair: pair.map_err(|_| anyhow!("it is damaged"))?,
        })
    }

    /// Its public key.
    ///
    /// # Errors
    /// If the key has another length, which none of Ed25519 has.
    pub fn public(&self) -> Result<PublicKey> {
        let bytes = self.pair.public_key().as_ref().try_into();
        Ok(PublicKey {
            name: self.name.clone(),
            bytes: bytes.context("a public key of another length")?,
        })
    }

    /// The signature of a message.
    pub(super) fn sign(&self, message: &str) -> Vec<u8> {
        self.pair.sign(message.as_bytes()).as_ref().to_vec()
    }
}

fn check_name(name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    ensure!(
        !name.is_empty() && name.bytes().all(good),
        "the key's name {name:?} has to be of letters, digits, -, _ and ."
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_once_read_by_its_owner_and_signs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = SecretKey::create("ci-1", &path).unwrap();
        let read = SecretKey::read(&path).unwrap();
        let public = made.public().unwrap();
        assert_eq!(read.public().unwrap(), public);
        let word = public.to_string();
        assert!(word.starts_with("ci-1:"));
        assert_eq!(word.parse::<PublicKey>().unwrap(), public);
        let signature = read.sign("message");
        assert!(public.has_signed("message", &signature));
        assert!(!public.has_signed("messages", &signature));
        assert!(!public.has_signed("message", &signature[1..]));

        let error = SecretKey::create("ci-1", &path).unwrap_err();
        assert!(format!("{error:#}").contains("exists"), "{error:#}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = SecretKey::read(&path).unwrap_err();
        assert!(format!("{error:#}").contains("mode 640"), "{error:#}");
        // Neither a display nor an error has the secret.
        let text = fs::read_to_string(&path).unwrap();
        let secret = text.split_whitespace().nth(2).unwrap();
        assert!(!format!("{made:?}").contains(secret));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in [&secret[1..], &format!("{SECRET} a b/c {secret}")] {
            fs::write(&path, damaged).unwrap();
            let error = format!("{:#}", SecretKey::read(&path).unwrap_err());
            assert!(!error.contains(secret), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_public_key_is_refused() {
        for text in ["", "ci", "ci:", "ci:AAAA", ":AAAA", "c i:AAAA", "ci:!"] {
            let error = text.parse::<PublicKey>().unwrap_err();
            assert!(error.to_string().contains("NAME:BASE64"), "{error}");
        }
    }
}
