//! What a repository of a registry is given: blobs, and the manifests that name them.
//!
//! <https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#push>

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Method, Url};

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::{Failure, shown};
use crate::repository::{Headers, Repository};
use crate::upload::{self, Content, Stored, Upload};

/// The media type of an image manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of a blob while it is sent.
const OCTETS: &str = "application/octet-stream";

impl Repository {
    /// Whether a blob (`sha256:…`) is there. A registry that keeps its blobs in a store elsewhere may redirect this question to it.
    ///
    /// # Errors
    /// [`Failure`], as for every request.
    pub async fn has_blob(&mut self, client: &Client, digest: &str) -> Result<bool, Failure> {
        let url = format!("{}/blobs/{digest}", self.base);
        let asked = self.send(client, Method::HEAD, &url, "", Content::NONE);
        match asked.await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_gone() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Stores a blob under its digest (`sha256:…`), which the registry verifies; nothing is sent if it is there.
    ///
    /// # Errors
    /// [`Failure`], as for every request.
    pub async fn push_blob(
        &mut self,
        client: &Client,
        digest: &str,
        content: Content<'_>,
    ) -> Result<(), Failure> {
        if self.has_blob(client, digest).await? {
            return Ok(());
        }
        let base = self.base.clone();
        let begin = format!("{base}/blobs/uploads/");
        let address = parse(&begin)?;
        let patience = self.few_attempts();
        self.authorized(client, async |headers: Headers| {
            let empty = header_map(headers.clone(), "")?;
            let whole = header_map(headers, OCTETS)?;
            // An upload that broke off, or that the registry put off, is no longer open: each attempt begins another one.
            let make = async || {
                let begin_one = async || {
                    Ok::<_, Ending>(Upload {
                        method: Method::POST,
                        url: address.clone(),
                        headers: empty.clone(),
                        content: Content::NONE,
                        follows: false,
                    })
                };
                let begun = upload::send(client, &begin, patience, begin_one).await?;
                Ok::<_, Ending>(Upload {
                    method: Method::PUT,
                    url: location(&base, &begin, &begun, digest)?,
                    headers: whole.clone(),
                    content,
                    follows: false,
                })
            };
            upload::send(client, &begin, patience, make).await.map(drop)
        })
        .await
    }

    /// Stores a manifest under a tag. Its blobs have to be there.
    ///
    /// # Errors
    /// [`Failure`], as for every request.
    pub async fn push_manifest(
        &mut self,
        client: &Client,
        tag: &str,
        manifest: &[u8],
    ) -> Result<(), Failure> {
        let url = format!("{}/manifests/{tag}", self.base);
        let content = Content::Bytes(manifest);
        self.send(client, Method::PUT, &url, MANIFEST, content)
            .await
            .map(drop)
    }

    async fn send(
        &mut self,
        client: &Client,
        method: Method,
        url: &str,
        media_type: &str,
        content: Content<'_>,
    ) -> Result<Stored, Failure> {
        let patience = self.few_attempts();
        let address = parse(url)?;
        self.authorized(client, async |headers: Headers| {
            let headers = header_map(headers, media_type)?;
            let make = async || {
                Ok::<_, Ending>(Upload {
                    method: method.clone(),
                    url: address.clone(),
                    headers: headers.clone(),
                    content,
                    follows: method == Method::HEAD,
                })
            };
            upload::send(client, url, patience, make).await
        })
        .await
    }
}

fn parse(url: &str) -> Result<Url, Failure> {
    Url::parse(url).map_err(|error| Failure::Address {
        url: shown(url),
        why: error.to_string(),
    })
}

fn header_map(headers: Headers, media_type: &str) -> Result<HeaderMap, Failure> {
    let wrong = |name: &str| Failure::Address {
        url: String::new(),
        why: format!("header {name} has characters that are not allowed in a header"),
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(&value));
        let (Ok(key), Ok(mut value)) = parsed else {
            return Err(wrong(&name));
        };
        value.set_sensitive(true);
        map.insert(key, value);
    }
    if !media_type.is_empty() {
        let value = HeaderValue::from_str(media_type).map_err(|_| wrong("Content-Type"))?;
        map.insert(CONTENT_TYPE, value);
    }
    Ok(map)
}

/// Where the content of an upload goes that was begun at `begun_at`: on the registry itself, since the token goes along.
fn location(base: &str, begun_at: &str, begun: &Stored, digest: &str) -> Result<Url, Failure> {
    let refuse = |why: &str| Failure::Refused {
        url: shown(begun_at),
        why: why.to_owned(),
    };
    let location = begun
        .headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .ok_or_else(|| refuse("the registry's answer does not say where the content goes"))?;
    let registry = Url::parse(base).map_err(|error| refuse(&error.to_string()))?;
    let from = Url::parse(begun_at).map_err(|error| refuse(&error.to_string()))?;
    let mut target = from
        .join(location)
        .map_err(|error| refuse(&error.to_string()))?;
    if target.origin() != registry.origin() {
        return Err(refuse("the registry sends the content to another server"));
    }
    target.query_pairs_mut().append_pair("digest", digest);
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_stays_on_its_registry() {
        let to = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_str(location).unwrap());
            let begun = Stored {
                headers,
                body: Vec::new(),
            };
            let base = "https://r.example/v2/a";
            let at = "https://r.example/v2/a/blobs/uploads/";
            location_of(base, at, &begun)
        };
        fn location_of(base: &str, at: &str, begun: &Stored) -> Result<String, String> {
            match location(base, at, begun, "sha256:x") {
                Ok(url) => Ok(url.into()),
                Err(failure) => Err(failure.to_string()),
            }
        }
        for (given, expected) in [
            ("/v2/a/u/1", "https://r.example/v2/a/u/1?digest=sha256%3Ax"),
            (
                "https://r.example/v2/a/u/1?_state=b%3D",
                "https://r.example/v2/a/u/1?_state=b%3D&digest=sha256%3Ax",
            ),
        ] {
            assert_eq!(to(given).unwrap(), expected);
        }
        for given in ["https://other.example/u", "http://r.example/v2/a/u/1"] {
            assert!(to(given).unwrap_err().contains("another server"), "{given}");
        }
    }
}
