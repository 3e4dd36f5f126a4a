//! Objects of Google Cloud Storage through its JSON API, with the token of the instance's service account if it has one.
//!
//! <https://cloud.google.com/storage/docs/json_api/v1/objects/get>

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::bearer::Bearer;
use crate::client::Client;
use crate::ending::Ending;
use crate::http_source::{HttpSource, Requesting};
use crate::percent;
use crate::request::Request;

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bucket: String,
    pub(crate) name: String,
    bearer: Bearer,
}

impl Object {
    pub(crate) fn new(bucket: String, name: String) -> Self {
        Self {
            bucket,
            name,
            bearer: Bearer::default(),
        }
    }

    async fn make_request(&mut self, client: &Client) -> Result<Request, Ending> {
        let text = format!(
            "{}/storage/v1/b/{}/o/{}?alt=media",
            client.cloud.endpoints.gs,
            percent::encode(&self.bucket),
            percent::encode(&self.name)
        );
        let address =
            Url::parse(&text).map_err(|error| Ending::refused(&text, error.to_string()))?;
        let mut headers = HeaderMap::new();
        headers.extend(self.bearer.header(client.cloud.account()).await?);
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

    fn change_credentials(&mut self) -> Option<&'static str> {
        self.bearer.refuse().then_some(
            "Cloud Storage refuses the instance's service account; retrying without credentials",
        )
    }
}
