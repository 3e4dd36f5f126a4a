//! Statements: what a machine says about a result, with its signature. The note of a store under the name of step and key.

use anyhow::{Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::keys::{PublicKey, SecretKey};
use crate::host::cache::Key;
use crate::store::Object;

/// The form of statements and archives; another form has another name, so that no statement has two meanings.
const FORM: &str = "slipway-step-1";
/// Size limit of an archive, bytes.
pub(super) const LARGEST: u64 = 4 << 30;

/// The text that is signed, and the signature.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    statement: String,
    signature: String,
}

/// The name of the note of a result.
pub(super) fn name(step: &str, key: &Key) -> String {
    format!("{step}-{key}")
}

fn text(step: &str, key: &Key, archive: &Object) -> String {
    let Object { sha256, size } = archive;
    format!("{FORM}\nstep {step}\nkey {key}\nsha256 {sha256}\nsize {size}\n")
}

/// A statement about a result's archive, signed.
pub(super) fn sign(step: &str, key: &Key, archive: &Object, secret: &SecretKey) -> Result<String> {
    let statement = text(step, key, archive);
    let signature = STANDARD.encode(secret.sign(&statement));
    Ok(serde_json::to_string(&Signed {
        statement,
        signature,
    })?)
}

/// The archive of a result, if one of these keys has signed that it is the result of this step with this key.
///
/// # Errors
/// Why the note says nothing that can be trusted.
pub(super) fn verify(note: &[u8], step: &str, key: &Key, trusted: &[PublicKey]) -> Result<Object> {
    let Ok(Signed {
        statement,
        signature,
    }) = serde_json::from_slice(note)
    else {
        bail!("it is not a signed statement");
    };
    let signature = STANDARD.decode(signature).unwrap_or_default();
    ensure!(
        trusted
            .iter()
            .any(|key| key.has_signed(&statement, &signature)),
        "none of the trusted keys has signed it"
    );
    let field = |name: &str| {
        let mut lines = statement.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    let archive = Object {
        sha256: field("sha256").unwrap_or_default().to_owned(),
        size: field("size")
            .and_then(|size| size.parse().ok())
            .unwrap_or(0),
    };
    // The text is made again of what was read and of what was asked for: nothing else passes.
    ensure!(
        statement == text(step, key, &archive),
        "it is signed for another step, key or form"
    );
    ensure!(
        fetch::Digest::sha256(&archive.sha256).is_some() && archive.size <= LARGEST,
        "it names no archive of at most {LARGEST} bytes"
    );
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_statement_of_this_step_by_a_trusted_key_counts() {
        let folder = tempfile::tempdir().unwrap();
        let secret = |name: &str| SecretKey::create(name, &folder.path().join(name)).unwrap();
        let (ours, theirs) = (secret("ours"), secret("theirs"));
        let [key, other] = [1, 2].map(|version| Key::of_data("test", version).finish());
        let archive = Object {
            sha256: "ab".repeat(32),
            size: 7,
        };
        let trusted = [ours.public().unwrap()];
        let of = |note: &str, step: &str, key: &Key| verify(note.as_bytes(), step, key, &trusted);
        let good = sign("kernel", &key, &archive, &ours).unwrap();
        assert_eq!(of(&good, "kernel", &key).unwrap(), archive);
        let why = |note: &str, step: &str, key: &Key| of(note, step, key).unwrap_err().to_string();
        assert!(why(&good, "kernel", &other).contains("another step"));
        assert!(why(&good, "root", &key).contains("another step"));
        let foreign = sign("kernel", &key, &archive, &theirs).unwrap();
        assert!(why(&foreign, "kernel", &key).contains("none of the trusted keys"));
        for (from, to) in [("abab", "abac"), ("size 7", "size 8"), ("step-1", "step-2")] {
            let changed = good.replacen(from, to, 1);
            assert_ne!(changed, good);
            assert!(why(&changed, "kernel", &key).contains("none of the trusted keys"));
        }
        for note in ["", "{}", &good[..good.len() / 2]] {
            assert!(why(note, "kernel", &key).contains("not a signed statement"));
        }
        // Signed, and still not what it has to be.
        for (sha256, size) in [("ab", 7), (&*"ab".repeat(32), LARGEST + 1)] {
            let archive = Object {
                sha256: sha256.to_owned(),
                size,
            };
            let note = sign("kernel", &key, &archive, &ours).unwrap();
            assert!(why(&note, "kernel", &key).contains("names no archive"));
        }
        assert!(verify(good.as_bytes(), "kernel", &key, &[]).is_err());
    }
}
