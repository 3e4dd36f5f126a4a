//! Objects of Google's Cloud Storage, by its JSON interface, as the machine's service account where it has one.
//!
//! <https://cloud.google.com/storage/docs/json_api/v1/objects/get>

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::Client;
use crate::ending::Ending;
use crate::route::{Asked, header};
use crate::sigv4::{decoded, encoded};

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    bucket: String,
    name: String,
    anonymous: bool,
    /// Whether the last request was made by an account.
    known: bool,
}

impl Object {
    /// Reads `gs://BUCKET/NAME`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = text.split(['?', '#']).next().unwrap_or_default();
        let parts = address
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('/'));
        let (bucket, name) = parts
            .filter(|(bucket, name)| !bucket.is_empty() && !name.is_empty())
            .ok_or("expected gs://BUCKET/NAME")?;
        Ok(Self {
            bucket: decoded(bucket),
            name: decoded(name),
            anonymous: false,
            known: false,
        })
    }

    pub(crate) async fn asked(&mut self, client: &Client) -> Result<Asked, Ending> {
        let token = match self.anonymous {
            true => None,
            false => client.cloud.account().await?,
        };
        let text = format!(
            "{}/storage/v1/b/{}/o/{}?alt=media",
            client.cloud.endpoints.gs,
            encoded(&self.bucket, ""),
            encoded(&self.name, "")
        );
        let address =
            Url::parse(&text).map_err(|error| Ending::refused(&text, error.to_string()))?;
        let mut headers = HeaderMap::new();
        self.known = token.is_some();
        if let Some(token) = token {
            let (name, value) = header("authorization", &format!("Bearer {token}"))?;
            headers.insert(name, value);
        }
        Ok(Asked {
            address,
            headers,
            digest: None,
        })
    }

    /// An account without a right to read must not keep this machine from what is public.
    pub(crate) fn otherwise(&mut self) -> Option<&'static str> {
        if !self.known || self.anonymous {
            return None;
        }
        self.anonymous = true;
        Some("Cloud Storage refuses the account of this instance; it is asked without it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let object = Object::parse("gs://b/a%20b/c?x").unwrap();
        assert_eq!(
            (object.bucket.as_str(), object.name.as_str()),
            ("b", "a b/c")
        );
        for text in ["gs://b", "gs://b/", "gs:///x", "gs:b/x"] {
            assert!(Object::parse(text).is_err(), "{text}");
        }
    }
}
