//! Pulls an image from a registry: token, index, manifest, then each blob by its digest into the cache.

use std::fs;

use anyhow::{Context, Result, ensure};
use fetch::{Digest, Failure, Options, Patience, Want, blocking};
use sha2::Digest as _;

use super::read::{Pulled, choose, sha256};
use super::reference::Reference;
use super::types::{DOCKER, IMAGE_INDEX, Index, MANIFEST, Manifest};
use crate::cache::{Cache, hex};
use crate::progress::Step;

/// The most bytes of a manifest, as registries allow them.
const MANIFEST_LIMIT: u64 = 4 << 20;
/// The most bytes of a layer.
const LAYER_LIMIT: u64 = 4 << 30;
/// The most bytes of a token's answer.
const TOKEN_LIMIT: u64 = 64 << 10;

/// Pulls the image that a reference names, for this architecture. Without a digest in it, the reference is trusted to
/// mean whatever the registry says; the digest of what it said is in the result.
///
/// # Errors
/// If the registry refuses, or has no image for the architecture, or a blob is not what its digest says.
pub fn pull(
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let mut session = Session::new(reference)?;
    pull_by(&mut session, cache, reference, architecture, step)
        .with_context(|| format!("pulling {reference}"))
}

fn pull_by(
    session: &mut Session,
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let mut digest = reference.digest().map(str::to_owned);
    let mut text = session.manifest(&reference.version, digest.as_deref())?;
    if let Ok(index) = serde_json::from_slice::<Index>(&text) {
        let chosen = choose(&index, architecture)?.digest.clone();
        text = session.manifest(&chosen, Some(&chosen))?;
        digest = Some(chosen);
    }
    let manifest: Manifest = serde_json::from_slice(&text).context("reading the manifest")?;
    let digest = digest.unwrap_or_else(|| format!("sha256:{}", hex(&sha2::Sha256::digest(&text))));
    step.total(manifest.layers.iter().map(|layer| layer.size).sum());
    let mut layers = Vec::new();
    for layer in &manifest.layers {
        let digits = sha256(&layer.digest)?;
        let path = cache.object(digits);
        if fs::metadata(&path).is_ok_and(|found| found.len() == layer.size) {
            step.advance(layer.size);
        } else {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            ensure!(
                layer.size <= LAYER_LIMIT,
                "a layer has {} bytes, expected at most {LAYER_LIMIT}",
                layer.size
            );
            let url = session.url(&format!("blobs/{}", layer.digest));
            let digest = Digest::sha256(digits);
            session.authorised(|client, headers| {
                let want = Want {
                    digest,
                    headers,
                    ..Want::new(&url, layer.size)
                };
                client.file(&want, &path, &|bytes| step.advance(bytes))
            })?;
        }
        layers.push((layer.media_type.clone(), path));
    }
    Ok(Pulled { digest, layers })
}

/// A talk with one registry about one repository.
struct Session {
    client: blocking::Client,
    base: String,
    token: Option<String>,
}

impl Session {
    fn new(reference: &Reference) -> Result<Self> {
        // As every other client does: plain http only to this machine itself.
        let host = reference.registry.split(':').next().unwrap_or_default();
        let scheme = if matches!(host, "localhost" | "127.0.0.1") {
            "http"
        } else {
            "https"
        };
        Ok(Self {
            client: blocking::Client::new(&Options::default())?,
            base: format!(
                "{scheme}://{}/v2/{}",
                reference.registry, reference.repository
            ),
            token: None,
        })
    }

    fn url(&self, below: &str) -> String {
        format!("{}/{below}", self.base)
    }

    fn manifest(&mut self, version: &str, digest: Option<&str>) -> Result<Vec<u8>> {
        let url = self.url(&format!("manifests/{version}"));
        let digest = digest.map(sha256).transpose()?.and_then(Digest::sha256);
        let accept = [IMAGE_INDEX, MANIFEST, DOCKER[0], DOCKER[1]].join(", ");
        self.authorised(|client, mut headers| {
            headers.push(("Accept".to_owned(), accept.clone()));
            let want = Want {
                digest,
                headers,
                patience: Patience {
                    attempts: Some(3),
                    ..Patience::default()
                },
                ..Want::new(&url, MANIFEST_LIMIT)
            };
            client.bytes(&want, &|_| ())
        })
    }

    /// Asks; if the registry wants a token first, gets one where it says, and asks again.
    fn authorised<T>(
        &mut self,
        ask: impl Fn(&blocking::Client, Vec<(String, String)>) -> Result<T, Failure>,
    ) -> Result<T, anyhow::Error> {
        match ask(&self.client, self.headers()) {
            Err(Failure::Status {
                code: 401,
                challenge: Some(challenge),
                url,
            }) => {
                let token = token_url(&challenge).with_context(|| {
                    format!("{url}: the registry asks for {challenge:?}; only Bearer tokens are known here")
                })?;
                let want = Want::new(&token, TOKEN_LIMIT);
                let answer = self.client.bytes(&want, &|_| ())?;
                self.token = Some(token_of(&answer)?);
                Ok(ask(&self.client, self.headers())?)
            }
            other => Ok(other?),
        }
    }

    fn headers(&self) -> Vec<(String, String)> {
        self.token
            .iter()
            .map(|token| ("Authorization".to_owned(), format!("Bearer {token}")))
            .collect()
    }
}

fn token_of(answer: &[u8]) -> Result<String> {
    #[derive(serde::Deserialize)]
    struct Token {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Token = serde_json::from_slice(answer).context("reading the registry's token")?;
    answer
        .token
        .or(answer.access_token)
        .context("the registry's answer holds no token")
}

/// Where a token is to be had: `Bearer realm="…",service="…",scope="…"` as one address.
fn token_url(challenge: &str) -> Option<String> {
    let (scheme, rest) = challenge.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut realm = None;
    let mut query = Vec::new();
    let mut rest = rest.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        // A value in quotes may hold commas: scope="repository:a:pull,push".
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        match key.trim() {
            "realm" => realm = Some(value),
            key @ ("service" | "scope") => query.push(format!("{key}={}", encoded(value))),
            _ => {}
        }
        rest = after.trim_start_matches([',', ' ']);
    }
    let realm = realm?;
    let mark = if realm.contains('?') { '&' } else { '?' };
    Some(format!("{realm}{mark}{}", query.join("&")))
}

/// Percent-encodes what may not stand in a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[byte]).to_ascii_uppercase());
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_becomes_an_address() {
        for (challenge, expected) in [
            (
                r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#,
                Some(
                    "https://auth.example/token?service=r.example&scope=repository:a/b:pull%2Cpush",
                ),
            ),
            (
                r#"bearer realm="https://auth.example/t?x=1", service="a b""#,
                Some("https://auth.example/t?x=1&service=a%20b"),
            ),
            (r#"Basic realm="x""#, None),
            ("Bearer", None),
            (r#"Bearer service="x""#, None),
        ] {
            assert_eq!(token_url(challenge).as_deref(), expected, "{challenge}");
        }
    }
}
