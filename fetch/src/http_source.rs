//! The interface of every scheme whose content comes over HTTP.

use std::fmt;
use std::pin::Pin;

use reqwest::{Response, StatusCode};

use crate::client::Client;
use crate::ending::Ending;
use crate::request::Request;

/// A pending request. Boxed, since the sources are trait objects.
pub(crate) type Requesting<'a> = Pin<Box<dyn Future<Output = Result<Request, Ending>> + Send + 'a>>;

/// A pending content of a refusal.
pub(crate) type Reading<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Content that an HTTP request gives.
pub(crate) trait HttpSource: fmt::Debug + Send {
    /// The request that gives the content; fetches the credentials and documents that it needs first.
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a>;

    /// After a response of 401 or 403: changes the credentials for the next request, and returns a description of the
    /// change; none if no other credentials are left to try.
    fn change_credentials(&mut self) -> Option<&'static str> {
        None
    }

    /// What is known of the login of the last request, which this status refuses, or what the server said of it.
    fn note(&self, _: StatusCode) -> Option<String> {
        None
    }

    /// Reads from the content of an answer why the last request is refused, where the protocol says it there.
    fn refused(&mut self, _: Response) -> Reading<'_> {
        Box::pin(async {})
    }

    /// Why the last request had no credentials, if the user can change that.
    fn lacks_credentials(&self) -> Option<&'static str> {
        None
    }
}
