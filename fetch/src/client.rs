//! A client: the connections, the trust, the proxy and the identity of all its downloads.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::exact_path::Dialer;
use crate::failure::{Failure, shown};
use crate::guard::Guard;
use crate::hosts::{self, Host};
use crate::http::Http;
use crate::identity::{Cloud, Endpoints, Identity};
use crate::links::Links;
use crate::login::Logins;
use crate::proxy::{Proxy, Via};
use crate::sigv4::Credentials;
use crate::trust;

/// The reason of a [`Failure::Refused`] by a client that is offline.
pub const OFFLINE: &str = "it is not here, and no request is made offline";

/// How a client is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Certificates to trust, PEM. `None`: those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, else the system's bundle.
    pub ca_bundle: Option<Vec<u8>>,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// Whether requests bypass every proxy: those to link-local addresses must, whatever the environment says.
    pub direct: bool,
    /// Proxies in place of those that the environment names.
    pub proxy: Option<Proxy>,
    /// The credentials for requests to a cloud's storage.
    pub identity: Identity,
    /// Credentials for buckets of S3, in place of the identity's.
    pub credentials: Option<Credentials>,
    /// Where the clouds' services are.
    pub endpoints: Endpoints,
    /// Over which links servers are asked.
    pub links: Links,
    /// Names that are not looked up, beside those of [`hosts`].
    pub hosts: Vec<Host>,
    /// Whether every download is refused before its first request.
    pub offline: bool,
    /// The logins of servers; none: those in URLs alone.
    pub logins: Option<Arc<dyn Logins>>,
    /// Whether no redirect leads from https to http. Otherwise one does for content whose hash is known, as in Ignition.
    pub keeps_tls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ca_bundle: None,
            user_agent: concat!("slipway/", env!("CARGO_PKG_VERSION")).to_owned(),
            direct: false,
            proxy: None,
            identity: Identity::Anonymous,
            credentials: None,
            endpoints: Endpoints::default(),
            links: Links::default(),
            hosts: Vec::new(),
            offline: false,
            logins: None,
            keeps_tls: false,
        }
    }
}

/// A connection pool with its trust. The proxy variables of the environment are honoured, unless it is direct.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: Http,
    pub(crate) cloud: Arc<Cloud>,
    maker: Arc<Maker>,
    via: Via,
    offline: bool,
    pub(crate) logins: Option<Arc<dyn Logins>>,
}

impl Client {
    /// Makes a client. A client without any certificate is valid: plain http works without.
    ///
    /// # Errors
    /// If the given bundle is not PEM, or a file that the environment names cannot be read.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let maker = Maker::new(options)?;
        let direct = maker.http(Via::Direct, None)?;
        let via = match &options.proxy {
            _ if options.direct => Via::Direct,
            None => Via::Environment,
            Some(proxy) => Via::Rules(Arc::new(proxy.rules()?)),
        };
        let http = match options.direct {
            true => direct.clone(),
            false => maker.http(via.clone(), None)?,
        };
        let (credentials, endpoints) = (options.credentials.clone(), options.endpoints.clone());
        let cloud = Cloud::new(options.identity, credentials, endpoints, direct);
        Ok(Self {
            http,
            cloud: Arc::new(cloud),
            maker: Arc::new(maker),
            via,
            offline: options.offline,
            logins: options.logins.clone(),
        })
    }

    /// The logins of servers, in programs that have any.
    pub(crate) fn logins(&self) -> Option<&Arc<dyn Logins>> {
        self.logins.as_ref().filter(|_| cfg!(feature = "logins"))
    }

    /// The same for a caller that sends its own credentials.
    pub(crate) fn without_logins(&self) -> Self {
        Self {
            logins: None,
            ..self.clone()
        }
    }

    /// Refuses a request of a client that is offline.
    pub(crate) fn online(&self, url: &str) -> Result<(), Failure> {
        match self.offline {
            false => Ok(()),
            true => Err(Failure::Refused {
                url: shown(url),
                why: OFFLINE.to_owned(),
            }),
        }
    }

    /// The same for requests to the token service that the registry of this URL names.
    pub(crate) fn for_tokens(&self, registry: &str) -> reqwest::Result<Self> {
        let guard = Some(Guard::new(registry));
        Ok(Self {
            http: self.maker.http(self.via.clone(), guard)?,
            ..self.without_logins()
        })
    }
}

/// What all pools of a client have in common.
#[derive(Clone, Debug)]
struct Maker {
    trust: ClientConfig,
    agent: String,
    links: Links,
    hosts: Vec<Host>,
    keeps_tls: bool,
}

impl Maker {
    fn new(options: &Options) -> anyhow::Result<Self> {
        Ok(Self {
            trust: trust::config(options.ca_bundle.as_deref())?,
            agent: options.user_agent.clone(),
            links: options.links.clone(),
            hosts: hosts::fixed()
                .into_iter()
                .chain(options.hosts.clone())
                .collect(),
            keeps_tls: options.keeps_tls,
        })
    }

    fn http(&self, via: Via, guard: Option<Guard>) -> reqwest::Result<Http> {
        let dialer = Dialer::new(self.trust.clone(), via.clone());
        let (links, hosts) = (self.links.clone(), self.hosts.clone());
        let (maker, resolver) = (self.clone(), guard.clone());
        let pool = move |link: Option<&str>| maker.pool(link, &via, resolver.as_ref());
        let mut http = Http::new(pool, links, hosts, dialer, guard)?;
        http.keeps_tls = self.keeps_tls;
        Ok(http)
    }

    /// A pool whose connections are bound to a link, or to none.
    fn pool(
        &self,
        link: Option<&str>,
        via: &Via,
        guard: Option<&Guard>,
    ) -> reqwest::Result<reqwest::Client> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.trust.clone())
            .user_agent(&self.agent)
            .connect_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none());
        for (name, addresses) in &self.hosts {
            builder = builder.resolve_to_addrs(name, addresses);
        }
        if let Some(link) = link {
            builder = builder.interface(link);
        }
        if let Some(guard) = guard {
            builder = builder.dns_resolver(Arc::new(guard.clone()));
        }
        match via {
            Via::Direct => builder.no_proxy(),
            Via::Environment => builder,
            Via::Rules(rules) => {
                let rules = Arc::clone(rules);
                builder.proxy(reqwest::Proxy::custom(move |url| rules.of(url)))
            }
        }
        .build()
    }
}
