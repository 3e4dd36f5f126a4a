//! Requests whose path goes over the wire as it is, one connection each. A URL cannot hold the segments `.` and `..`: its parser
//! resolves them, escaped or not, and in S3 they are part of an object's key.

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use reqwest::{Response, Url};
use rustls::ClientConfig;
use tokio::time::timeout;
use tower_service::Service;

use crate::exchange::{BoxError, exchange};
use crate::failure::chain;
use crate::links::Links;
use crate::proxy::Via;

/// How long one way is tried, the proxy's tunnel and the server's certificate included.
const PER_WAY: Duration = Duration::from_secs(10);

/// Connects as a client's pools do: with its trust, and by its proxy.
#[derive(Clone)]
pub(crate) struct Dialer {
    trust: ClientConfig,
    via: Via,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

/// A connection of any kind.
trait Stream: Read + Write + Send + Unpin {}
impl<T: Read + Write + Send + Unpin> Stream for T {}

impl Dialer {
    pub(crate) fn new(trust: ClientConfig, via: Via) -> Self {
        Self { trust, via }
    }

    /// Sends a request with this path and query, by the first way that leads to the server.
    pub(crate) async fn execute(
        &self,
        request: reqwest::Request,
        target: &str,
        links: &Links,
    ) -> Result<Response, String> {
        let url = request.url().clone();
        let mut why = "no way to the server".to_owned();
        for way in links.ways() {
            match timeout(PER_WAY, self.connect(&url, way.as_deref())).await {
                Ok(Ok(stream)) => {
                    links.answered(&way);
                    let answer = exchange(stream, &url, Some(target), request).await;
                    return answer.map_err(|error| chain(&*error));
                }
                Ok(Err(error)) => why = chain(&*error),
                Err(_) => why = format!("no connection for {} s", PER_WAY.as_secs()),
            }
        }
        Err(why)
    }

    async fn connect(&self, url: &Url, link: Option<&str>) -> Result<Box<dyn Stream>, BoxError> {
        // With its port: a tunnel's own default is that of TLS, whatever the scheme.
        let (host, port) = (url.host_str(), url.port_or_known_default());
        let (host, port) = (host.unwrap_or_default(), port.unwrap_or(443));
        let server: Uri = format!("{}://{host}:{port}/", url.scheme()).parse()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        if let Some(link) = link {
            tcp.set_interface(link);
        }
        let Some(proxy) = self.via.intercept(url, &server) else {
            return open(self.with_tls(tcp), server).await;
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.with_tls(tcp));
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        open(self.with_tls(tunnel), server).await
    }

    /// TLS where the address asks for it.
    fn with_tls<C>(&self, connector: C) -> HttpsConnector<C> {
        HttpsConnectorBuilder::new()
            .with_tls_config(self.trust.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector)
    }
}

async fn open<C>(mut connector: C, server: Uri) -> Result<Box<dyn Stream>, BoxError>
where
    C: Service<Uri, Response: Stream + 'static, Error: Into<BoxError>>,
{
    let ready = poll_fn(|context| connector.poll_ready(context)).await;
    ready.map_err(Into::into)?;
    let stream = connector.call(server).await.map_err(Into::into)?;
    Ok(Box::new(stream))
}
