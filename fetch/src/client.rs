//! A client: the connections, the trust, the proxy and the identity of all its downloads.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::{Cloud, Endpoints, Identity};
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
        }
    }
}

/// A connection pool with its trusted certificates. It honours the proxy variables of the environment, unless
/// `direct` is set.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) cloud: Arc<Cloud>,
}

impl Client {
    /// Makes a client. A client without any certificate is valid: plain http works without.
    ///
    /// # Errors
    /// If the given bundle is not PEM, or a file that the environment names cannot be read.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let trust = trust::config(options.ca_bundle.as_deref())?;
        let builder = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(trust.clone())
                .user_agent(&options.user_agent)
                .connect_timeout(Duration::from_secs(20))
                .redirect(reqwest::redirect::Policy::none())
        };
        let direct = builder().no_proxy().build()?;
        let http = match &options.proxy {
            _ if options.direct => direct.clone(),
            None => builder().build()?,
            Some(proxy) => {
                let rules = proxy.rules()?;
                let proxy = reqwest::Proxy::custom(move |url| rules.of(url));
                builder().proxy(proxy).build()?
            }
        };
        let cloud = Cloud::new(options.identity, options.endpoints.clone(), direct);
        Ok(Self {
            http,
            cloud: Arc::new(cloud),
        })
    }
}
