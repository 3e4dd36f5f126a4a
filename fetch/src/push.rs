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
use crate::want::Patience;

/// The media type of an image manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Repository {
    /// Whether a blob (`sha256:…`) is there.
    ///
    /// # Errors
    /// [`Failure`], as for every request.
    pub async fn has_blob(&mut self, client: &Client, digest: &str) -> Result<bool, Failure> {
        let url = format!("{}/blobs/{digest}", self.base);
        let asked = self.send(client, Method::HEAD, &url, "", Content::Bytes(&[]));
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
        let mut left = self.few_attempts().attempts.unwrap_or(3);
        loop {
            left = left.saturating_sub(1);
            match self.upload(client, digest, content).await {
                // An upload that broke off is no longer open: it is begun anew.
                Err(Failure::Unreachable { .. }) if left > 0 => {}
                ended => return ended,
            }
        }
    }

    async fn upload(
        &mut self,
        client: &Client,
        digest: &str,
        content: Content<'_>,
    ) -> Result<(), Failure> {
        let begin = format!("{}/blobs/uploads/", self.base);
        let begun = self.send(client, Method::POST, &begin, "", Content::Bytes(&[]));
        let begun = begun.await?;
        let target = location(&self.base, &begin, &begun, digest)?;
        let patience = Patience {
            attempts: Some(1),
            ..self.few_attempts()
        };
        let octets = "application/octet-stream";
        self.send_with(
            client,
            Method::PUT,
            target.as_str(),
            octets,
            content,
            patience,
        )
        .await
        .map(drop)
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
        self.send_with(client, method, url, media_type, content, patience)
            .await
    }

    async fn send_with(
        &mut self,
        client: &Client,
        method: Method,
        url: &str,
        media_type: &str,
        content: Content<'_>,
        patience: Patience,
    ) -> Result<Stored, Failure> {
        let address = Url::parse(url).map_err(|error| Failure::Address {
            url: shown(url),
            why: error.to_string(),
        })?;
        self.authorized(client, async |headers: Headers| {
            let headers = header_map(headers, media_type)?;
            let make = async || {
                Ok::<_, Ending>(Upload {
                    method: method.clone(),
                    url: address.clone(),
                    headers: headers.clone(),
                    content,
                })
            };
            upload::send(client, url, patience, make).await
        })
        .await
    }
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
