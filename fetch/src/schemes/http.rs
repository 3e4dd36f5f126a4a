//! `http://` and `https://`: the content is at the address itself. Azure's storage wants a token for blobs that are not public.

use reqwest::Url;

use crate::blob::Blob;
use crate::client::Client;
use crate::http_source::{HttpSource, Requesting};
use crate::request::Request;

#[derive(Debug)]
struct Address(Url);

pub(super) fn parse(text: &str) -> Result<Box<dyn HttpSource>, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    Ok(match Blob::at(&url) {
        Some(blob) => Box::new(blob),
        None => Box::new(Address(url)),
    })
}

impl HttpSource for Address {
    fn request<'a>(&'a mut self, _: &'a Client) -> Requesting<'a> {
        Box::pin(async { Ok(Request::plain(self.0.clone())) })
    }
}
