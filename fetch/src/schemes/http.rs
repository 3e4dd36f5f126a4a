//! `http://` and `https://`: the content is at the address itself. Azure's storage wants a token for blobs that are not public;
//! another server may want a user and a password.

use reqwest::{StatusCode, Url};

use crate::blob::Blob;
use crate::client::Client;
use crate::ending::Ending;
use crate::http_source::{HttpSource, Requesting};
use crate::login::{Login, server_of};
use crate::request::{self, Request};

#[derive(Debug)]
struct Address {
    /// Without user and password.
    url: Url,
    /// The login in the URL as it was given, else that of the client, once it was asked.
    login: Option<Login>,
    /// What is said if the server wants a login and there is none.
    missing: Option<String>,
}

pub(super) fn parse(text: &str) -> Result<Box<dyn HttpSource>, String> {
    let mut url = Url::parse(text).map_err(|error| error.to_string())?;
    if let Some(blob) = Blob::at(&url) {
        return Ok(Box::new(blob));
    }
    Ok(Box::new(Address {
        login: Login::taken_from(&mut url),
        url,
        missing: None,
    }))
}

impl Address {
    /// Asks the client for a login, unless the URL has one.
    fn ask(&mut self, client: &Client) -> Result<(), Ending> {
        let Some(logins) = client.logins().filter(|_| self.login.is_none()) else {
            return Ok(());
        };
        let refuse = |why: String| Ending::refused(self.url.as_str(), why);
        let login = logins.of_url(self.url.as_str()).map_err(refuse)?;
        if login.is_none() {
            self.missing = Some(logins.missing(server_of(self.url.as_str())));
        }
        self.login = login;
        Ok(())
    }
}

impl HttpSource for Address {
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a> {
        Box::pin(async {
            self.ask(client)?;
            let address = request::Address::with_login(self.url.clone(), self.login.clone());
            Ok(Request::to(address))
        })
    }

    fn note(&self, status: StatusCode) -> Option<String> {
        match (&self.login, status) {
            (Some(login), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Some(format!(
                "the user and the password that were sent come from {}",
                login.from
            )),
            (None, StatusCode::UNAUTHORIZED) => self.missing.clone(),
            _ => None,
        }
    }
}
