//! The interface of every scheme whose content comes over HTTP.

use std::fmt;
use std::pin::Pin;

use crate::client::Client;
use crate::ending::Ending;
use crate::request::Request;

/// A request in the making. Boxed, since the sources stand in one table of trait objects.
pub(crate) type Requesting<'a> = Pin<Box<dyn Future<Output = Result<Request, Ending>> + Send + 'a>>;

/// Content that an HTTP request gives.
pub(crate) trait HttpSource: fmt::Debug + Send {
    /// The request that gives the content now; credentials and documents that it needs are fetched first.
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a>;

    /// After an answer of 401 or 403: changes the next request's credentials, and says how; none if no other credentials
    /// are left to try.
    fn change_credentials(&mut self) -> Option<&'static str> {
        None
    }
}
