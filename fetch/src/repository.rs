//! One repository of a registry: its documents and blobs, and the token or the login for them.

use std::path::Path;

use crate::client::Client;
use crate::docker_hub;
use crate::download;
use crate::failure::{Failure, shown};
use crate::login::{Login, server_of};
#[cfg(feature = "logins")]
use crate::oauth;
use crate::oci::{Descriptor, digest_of, sha256};
use crate::registry::{self, ACCEPT, Challenge, MANIFEST_LIMIT, NO_TOKEN, TOKEN_LIMIT};
use crate::want::{Patience, Want};

/// A repository, with what its registry asked for at the last request.
#[derive(Clone)]
pub struct Repository {
    registry: String,
    name: String,
    pub(crate) base: String,
    /// The value of the header.
    authorization: Option<String>,
    pub(crate) patience: Option<Patience>,
}

/// A token is a secret.
impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Repository").field(&self.base).finish()
    }
}

pub(crate) type Headers = Vec<(String, String)>;

impl Repository {
    /// The repository of this name at a registry, `HOST[:PORT]`. Its login is looked for by the host that is asked.
    #[must_use]
    pub fn new(registry: &str, repository: &str) -> Self {
        Self {
            registry: docker_hub::host_of(registry).to_owned(),
            name: repository.to_owned(),
            base: registry::base(registry, repository),
            authorization: None,
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
        let patience = self.few_attempts();
        let plain = client.without_logins();
        self.authorized(client, async |mut headers: Headers| {
            headers.push(("Accept".to_owned(), ACCEPT.to_owned()));
            let want = Want {
                digest,
                headers,
                patience,
                ..Want::new(url, MANIFEST_LIMIT)
            };
            download::bytes(&plain, &want, &|_| (), &|_| ()).await
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
        let plain = client.without_logins();
        self.authorized(client, async |headers: Headers| {
            let want = Want {
                digest: sha256(&blob.digest),
                headers,
                patience,
                ..Want::new(url, blob.size)
            };
            download::file(&plain, &want, dest, on_bytes).await
        })
        .await
    }

    /// Sends a request; if the registry refuses it, gets what it asks for, and repeats the request.
    pub(crate) async fn authorized<T>(
        &mut self,
        client: &Client,
        ask: impl AsyncFn(Headers) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (url, challenge) = match ask(self.headers()).await {
            Err(Failure::Status {
                code: 401,
                challenge: Some(challenge),
                url,
                ..
            }) => (url, challenge),
            other => return other,
        };
        let refuse = |why: String| Failure::Refused {
            url: url.clone(),
            why,
        };
        let challenge = Challenge::read(&challenge, &self.base).map_err(&refuse)?;
        let login = match client.logins() {
            Some(logins) => logins.of_repository(&self.registry, &self.name),
            None => Ok(None),
        };
        let login = login.map_err(&refuse)?;
        let note = self.note(client, login.as_ref());
        self.authorization = Some(match (&challenge, &login) {
            (Challenge::Basic, None) => {
                return Err(Failure::Status {
                    url,
                    code: 401,
                    challenge: None,
                    note,
                });
            }
            (Challenge::Basic, Some(login)) if login.is_identity => {
                let from = &login.from;
                return Err(refuse(format!(
                    "the registry wants a user and a password, and {from} has an identity token, which a token service takes alone"
                )));
            }
            (Challenge::Basic, Some(login)) => login.basic(),
            (Challenge::Token(service), login) => {
                let token = self.token(client, service, login.as_ref(), &refuse).await;
                let token = token.map_err(|failure| {
                    // A service refuses a token that it does not take by 400 too (RFC 6749, 5.2).
                    with_note(failure, &[400, 401, 403], note.clone())
                });
                format!("Bearer {}", token?)
            }
        });
        let answer = ask(self.headers()).await;
        answer.map_err(|failure| with_note(failure, &[401, 403], note))
    }

    /// A token of the registry's service, for the user of a login or for anybody.
    async fn token(
        &self,
        client: &Client,
        service: &str,
        login: Option<&Login>,
        refuse: &impl Fn(String) -> Failure,
    ) -> Result<String, Failure> {
        let mut want = Want {
            patience: self.patience.unwrap_or_default(),
            ..Want::new(service, TOKEN_LIMIT)
        };
        if let Some(login) = login.filter(|_| cfg!(feature = "logins")) {
            if !registry::is_safe_for_logins(service) {
                let service = shown(service);
                return Err(refuse(format!(
                    "the registry's token service {service} is not https, and gets no password"
                )));
            }
            if !login.is_identity {
                want.headers = vec![("Authorization".to_owned(), login.basic())];
            }
        }
        let tokens = client.for_tokens(&self.base);
        let tokens = tokens.map_err(|error| refuse(error.to_string()))?;
        let answer = match login {
            #[cfg(feature = "logins")]
            Some(login) if login.is_identity => {
                oauth::answer(&tokens, service, &login.password, self.few_attempts()).await?
            }
            _ => download::bytes(&tokens, &want, &|_| (), &|_| ()).await?,
        };
        registry::token_of(&answer).ok_or_else(|| Failure::Refused {
            url: shown(service),
            why: NO_TOKEN.to_owned(),
        })
    }

    /// What a refusal says about the login.
    fn note(&self, client: &Client, login: Option<&Login>) -> Option<String> {
        match login {
            Some(login) => {
                let from = &login.from;
                Some(match login.is_identity {
                    true => format!("the identity token that was sent comes from {from}"),
                    false => format!("the user and the password that were sent come from {from}"),
                })
            }
            None => {
                let logins = client.logins()?;
                Some(logins.missing(server_of(&self.base)))
            }
        }
    }

    /// The patience for a document, of which a server has few bytes.
    pub(crate) fn few_attempts(&self) -> Patience {
        self.patience.unwrap_or(Patience {
            attempts: Some(3),
            ..Patience::default()
        })
    }

    fn headers(&self) -> Headers {
        let value = self.authorization.iter();
        value
            .map(|value| ("Authorization".to_owned(), value.clone()))
            .collect()
    }
}

/// The failure with what is known of the login, if the server refuses that: by one of these statuses.
fn with_note(failure: Failure, refusals: &[u16], said: Option<String>) -> Failure {
    if !cfg!(feature = "logins") {
        return failure;
    }
    match failure {
        Failure::Status {
            url,
            code,
            challenge,
            note: None,
        } if refusals.contains(&code) => Failure::Status {
            url,
            code,
            challenge,
            note: said,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_looked_for_by_the_host_that_is_asked() {
        for (registry, host) in [
            (docker_hub::NAME, docker_hub::HOST),
            (docker_hub::HOST, docker_hub::HOST),
            ("registry.example:5000", "registry.example:5000"),
        ] {
            let repository = Repository::new(registry, "a/b");
            assert_eq!(repository.registry, host);
            let base = format!("https://{host}/v2/a/b");
            assert_eq!(repository.base, base);
        }
    }
}
