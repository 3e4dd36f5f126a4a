//! Requests to the API server of Kubernetes, on a node and on the workstation: by a kubeconfig's certificates, by a bootstrap
//! token or as nobody.
//!
//! No client library of Kubernetes: a server-side apply is one PATCH with the object as body
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>), and the objects are JSON values here already, so
//! that the types of such a library would be compiled in and not used.

// Floor: one server's readiness
pub mod probe;

// Floor: lists, and what happens to their objects
mod lists;

pub use lists::{Event, goes_on};

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cluster::discovery::Token;
use cluster::kubeconfigs;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, StatusCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};
use serde_json::{Value, json};

/// Longer than the API server lets a request take that is no watch (60 s).
const TIMEOUT: Duration = Duration::from_secs(70);
/// More than the largest object (etcd's limit is 1.5 MiB), and than the lists that are asked for here. A server that is not
/// trusted yet must not fill the memory.
const LARGEST: usize = 8 << 20;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The media type of a server-side apply. JSON is YAML.
const APPLY: &str = "application/apply-patch+yaml";
/// The media type of a merge patch (RFC 7386).
const MERGE: &str = "application/merge-patch+json";
/// The media type of JSON.
const JSON: &str = "application/json";
/// The owner of the fields that are applied.
pub const MANAGER: &str = "slipway";

/// A client of one API server.
#[derive(Debug)]
pub struct Api {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    /// The URL as it is shown.
    server: String,
    /// The URL of the requests: with the name of the server's certificate as its host.
    url: String,
    /// The bootstrap token that every request is made with.
    token: Option<Token>,
    /// How long each request may take, if that is less than the client's own limit.
    limit: Option<Duration>,
}

/// Where an API server is asked.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Its URL.
    pub url: &'a str,
    /// The name of its certificate, if that is not the URL's host. It counts where that host is an address.
    pub name: Option<&'a str>,
}

impl<'a> From<&'a str> for Server<'a> {
    fn from(url: &'a str) -> Self {
        Self { url, name: None }
    }
}

impl<'a> From<&'a String> for Server<'a> {
    fn from(url: &'a String) -> Self {
        Self::from(url.as_str())
    }
}

impl Server<'_> {
    /// The URL of requests, and the address that the name in it stands for.
    fn target(&self) -> (String, Option<(&str, SocketAddr)>) {
        let named = self.name.zip(address(self.url));
        let url = match named {
            Some((name, address)) => format!("https://{name}:{}", address.port()),
            None => self.url.to_owned(),
        };
        (url, named)
    }
}

/// The address of a URL `https://ADDRESS[:PORT]`.
fn address(url: &str) -> Option<SocketAddr> {
    let rest = url.strip_prefix("https://")?.trim_end_matches('/');
    let bare = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let whole = || Some(SocketAddr::new(bare(rest)?, 443));
    rest.parse().ok().or_else(whole)
}

/// Whom a client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Any server: what it answers has to be proven otherwise.
    Anybody,
    /// A server whose certificate one of these authorities signed, PEM.
    Authority(&'a str),
}

/// An answer of the API server that is not a success.
#[derive(Debug)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// The server's message.
    message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}

impl std::error::Error for Refusal {}

/// A request without a whole answer.
#[derive(Debug)]
struct NoAnswer {
    why: String,
    is_unreachable: bool,
}

impl NoAnswer {
    fn of(error: &reqwest::Error) -> Self {
        const AWAY: [ErrorKind; 6] = [
            ErrorKind::ConnectionRefused,
            ErrorKind::ConnectionReset,
            ErrorKind::HostUnreachable,
            ErrorKind::NetworkUnreachable,
            ErrorKind::TimedOut,
            ErrorKind::UnexpectedEof,
        ];
        let first: &(dyn std::error::Error + 'static) = error;
        let causes = std::iter::successors(Some(first), |cause| cause.source());
        let mut causes = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
        let mut is_away = || causes.any(|cause| AWAY.contains(&cause.kind()));
        Self {
            why: chain(error),
            is_unreachable: error.is_connect() && (error.is_timeout() || is_away()),
        }
    }
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for NoAnswer {}

impl Api {
    /// A client by a kubeconfig, to the API server at this URL in place of the kubeconfig's own.
    ///
    /// # Errors
    /// If the kubeconfig has no certificates, or they do not parse.
    pub fn new<'a>(kubeconfig: &str, server: impl Into<Server<'a>>) -> Result<Self> {
        let given = kubeconfigs::read(kubeconfig).context("not a kubeconfig")?;
        let (Some(authority), Some(certificate), Some(key)) =
            (given.authority, given.certificate, given.key)
        else {
            bail!("the kubeconfig has no certificates");
        };
        Self::with_certificate(server, &authority, &certificate, &key)
    }

    /// A client by a certificate and its key, of a server whose certificate one of these authorities signed; all as PEM.
    ///
    /// # Errors
    /// If they do not parse.
    pub fn with_certificate<'a>(
        server: impl Into<Server<'a>>,
        authority: &str,
        certificate: &str,
        key: &str,
    ) -> Result<Self> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .context("the client's certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("the client's key")?;
        let tls = builder()?
            .with_root_certificates(roots(authority)?)
            .with_client_auth_cert(chain, key)
            .context("the client's certificate and key")?;
        Self::with(tls, server.into(), TIMEOUT)
    }

    /// A client without a certificate; each of its requests may take so long.
    ///
    /// # Errors
    /// If the authority does not parse.
    pub fn without_certificate<'a>(
        server: impl Into<Server<'a>>,
        trust: Trust<'_>,
        timeout: Duration,
    ) -> Result<Self> {
        Self::with(tls_without_certificate(trust)?, server.into(), timeout)
    }

    /// The same client with a bootstrap token in each request.
    pub fn with_token(self, token: &Token) -> Self {
        Self {
            token: Some(token.clone()),
            ..self
        }
    }

    /// The same client, each of whose requests may take so long.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    /// A client of a server that answers by plain HTTP.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn plain(server: &str) -> Result<Self> {
        let nobody = builder()?.with_root_certificates(RootCertStore::empty());
        Self::with(nobody.with_no_client_auth(), server.into(), TIMEOUT)
    }

    fn with(tls: ClientConfig, server: Server<'_>, timeout: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the client's runtime")?;
        let (url, named) = server.target();
        let client = client(tls, timeout, named)?;
        Ok(Self {
            runtime,
            client,
            server: server.url.to_owned(),
            url,
            token: None,
            limit: None,
        })
    }

    /// Whether the server's health check of this path succeeds.
    ///
    /// # Errors
    /// Why it does not.
    pub fn healthy(&self, path: &str) -> Result<()> {
        self.send(Method::GET, path, None).map(drop)
    }

    /// An object; none if there is none.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.send(Method::GET, path, None) {
            Ok(body) => serde_json::from_slice(&body)
                .with_context(|| format!("reading {path}"))
                .map(Some),
            Err(error) if status(&error) == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies an object: its fields are this program's from then on, whoever had them.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn apply(&self, path: &str, object: &Value) -> Result<()> {
        let path = format!("{path}?fieldManager={MANAGER}&force=true");
        self.send(Method::PATCH, &path, Some((APPLY, object)))
            .map(drop)
    }

    /// Changes fields of an object.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn merge(&self, path: &str, change: &Value) -> Result<()> {
        let path = format!("{path}?fieldManager={MANAGER}");
        self.send(Method::PATCH, &path, Some((MERGE, change)))
            .map(drop)
    }

    /// The answer to a request with a body of JSON.
    ///
    /// # Errors
    /// If the server does not answer, refuses, or answers otherwise than with JSON.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.send(Method::POST, path, Some((JSON, body)))?;
        serde_json::from_slice(&answer).with_context(|| format!("reading the answer of {path}"))
    }

    /// Replaces an object. The server refuses it with 409 if the object has another `resourceVersion` by now. Returns the new one.
    ///
    /// # Errors
    /// If the server does not answer, refuses, or answers otherwise than with JSON.
    pub fn put(&self, path: &str, object: &Value) -> Result<Value> {
        let answer = self.send(Method::PUT, path, Some((JSON, object)))?;
        serde_json::from_slice(&answer).with_context(|| format!("reading the answer of {path}"))
    }

    /// Deletes an object if it is still the one with this `metadata.uid`; what it owns is deleted behind it. Nothing if there
    /// is none.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn delete(&self, path: &str, uid: &str) -> Result<()> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        });
        match self.send(Method::DELETE, path, Some((JSON, &options))) {
            Err(error) if status(&error) == Some(StatusCode::NOT_FOUND) => Ok(()),
            result => result.map(drop),
        }
    }

    /// The answer of a server that is not Kubernetes' to a GET, with the value of one of its headers.
    ///
    /// # Errors
    /// If the server does not answer, refuses, or answers otherwise than with JSON.
    pub fn get_with_header(&self, path: &str, header: &str) -> Result<(Value, Option<String>)> {
        let (headers, body) = self.exchange(Method::GET, path, &[], Vec::new())?;
        let value = headers.get(header).and_then(|value| value.to_str().ok());
        let value = value.map(str::to_owned);
        let answer = serde_json::from_slice(&body).with_context(|| format!("reading {path}"))?;
        Ok((answer, value))
    }

    /// Sends bytes with these headers to a server that is not Kubernetes'.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn post_bytes(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<()> {
        self.exchange(Method::POST, path, headers, body).map(drop)
    }

    fn send(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> Result<Vec<u8>> {
        let (kind, body) = match body {
            Some((kind, body)) => (Some(("Content-Type", kind)), body.to_string()),
            None => (None, String::new()),
        };
        let headers: Vec<_> = kind.into_iter().collect();
        let answer = self.exchange(method, path, &headers, body.into_bytes());
        answer.map(|(_, body)| body)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token.text()),
            None => request,
        }
    }

    fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<(HeaderMap, Vec<u8>)> {
        let about = || format!("{method} {}{path}", self.server);
        let mut request = self.request(method.clone(), path);
        if let Some(limit) = self.limit {
            request = request.timeout(limit);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !body.is_empty() {
            request = request.body(body);
        }
        let answer = self.runtime.block_on(async {
            let mut response = request.send().await?;
            let mut body = Vec::new();
            while body.len() <= LARGEST
                && let Some(piece) = response.chunk().await?
            {
                body.extend_from_slice(&piece);
            }
            let headers = std::mem::take(response.headers_mut());
            Ok::<_, reqwest::Error>((response.status(), headers, body))
        });
        let (status, headers, body) = answer
            .map_err(|error| NoAnswer::of(&error))
            .with_context(about)?;
        if body.len() > LARGEST {
            return Err(anyhow!("the answer is larger than {LARGEST} bytes")).with_context(about);
        }
        if status.is_success() {
            return Ok((headers, body));
        }
        let message = message(&body);
        Err(Refusal { status, message }).with_context(about)
    }
}

/// A client of HTTP; of a name in a URL it may be given the address.
fn client(
    tls: ClientConfig,
    timeout: Duration,
    named: Option<(&str, SocketAddr)>,
) -> Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("slipway/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        // The API server leads nowhere else, and a server that is not trusted must not.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .timeout(timeout);
    if let Some((name, address)) = named {
        builder = builder.resolve(name, address);
    }
    builder.build().context("making the client")
}

/// TLS of a client without a certificate.
fn tls_without_certificate(trust: Trust<'_>) -> Result<ClientConfig> {
    Ok(match trust {
        Trust::Authority(authority) => builder()?
            .with_root_certificates(roots(authority)?)
            .with_no_client_auth(),
        Trust::Anybody => builder()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider())))
            .with_no_client_auth(),
    })
}

/// The path of an object in the API.
#[must_use]
pub fn path(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = match text(&object["apiVersion"]) {
        core if core.contains('/') => format!("/apis/{core}"),
        core => format!("/api/{core}"),
    };
    let namespace = match &object["metadata"]["namespace"] {
        Value::String(namespace) => format!("/namespaces/{namespace}"),
        _ => String::new(),
    };
    let kind = text(&object["kind"]).to_lowercase();
    let name = text(&object["metadata"]["name"]);
    format!("{group}{namespace}/{kind}s/{name}")
}

/// The status of a refusal, if this error is one.
pub fn status(error: &anyhow::Error) -> Option<StatusCode> {
    error
        .downcast_ref::<Refusal>()
        .map(|refusal| refusal.status)
}

/// Whether nobody answered at all: the server's machine is away or refuses connections, or whoever has the port closes them at once, as a
/// balancer without servers does.
pub fn is_unreachable(error: &anyhow::Error) -> bool {
    let answer = error.downcast_ref::<NoAnswer>();
    answer.is_some_and(|answer| answer.is_unreachable)
}

/// Whether the same request may succeed later: the server does not answer, is overloaded or not complete yet.
pub fn is_temporary(error: &anyhow::Error) -> bool {
    let Some(status) = status(error) else {
        return true;
    };
    // Namespaces and the default roles appear after the server begins to answer.
    let early = [
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    early.contains(&status) || status.is_server_error()
}

/// An error with its causes; the URL stands before it already.
fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    if text.is_empty() {
        text = error.to_string();
    }
    text + &fetch::clock_note(error).unwrap_or_default()
}

/// The message of a `Status` object, else the checks that failed of a health endpoint, else the begin of the text.
fn message(body: &[u8]) -> String {
    const LONGEST: usize = 300;
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let message = value.and_then(|value| value["message"].as_str().map(str::to_owned));
    message.or_else(|| failed_checks(body)).unwrap_or_else(|| {
        String::from_utf8_lossy(&body[..body.len().min(LONGEST)])
            .trim()
            .to_owned()
    })
}

/// The names of the checks that failed, of the text that `/livez` and `/readyz` answer with: a line a check, `[+]` or
/// `[-]` before its name.
fn failed_checks(body: &[u8]) -> Option<String> {
    let text = str::from_utf8(body).ok()?;
    let failed: Vec<_> = text.lines().filter_map(failed_check).collect();
    (!failed.is_empty()).then(|| format!("failed checks: {}", failed.join(", ")))
}

fn failed_check(line: &str) -> Option<&str> {
    line.strip_prefix("[-]")?.split_whitespace().next()
}

/// The certificates of authorities, PEM.
fn roots(authority: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots
            .add(certificate?)
            .context("the authority's certificate")?;
    }
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let builder = ClientConfig::builder_with_provider(provider());
    builder
        .with_safe_default_protocol_versions()
        .context("the versions of TLS")
}

/// Takes any server that has the key of the certificate that it shows.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
