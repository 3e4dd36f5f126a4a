//! A client: the connections, the trust, the proxy and the identity of all its downloads.

use std::sync::Arc;
use std::time::Duration;

use crate::hosts::{self, Host};
use crate::http::Http;
use crate::identity::{Cloud, Endpoints, Identity};
use crate::links::Links;
use crate::proxy::Proxy;
use crate::trust;

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
    /// Where the clouds' services are.
    pub endpoints: Endpoints,
    /// Over which links servers are asked.
    pub links: Links,
    /// Names that are not looked up, beside those of [`hosts`].
    pub hosts: Vec<Host>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ca_bundle: None,
            user_agent: concat!("slipway/", env!("CARGO_PKG_VERSION")).to_owned(),
            direct: false,
            proxy: None,
            identity: Identity::Anonymous,
            endpoints: Endpoints::default(),
            links: Links::default(),
            hosts: Vec::new(),
        }
    }
}

type Build = Box<dyn Fn(Option<&str>) -> reqwest::Result<reqwest::Client> + Send + Sync>;

/// A connection pool with its trust. The proxy variables of the environment are honoured, unless it is direct.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: Http,
    pub(crate) cloud: Arc<Cloud>,
}

impl Client {
    /// Makes a client. A client without any certificate is valid: plain http works without.
    ///
    /// # Errors
    /// If the given bundle is not PEM, or a file that the environment names cannot be read.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let trust = trust::config(options.ca_bundle.as_deref())?;
        let hosts: Vec<Host> = hosts::fixed()
            .into_iter()
            .chain(options.hosts.clone())
            .collect();
        let (agent, known) = (options.user_agent.clone(), hosts.clone());
        let builder = move |link: Option<&str>| {
            let mut builder = reqwest::Client::builder()
                .tls_backend_preconfigured(trust.clone())
                .user_agent(&agent)
                .connect_timeout(Duration::from_secs(20))
                .redirect(reqwest::redirect::Policy::none());
            for (name, addresses) in &known {
                builder = builder.resolve_to_addrs(name, addresses);
            }
            match link {
                Some(link) => builder.interface(link),
                None => builder,
            }
        };
        let http = |build| Http::new(build, options.links.clone(), hosts.clone());
        let past = builder.clone();
        let direct = Http::new(
            move |link| past(link).no_proxy().build(),
            options.links.clone(),
            hosts.clone(),
        )?;
        let http = match &options.proxy {
            _ if options.direct => direct.clone(),
            None => http(Box::new(move |link: Option<&str>| builder(link).build()) as Build)?,
            Some(proxy) => {
                let rules = Arc::new(proxy.rules()?);
                http(Box::new(move |link: Option<&str>| {
                    let rules = Arc::clone(&rules);
                    let proxy = reqwest::Proxy::custom(move |url| rules.of(url));
                    builder(link).proxy(proxy).build()
                }) as Build)?
            }
        };
        let cloud = Cloud::new(options.identity, options.endpoints.clone(), direct);
        Ok(Self {
            http,
            cloud: Arc::new(cloud),
        })
    }
}
