//! One repository of a registry: its documents and blobs, and the token for them.

use std::path::Path;

use crate::client::Client;
use crate::download;
use crate::failure::{Failure, shown};
use crate::oci::{Descriptor, digest_of, sha256};
use crate::registry::{self, ACCEPT, MANIFEST_LIMIT, NO_TOKEN, TOKEN_LIMIT};
use crate::want::{Patience, Want};

/// A repository, with the token of the last request.
#[derive(Clone)]
pub struct Repository {
    base: String,
    token: Option<String>,
    patience: Option<Patience>,
}

/// A token is a secret.
impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Repository").field(&self.base).finish()
    }
}

type Headers = Vec<(String, String)>;

impl Repository {
    /// The repository of this name at a registry, `HOST[:PORT]`.
    #[must_use]
    pub fn new(registry: &str, repository: &str) -> Self {
        Self {
            base: registry::base(registry, repository),
            token: None,
            patience: None,
        }
    }

    /// The same with another patience for each document and each blob.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = Some(patience);
        self
    }

    /// The index or manifest that a tag or a digest refers to; verified if it is a digest.
    ///
    /// # Errors
    /// [`Failure`], as for every download.
    pub async fn document(&mut self, client: &Client, version: &str) -> Result<Vec<u8>, Failure> {
        let url = format!("{}/manifests/{version}", self.base);
        let url = url.as_str();
        let digest = digest_of(version).map_err(|why| Failure::Address {
            url: shown(url),
            why,
        })?;
        let patience = self.patience.unwrap_or(Patience {
            attempts: Some(3),
            ..Patience::default()
        });
        self.authorized(client, async |mut headers: Headers| {
            headers.push(("Accept".to_owned(), ACCEPT.to_owned()));
            let want = Want {
                digest,
                headers,
                patience,
                ..Want::new(url, MANIFEST_LIMIT)
            };
            download::bytes(client, &want, &|_| (), &|_| ()).await
        })
        .await
    }

    /// Fetches a blob into the file `dest`, verified by its digest; see [`crate::file()`].
    ///
    /// # Errors
    /// [`Failure`], as for every download; also if the digest is not SHA-256.
    pub async fn blob(
        &mut self,
        client: &Client,
        blob: &Descriptor,
        dest: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        let url = format!("{}/blobs/{}", self.base, blob.digest);
        let url = url.as_str();
        let patience = self.patience.unwrap_or_default();
        self.authorized(client, async |headers: Headers| {
            let want = Want {
                digest: sha256(&blob.digest),
                headers,
                patience,
                ..Want::new(url, blob.size)
            };
            download::file(client, &want, dest, on_bytes).await
        })
        .await
    }

    /// Sends a request; if the registry requires a token, fetches one from the service that it names, and repeats the
    /// request.
    async fn authorized<T>(
        &mut self,
        client: &Client,
        ask: impl AsyncFn(Headers) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match ask(self.headers()).await {
            Err(Failure::Status {
                code: 401,
                challenge: Some(challenge),
                url,
            }) => {
                let refuse = |why: String| Failure::Refused {
                    url: url.clone(),
                    why,
                };
                let service = registry::token_url(&challenge, &self.base).map_err(&refuse)?;
                let want = Want::new(&service, TOKEN_LIMIT);
                let tokens = client.for_tokens(&self.base);
                let tokens = tokens.map_err(|error| refuse(error.to_string()))?;
                let answer = download::bytes(&tokens, &want, &|_| (), &|_| ()).await?;
                let Some(token) = registry::token_of(&answer) else {
                    return Err(Failure::Refused {
                        url: shown(&service),
                        why: NO_TOKEN.to_owned(),
                    });
                };
                self.token = Some(token);
                ask(self.headers()).await
            }
            other => other,
        }
    }

    fn headers(&self) -> Headers {
        let token = self.token.iter();
        token
            .map(|token| ("Authorization".to_owned(), format!("Bearer {token}")))
            .collect()
    }
}
