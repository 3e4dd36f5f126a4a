//! `http://` and `https://`: the content is at the address itself.

use reqwest::Url;

use crate::client::Client;
use crate::http_source::{HttpSource, Requesting};
use crate::request::Request;

#[derive(Debug)]
pub(super) struct Address(Url);

pub(super) fn parse(text: &str) -> Result<Address, String> {
    Url::parse(text)
        .map(Address)
        .map_err(|error| error.to_string())
}

impl HttpSource for Address {
    fn request<'a>(&'a mut self, _: &'a Client) -> Requesting<'a> {
        Box::pin(async { Ok(Request::plain(self.0.clone())) })
    }
}
