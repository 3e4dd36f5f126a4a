//! Content in a registry: an artifact's layer, found through index and manifest, each by its digest.
//!
//! `oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST][?title=NAME]`. A manifest with one layer gives that layer; of several,
//! `title` chooses by the annotation `org.opencontainers.image.title`, which is where tools that push files put their names.

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{StatusCode, Url};
use serde::Deserialize;

use crate::digest::Digest;
use crate::ending::Ending;
use crate::registry;
use crate::request::{Small, small_with};
use crate::route::{Asked, header};
use crate::sigv4::decoded;
use crate::{Client, Failure, Method};

/// The annotation with a file's name.
const TITLE: &str = "org.opencontainers.image.title";

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    shown: String,
    base: String,
    /// A tag, or a digest.
    version: String,
    title: Option<String>,
    /// The layer's address and digest, once they are known.
    layer: Option<(String, String)>,
    token: Option<String>,
    /// Whether a token was taken back once.
    renewed: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// An index or a manifest: which it is shows by what it has.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

impl Content {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected oci://REGISTRY/REPOSITORY, with :TAG or @sha256:DIGEST behind it".to_owned()
        };
        let text = text.split_once('#').map_or(text, |(text, _)| text);
        let (shown, query) = text.split_once('?').unwrap_or((text, ""));
        let (_, rest) = shown.split_once("://").ok_or_else(wrong)?;
        let (registry, path) = rest.split_once('/').ok_or_else(wrong)?;
        let (path, digest) = match path.split_once('@') {
            Some((path, digest)) => (path, Some(digest)),
            None => (path, None),
        };
        let (repository, tag) = match path.rsplit_once(':') {
            Some((repository, tag)) => (repository, tag),
            None => (path, "latest"),
        };
        let plain = |text: &str, also: &[u8]| {
            let good =
                |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b) || also.contains(&b);
            !text.is_empty() && text.bytes().all(good)
        };
        if !plain(registry, b":[]") || !plain(repository, b"/") || !plain(tag, b"") {
            return Err(wrong());
        }
        if digest.is_some_and(|digest| sha256(digest).is_none()) {
            return Err("the digest is not sha256: and 64 hexadecimal digits".to_owned());
        }
        let title = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("title="));
        Ok(Self {
            shown: shown.to_owned(),
            base: registry::base(registry, repository),
            version: digest.unwrap_or(tag).to_owned(),
            title: title.map(decoded),
            layer: None,
            token: None,
            renewed: false,
        })
    }

    pub(crate) async fn asked(&mut self, client: &Client) -> Result<Asked, Ending> {
        let (address, digest) = match self.layer.clone() {
            Some(layer) => layer,
            None => {
                let digest = self.locate(client).await?;
                let layer = (format!("{}/blobs/{digest}", self.base), digest);
                self.layer.insert(layer).clone()
            }
        };
        Ok(Asked {
            address: Url::parse(&address)
                .map_err(|error| Ending::refused(&self.shown, error.to_string()))?,
            headers: self.headers()?,
            digest: sha256(&digest),
        })
    }

    /// A token lives for minutes; a download may be taken up after it.
    pub(crate) fn otherwise(&mut self) -> Option<&'static str> {
        if self.renewed || self.token.is_none() {
            return None;
        }
        self.renewed = true;
        self.token = None;
        self.layer = None;
        Some("the registry no longer takes the token; a new one is asked for")
    }

    fn headers(&self) -> Result<HeaderMap, Ending> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let (_, value) = header("authorization", &format!("Bearer {token}"))?;
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }

    /// The digest of the layer.
    async fn locate(&mut self, client: &Client) -> Result<String, Ending> {
        let refuse = |this: &Self, why: &str| Ending::refused(&this.shown, why);
        let mut document = self.document(client, &self.version.clone()).await?;
        if let Some(manifests) = document.manifests {
            let fits = |one: &&Descriptor| match &one.platform {
                None => true,
                Some(platform) => platform.os == "linux" && platform.architecture == architecture(),
            };
            let Some(chosen) = manifests.iter().find(fits) else {
                let why = format!("the index has nothing for linux on {}", architecture());
                return Err(refuse(self, &why));
            };
            document = self.document(client, &chosen.digest).await?;
        }
        let layers = document.layers.unwrap_or_default();
        let named = |layer: &&Descriptor| match &self.title {
            Some(title) => layer.annotations.get(TITLE) == Some(title),
            None => true,
        };
        let found: Vec<&Descriptor> = layers.iter().filter(named).collect();
        match found.as_slice() {
            [layer] if sha256(&layer.digest).is_some() => Ok(layer.digest.clone()),
            [_] => Err(refuse(self, "the layer's digest is no SHA-256")),
            some => {
                let why = format!(
                    "expected one layer, or ?title= with the title of one; found {} of {} that fit",
                    some.len(),
                    layers.len()
                );
                Err(refuse(self, &why))
            }
        }
    }

    async fn document(&mut self, client: &Client, version: &str) -> Result<Document, Ending> {
        let url = format!("{}/manifests/{version}", self.base);
        let mut answer = self.ask(client, &url).await?;
        if answer.status == StatusCode::UNAUTHORIZED && self.token.is_none() {
            self.get_token(client, &url, &answer).await?;
            answer = self.ask(client, &url).await?;
        }
        if !answer.status.is_success() {
            return Err(Ending::of(&url, answer.status, &answer.headers, &[]));
        }
        if let Some(expected) = sha256(version) {
            let found = expected.of_same_kind(&answer.body);
            if found != expected {
                return Err(Ending::Final(Failure::Digest {
                    url,
                    expected: Box::new(expected),
                    found: Box::new(found),
                }));
            }
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| Ending::refused(&url, "the registry's answer is no manifest"))
    }

    async fn ask(&self, client: &Client, url: &str) -> Result<Small, Ending> {
        let mut headers = self.headers()?;
        headers.insert(ACCEPT, HeaderValue::from_static(registry::ACCEPT));
        small_with(
            &client.http,
            Method::Get,
            url,
            headers,
            limit(registry::MANIFEST_LIMIT),
        )
        .await
    }

    async fn get_token(
        &mut self,
        client: &Client,
        url: &str,
        answer: &Small,
    ) -> Result<(), Ending> {
        let ending = Ending::of(url, answer.status, &answer.headers, &[]);
        let challenge = match &ending {
            Ending::Final(Failure::Status { challenge, .. }) => challenge.as_deref(),
            _ => None,
        };
        let Some(address) = challenge.and_then(registry::token_url) else {
            return Err(ending);
        };
        let most = limit(registry::TOKEN_LIMIT);
        let answer =
            small_with(&client.http, Method::Get, &address, HeaderMap::new(), most).await?;
        if !answer.status.is_success() {
            return Err(Ending::of(&address, answer.status, &answer.headers, &[]));
        }
        let token = registry::token_of(&answer.body);
        self.token =
            Some(token.ok_or_else(|| Ending::broken("the registry's answer holds no token"))?);
        Ok(())
    }
}

fn limit(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn sha256(digest: &str) -> Option<Digest> {
    Digest::sha256(digest.strip_prefix("sha256:")?)
}

/// This machine's, as registries name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, base, version) in [
            ("oci://r.example/a/b", "https://r.example/v2/a/b", "latest"),
            (
                "oci://r.example:5000/a:v1",
                "https://r.example:5000/v2/a",
                "v1",
            ),
            ("oci://127.0.0.1:5/a:v1#x", "http://127.0.0.1:5/v2/a", "v1"),
            (
                &format!("oci://r.example/a:v1@{digest}"),
                "https://r.example/v2/a",
                &digest,
            ),
        ] {
            let content = Content::parse(text).unwrap();
            assert_eq!(
                (content.base.as_str(), content.version.as_str()),
                (base, version)
            );
        }
        let content = Content::parse("oci://r.example/a?title=my%20file").unwrap();
        assert_eq!(content.title.as_deref(), Some("my file"));
        for text in [
            "oci://r.example",
            "oci:x",
            "oci://r/a@sha256:12",
            "oci://r/a b",
            "oci:///a",
        ] {
            assert!(Content::parse(text).is_err(), "{text}");
        }
    }
}
