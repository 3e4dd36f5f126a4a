//! The one verified download: retries, size limit, hash, temporary file, sync, rename.
//!
//! Used by the tool and by PID 1 alike, so it stays small: what a config or an archive means is not known here.

mod attempt;
pub mod blocking;
mod cloud;
mod digest;
mod ending;
mod failure;
mod gs;
mod oci;
mod pause;
mod post;
mod proxy;
pub mod registry;
mod request;
mod route;
mod s3;
mod sigv4;
mod sink;
mod tftp;
mod trust;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use cloud::{Endpoints, Identity};
pub use digest::Digest;
pub use failure::Failure;
pub use post::post_json;
pub use proxy::Proxy;

/// How a client is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Certificates to trust, PEM. `None`: those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, else the system's bundle.
    pub ca_bundle: Option<Vec<u8>>,
    /// What the client calls itself.
    pub user_agent: String,
    /// Whether requests go straight to their servers: those to link-local addresses must, whatever the environment says.
    pub direct: bool,
    /// Proxies in place of those that the environment names.
    pub proxy: Option<Proxy>,
    /// Who asks a cloud's storage.
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
            identity: Identity::Nobody,
            endpoints: Endpoints::default(),
        }
    }
}

/// A connection pool with its trust. The proxy variables of the environment are honoured, unless it is direct.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    cloud: Arc<cloud::Cloud>,
}

impl Client {
    /// Makes a client. Having no certificate at all is not an error here: plain http works without.
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
        let cloud = cloud::Cloud::new(options.identity, options.endpoints.clone(), direct);
        Ok(Self {
            http,
            cloud: Arc::new(cloud),
        })
    }
}

/// How long and how often is tried.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Attempts in all; `None`: for ever.
    pub attempts: Option<u32>,
    /// From the request to the answer's header, for each attempt, connecting included.
    pub header_timeout: Duration,
    /// The longest silence inside an answer.
    pub idle_timeout: Duration,
    /// For all attempts together; `None`: no limit.
    pub total: Option<Duration>,
    /// Wait before the second attempt; it doubles up to [`LONGEST_WAIT`], less a random quarter.
    pub first_wait: Duration,
}

/// No wait between two attempts is longer than this, and no silence passes without a word to the watcher.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: Some(5),
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            total: None,
            first_wait: Duration::from_millis(250),
        }
    }
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The content.
    #[default]
    Get,
    /// What there is to say of the content, and none of it.
    Head,
    /// A PUT without a body, which is how EC2 gives a token.
    Put,
}

/// What to fetch, and what is acceptable.
#[derive(Clone, Debug)]
pub struct Want<'a> {
    /// Where from: `http`, `https`, `tftp`, `s3`, `arn`, `gs` or `oci`.
    pub url: &'a str,
    /// What the content must hash to.
    pub digest: Option<Digest>,
    /// The most bytes that are accepted.
    pub limit: u64,
    /// What is asked of the server.
    pub method: Method,
    /// Headers to send. A redirected request has none of them but `Accept` and `Accept-Encoding`.
    pub headers: Vec<(String, String)>,
    /// Statuses after which it is tried again, beside 408, 425, 429 and all from 500 on. An answer's `Retry-After` is
    /// honoured, up to two minutes.
    pub repeat: &'a [u16],
    /// How long and how often is tried.
    pub patience: Patience,
}

impl<'a> Want<'a> {
    /// A want with no digest, no headers and the usual patience.
    #[must_use]
    pub fn new(url: &'a str, limit: u64) -> Self {
        Self {
            url,
            digest: None,
            limit,
            method: Method::Get,
            headers: Vec::new(),
            repeat: &[],
            patience: Patience::default(),
        }
    }

    /// The same with a digest.
    #[must_use]
    pub fn digest(mut self, digest: Digest) -> Self {
        self.digest = Some(digest);
        self
    }
}

/// Fetches into memory. A body that is cut short goes on where it broke off if the server can tell that it is still the
/// same content, and is fetched anew otherwise. `on_wait` hears why it takes long: before each new attempt, and every five seconds of silence.
///
/// # Errors
/// [`Failure`], when the patience is over or trying again is of no use.
pub async fn bytes(
    client: &Client,
    want: &Want<'_>,
    on_wait: &(dyn Fn(&str) + Sync),
) -> Result<Vec<u8>, Failure> {
    let mut sink = sink::Memory::default();
    attempt::receive(client, want, &mut sink, on_wait, &|_| ()).await?;
    Ok(sink.0)
}

/// Fetches into the file `dest`: a temporary file beside it, synced and renamed once its digest is right. An attempt
/// that breaks off is resumed where it ended. `on_bytes` hears how many bytes each piece adds; bytes that are fetched
/// anew are not told twice.
///
/// # Errors
/// [`Failure`], when the patience is over or trying again is of no use; also when `want` has no digest.
pub async fn file(
    client: &Client,
    want: &Want<'_>,
    dest: &Path,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    if want.digest.is_none() {
        return Err(Failure::Address {
            url: failure::shown(want.url),
            why: "a download to a file needs a digest".to_owned(),
        });
    }
    let mut sink = sink::File::beside(dest)?;
    attempt::receive(client, want, &mut sink, &|_| (), on_bytes).await?;
    sink.keep().await
}

/// Fetches into an open, empty file whose content something else verifies block by block: a root below dm-verity. The
/// file is not synced. Without such a verifier, [`file()`] is the right one.
///
/// # Errors
/// [`Failure`], when the patience is over or trying again is of no use.
pub async fn verified_elsewhere(
    client: &Client,
    want: &Want<'_>,
    file: std::fs::File,
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let mut sink = sink::Open(file);
    attempt::receive(client, want, &mut sink, on_wait, on_bytes).await
}
