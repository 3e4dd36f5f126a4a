//! Objects of Google Cloud Storage through its JSON API, with the token of the instance's service account if it has one.
//!
//! <https://cloud.google.com/storage/docs/json_api/v1/objects/get>

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::client::Client;
use crate::ending::Ending;
use crate::http_source::{HttpSource, Requesting};

use crate::percent;
use crate::request::{Request, header};

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bucket: String,
    pub(crate) name: String,
    anonymous: bool,
    /// Whether the last request had the token of an account.
    known: bool,
}

impl Object {
    pub(crate) fn new(bucket: String, name: String) -> Self {
        Self {
            bucket,
            name,
            anonymous: false,
            known: false,
        }
    }

    async fn make_request(&mut self, client: &Client) -> Result<Request, Ending> {
        let token = match self.anonymous {
            true => None,
            false => client.cloud.account().await?,
        };
        let text = format!(
            "{}/storage/v1/b/{}/o/{}?alt=media",
            client.cloud.endpoints.gs,
            percent::encode(&self.bucket),
            percent::encode(&self.name)
        );
        let address =
            Url::parse(&text).map_err(|error| Ending::refused(&text, error.to_string()))?;
        let mut headers = HeaderMap::new();
        self.known = token.is_some();
        if let Some(token) = token {
            let (name, value) = header("authorization", &format!("Bearer {token}"))?;
            headers.insert(name, value);
        }
        Ok(Request {
            address: address.into(),
            headers,
            digest: None,
        })
    }
}

impl HttpSource for Object {
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a> {
        Box::pin(self.make_request(client))
    }

    // An account that may not read an object must not prevent this machine from reading public ones.
    fn change_credentials(&mut self) -> Option<&'static str> {
        if !self.known || self.anonymous {
            return None;
        }
        self.anonymous = true;
        Some("Cloud Storage refuses the instance's service account; retrying without credentials")
    }
}
