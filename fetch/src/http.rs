//! HTTP connections. A request goes as the kernel's routes lead. Where a machine has several links it goes over each of them too,
//! one after the other, when no answer comes soon, and the first answer counts: a link that leads nowhere costs a second, and
//! later requests go first over the one that answered.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HOST, HeaderValue};
use reqwest::{Request, Response};
use tokio::task::JoinSet;

use crate::exact_path::Dialer;
use crate::failure::chain;
use crate::guard::{Forbidden, Guard};
use crate::hosts::{self, Host};
use crate::links::{Links, Way};

/// How long one way is waited for before the next one is tried too. One that fails at once costs nothing.
const HEAD_START: Duration = Duration::from_secs(1);

type Build = dyn Fn(Option<&str>) -> reqwest::Result<reqwest::Client> + Send + Sync;

/// Pools of connections: one that is bound to no link, and one for each link.
#[derive(Clone)]
pub(crate) struct Http {
    unbound: reqwest::Client,
    build: Arc<Build>,
    bound: Arc<Mutex<BTreeMap<String, reqwest::Client>>>,
    pub(crate) links: Links,
    hosts: Arc<Vec<Host>>,
    /// For requests that the pools cannot send.
    pub(crate) dialer: Dialer,
    /// Where its requests may lead; none: anywhere.
    pub(crate) guard: Option<Guard>,
    /// Whether no redirect leads from https to http, whatever vouches for the content.
    pub(crate) keeps_tls: bool,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { links, .. } = self;
        f.debug_struct("Http")
            .field("links", links)
            .finish_non_exhaustive()
    }
}

/// Why a request has no answer: the error of each way that it went.
#[derive(Debug)]
pub(crate) struct NoAnswer(Vec<(Way, reqwest::Error)>);

impl From<reqwest::Error> for NoAnswer {
    fn from(error: reqwest::Error) -> Self {
        // A URL may hold secrets.
        Self(vec![(None, error.without_url())])
    }
}

impl NoAnswer {
    /// The reason, if a guard refused the host: then no other attempt helps.
    pub(crate) fn forbidden(&self) -> Option<&Forbidden> {
        fn of_one<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Forbidden> {
            let mut chain = std::iter::successors(Some(error), |error| error.source());
            chain.find_map(|error| error.downcast_ref())
        }
        self.0.iter().find_map(|(_, error)| of_one(error))
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.iter().map(|(way, error)| {
            let why = chain(error);
            match way {
                Some(link) => format!("over {link}: {why}"),
                None => why,
            }
        });
        f.write_str(&lines.collect::<Vec<_>>().join("; "))
    }
}

impl Http {
    /// `build` makes a pool whose connections are bound to a link, or to none.
    pub(crate) fn new(
        build: impl Fn(Option<&str>) -> reqwest::Result<reqwest::Client> + Send + Sync + 'static,
        links: Links,
        hosts: Vec<Host>,
        dialer: Dialer,
        guard: Option<Guard>,
    ) -> reqwest::Result<Self> {
        Ok(Self {
            unbound: build(None)?,
            build: Arc::new(build),
            bound: Arc::default(),
            links,
            hosts: Arc::new(hosts),
            dialer,
            guard,
            keeps_tls: false,
        })
    }

    /// A request in the making.
    pub(crate) fn request(
        &self,
        method: reqwest::Method,
        url: reqwest::Url,
    ) -> reqwest::RequestBuilder {
        self.unbound.request(method, url)
    }

    /// Sends a request by the ways that there are, one after the other until there is an answer.
    pub(crate) async fn execute(&self, mut request: Request) -> Result<Response, NoAnswer> {
        let name = request.url().host_str().unwrap_or_default();
        if let Some(address) = hosts::header(&self.hosts, name) {
            let host = match request.url().port() {
                Some(port) => SocketAddr::new(address.ip(), port).to_string(),
                None => address.ip().to_string(),
            };
            if let Ok(value) = HeaderValue::from_str(&host) {
                request.headers_mut().entry(HOST).or_insert(value);
            }
        }
        self.race(request).await
    }

    async fn race(&self, request: Request) -> Result<Response, NoAnswer> {
        let mut open = JoinSet::new();
        let mut asked: Vec<Way> = Vec::new();
        let mut errors = Vec::new();
        loop {
            // One that has come up since is asked too.
            let next = self
                .links
                .ways()
                .into_iter()
                .find(|way| !asked.contains(way));
            if let Some((way, copy)) = next.zip(request.try_clone()) {
                let client = self.client(&way)?;
                asked.push(way.clone());
                open.spawn(async move { (way, client.execute(copy).await) });
            } else if open.is_empty() {
                // The request cannot be repeated.
                return Ok(self.unbound.execute(request).await?);
            }
            match tokio::time::timeout(HEAD_START, open.join_next()).await {
                Ok(Some(Ok((way, Ok(response))))) => {
                    self.links.answered(&way);
                    return Ok(response);
                }
                Ok(Some(Ok((way, Err(error))))) => {
                    errors.push((way, error.without_url()));
                    let ways = self.links.ways();
                    if open.is_empty() && ways.iter().all(|way| asked.contains(way)) {
                        return Err(NoAnswer(errors));
                    }
                }
                // No answer yet, or a task that was ended with the runtime.
                Err(_) | Ok(Some(Err(_)) | None) => {}
            }
        }
    }

    fn client(&self, way: &Way) -> reqwest::Result<reqwest::Client> {
        let Some(link) = way else {
            return Ok(self.unbound.clone());
        };
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = bound.get(link) {
            return Ok(client.clone());
        }
        let client = (self.build)(Some(link))?;
        bound.insert(link.clone(), client.clone());
        Ok(client)
    }
}
