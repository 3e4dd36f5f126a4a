//! Content in a registry: an artifact's layer, found through index and manifest, each by its digest.
//!
//! `oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST][?title=NAME]`. A manifest with one layer gives that layer; of several,
//! `title` chooses by the annotation `org.opencontainers.image.title`, which is where tools that push files put their names.

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{StatusCode, Url};

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::http_source::{HttpSource, Requesting};
use crate::oci::{self, Descriptor, Document, digest_of, sha256};
use crate::registry::{self, NO_TOKEN};
use crate::request::{Request, Small, header, small_with};
use crate::want::Method;

/// The annotation with a file's name.
const TITLE: &str = "org.opencontainers.image.title";

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    shown: String,
    pub(crate) base: String,
    /// A tag, or a digest.
    pub(crate) version: String,
    pub(crate) title: Option<String>,
    /// The layer's address and digest, once the manifest was read.
    layer: Option<(String, String)>,
    token: Option<String>,
    /// Whether a refused token was replaced once.
    renewed: bool,
}

impl Artifact {
    pub(crate) fn new(shown: String, base: String, version: String, title: Option<String>) -> Self {
        Self {
            shown,
            base,
            version,
            title,
            layer: None,
            token: None,
            renewed: false,
        }
    }

    async fn make_request(&mut self, client: &Client) -> Result<Request, Ending> {
        let (address, digest) = match self.layer.clone() {
            Some(layer) => layer,
            None => {
                let digest = self.locate(client).await?;
                let layer = (format!("{}/blobs/{digest}", self.base), digest);
                self.layer.insert(layer).clone()
            }
        };
        let address = Url::parse(&address)
            .map_err(|error| Ending::refused(&self.shown, error.to_string()))?;
        Ok(Request {
            address: address.into(),
            headers: self.headers()?,
            digest: sha256(&digest),
        })
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
        if let Document::Index(index) = document {
            let chosen = index
                .for_linux(oci::architecture())
                .map_err(|why| refuse(self, &why))?;
            document = self.document(client, &chosen.digest).await?;
        }
        let Document::Manifest(manifest) = document else {
            return Err(refuse(self, "the index names another index"));
        };
        let layers = manifest.layers;
        let named = |layer: &&Descriptor| match &self.title {
            Some(title) => layer.annotations.get(TITLE) == Some(title),
            None => true,
        };
        let found: Vec<&Descriptor> = layers.iter().filter(named).collect();
        match found.as_slice() {
            [layer] if sha256(&layer.digest).is_some() => Ok(layer.digest.clone()),
            [_] => Err(refuse(self, "the layer's digest is not SHA-256")),
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
        let expected = digest_of(version).map_err(|why| Ending::refused(&self.shown, why))?;
        let url = format!("{}/manifests/{version}", self.base);
        let mut answer = self.ask(client, &url).await?;
        if answer.status == StatusCode::UNAUTHORIZED && self.token.is_none() {
            self.get_token(client, &url, &answer).await?;
            answer = self.ask(client, &url).await?;
        }
        if !answer.status.is_success() {
            return Err(Ending::of(&url, answer.status, &answer.headers, &[]));
        }
        if let Some(expected) = expected {
            let found = expected.of_same_kind(&answer.body);
            if found != expected {
                return Err(Ending::Final(Failure::Digest {
                    url,
                    expected: Box::new(expected),
                    found: Box::new(found),
                }));
            }
        }
        Document::read(&answer.body)
            .map_err(|_| Ending::refused(&url, "the registry's answer is not a manifest"))
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
        let Some(challenge) = challenge else {
            return Err(ending);
        };
        let address = registry::token_url(challenge, &self.base);
        let address = address.map_err(|why| Ending::refused(&self.shown, why))?;
        let most = limit(registry::TOKEN_LIMIT);
        let client = client.for_tokens(&self.base);
        let client = client.map_err(|error| Ending::broken(error.to_string()))?;
        let http = &client.http;
        let answer = small_with(http, Method::Get, &address, HeaderMap::new(), most).await?;
        if !answer.status.is_success() {
            return Err(Ending::of(&address, answer.status, &answer.headers, &[]));
        }
        let token = registry::token_of(&answer.body);
        self.token = Some(token.ok_or_else(|| Ending::broken(NO_TOKEN))?);
        Ok(())
    }
}

impl HttpSource for Artifact {
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a> {
        Box::pin(self.make_request(client))
    }

    // A token is valid for minutes; a download may resume after that.
    fn change_credentials(&mut self) -> Option<&'static str> {
        if self.renewed || self.token.is_none() {
            return None;
        }
        self.renewed = true;
        self.token = None;
        self.layer = None;
        Some("the registry rejects the token; requesting a new one")
    }
}

fn limit(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
