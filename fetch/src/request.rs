//! One HTTP request: method, range, redirects.

use std::ops::RangeInclusive;

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE,
};
use reqwest::{Response, StatusCode, Url};

use crate::digest::Digest;
use crate::ending::Ending;
use crate::failure::chain;
use crate::http::Http;
use crate::http::NoAnswer;
use crate::login::Login;
use crate::source_port;
use crate::want::Method;

/// Redirects that are followed for one request, as by Go's client.
pub(crate) const HOPS: usize = 10;

/// Why a redirect is not followed.
const DOWNGRADE: &str = "it redirects from https to http, which needs a hash of the content";
const DOWNGRADE_AT_ALL: &str =
    "it redirects from https to http; give the URL with http:// if it is to be fetched so";

/// Where a request goes.
pub(crate) struct Address {
    url: Url,
    /// Path and query as they go over the wire, where the URL cannot hold them.
    target: Option<String>,
    /// The login at this server.
    login: Option<Login>,
}

impl Address {
    /// The server of a URL, with this path and query in place of the URL's.
    pub(crate) fn exact(url: Url, target: String) -> Self {
        Self {
            url,
            target: Some(target),
            login: None,
        }
    }

    /// The address with a login at its server.
    pub(crate) fn with_login(url: Url, login: Option<Login>) -> Self {
        Self {
            url,
            target: None,
            login,
        }
    }
}

impl Address {
    /// The URL; none if it does not say where the request goes.
    pub(crate) fn into_url(self) -> Option<Url> {
        self.target.is_none().then_some(self.url)
    }
}

impl From<Url> for Address {
    fn from(url: Url) -> Self {
        Self::with_login(url, None)
    }
}

/// An HTTP request that gives the content.
pub(crate) struct Request {
    pub(crate) address: Address,
    /// Headers in addition to the caller's.
    pub(crate) headers: HeaderMap,
    /// The digest of the content, if a document that was read on the way to it names one.
    pub(crate) digest: Option<Digest>,
}

impl Request {
    pub(crate) fn to(address: Address) -> Self {
        Self {
            address,
            headers: HeaderMap::new(),
            digest: None,
        }
    }
}

/// One header.
pub(crate) fn header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), Ending> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        Ending::broken(format!(
            "{name}: it has characters that are not allowed in a header"
        ))
    })?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

/// The position at which an interrupted download resumes.
pub(crate) struct Resume<'a> {
    /// The first byte to request.
    pub(crate) from: u64,
    /// The validator of the content that the bytes before belong to.
    pub(crate) validator: Option<&'a HeaderValue>,
}

/// Sends a request and follows redirects. `verified`: whether a digest, or other means, vouch for the content; without
/// them a request by https is not redirected to plain http, where anybody on the way could answer; with [`Http::keeps_tls`]
/// none is. A redirected request keeps the headers that select the form of the content and loses every other header of the
/// caller's, and its source port: the other server must not learn a token, nor take the request for that of a privileged
/// program. The address's login goes to its own server alone: same scheme, host and port. The redirect of a path that
/// no URL can hold is not followed.
pub(crate) async fn send(
    client: &Http,
    method: Method,
    address: Address,
    mut headers: HeaderMap,
    resume: Option<Resume<'_>>,
    mut source_ports: Option<&RangeInclusive<u16>>,
    verified: bool,
) -> Result<Response, Ending> {
    let failed = |url: &Url, error: NoAnswer| match error.forbidden() {
        Some(why) => Ending::refused(url.as_str(), why.to_string()),
        None => Ending::broken(error.to_string()),
    };
    let Address {
        url: mut address,
        target: exact,
        login,
    } = address;
    let is_tls = address.scheme() == "https";
    let server = address.origin();
    for _ in 0..=HOPS {
        if let Some(Err(why)) = client.guard.as_ref().map(|guard| guard.admit(&address)) {
            return Err(Ending::refused(address.as_str(), why.to_string()));
        }
        let mut request = match method {
            Method::Get => client.request(reqwest::Method::GET, address.clone()),
            Method::Head => client.request(reqwest::Method::HEAD, address.clone()),
            Method::Put => {
                let request = client.request(reqwest::Method::PUT, address.clone());
                request.header(CONTENT_LENGTH, 0)
            }
        };
        request = request.headers(headers.clone());
        if let Some(login) = login.as_ref().filter(|_| address.origin() == server)
            && !headers.contains_key(AUTHORIZATION)
        {
            let (name, value) = header("authorization", &login.basic())?;
            request = request.header(name, value);
        }
        if let Some(resume) = &resume {
            request = request.header(RANGE, format!("bytes={}-", resume.from));
            if let Some(validator) = resume.validator {
                request = request.header(IF_RANGE, validator);
            }
        }
        let request = request.build();
        let request = request.map_err(|error| failed(&address, error.into()))?;
        if let Some(path) = &exact {
            return Ok(client.dialer.execute(request, path, &client.links).await?);
        }
        let response = match source_ports.take() {
            Some(ports) => source_port::execute(ports, request, &client.links).await?,
            None => {
                let answer = client.execute(request).await;
                answer.map_err(|error| failed(&address, error))?
            }
        };
        match target(&response, method) {
            Some(next) if is_tls && next.scheme() != "https" && (client.keeps_tls || !verified) => {
                let why = match client.keeps_tls {
                    true => DOWNGRADE_AT_ALL,
                    false => DOWNGRADE,
                };
                return Err(Ending::refused(address.as_str(), why));
            }
            Some(next) => address = next,
            None => return Ok(response),
        }
        headers = [ACCEPT, ACCEPT_ENCODING]
            .into_iter()
            .filter_map(|name| headers.get(&name).map(|value| (name, value.clone())))
            .collect();
    }
    Err(Ending::broken(format!(
        "it was redirected more than {HOPS} times"
    )))
}

/// A complete response in memory, whatever its status.
pub(crate) struct Small {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Fetches a small document of at most `limit` bytes. The caller enforces the deadline.
pub(crate) async fn small(
    client: &Http,
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    limit: usize,
) -> Result<Small, Ending> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
        let (Ok(name), Ok(value)) = parsed else {
            return Err(Ending::broken(format!(
                "header {name} has characters that are not allowed in a header"
            )));
        };
        map.insert(name, value);
    }
    small_with(client, method, url, map, limit).await
}

/// As [`small`].
pub(crate) async fn small_with(
    client: &Http,
    method: Method,
    url: &str,
    headers: HeaderMap,
    limit: usize,
) -> Result<Small, Ending> {
    let address = Url::parse(url).map_err(|error| Ending::refused(url, error.to_string()))?;
    let mut response = send(client, method, address.into(), headers, None, None, false).await?;
    let mut body = Vec::new();
    let chunk = async |response: &mut Response| {
        let chunk = response.chunk().await;
        chunk.map_err(|error| Ending::broken(chain(&error.without_url())))
    };
    while let Some(piece) = chunk(&mut response).await? {
        if body.len() + piece.len() > limit {
            return Err(Ending::refused(
                url,
                format!("the answer is longer than {limit} bytes"),
            ));
        }
        body.extend_from_slice(&piece);
    }
    Ok(Small {
        status: response.status(),
        headers: response.headers().clone(),
        body,
    })
}

/// The target of a redirect; none if the response is not one, or if its target is not http. Only a GET is repeated
/// elsewhere.
fn target(response: &Response, method: Method) -> Option<Url> {
    redirect(response).filter(|_| method == Method::Get)
}

/// The target of a redirect, whatever was asked for; none if the response is not one, or if its target is not http.
pub(crate) fn redirect(response: &Response) -> Option<Url> {
    let redirects = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    if !redirects {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let next = response.url().join(location).ok()?;
    matches!(next.scheme(), "http" | "https").then_some(next)
}

/// The validator of a content for `If-Range` (RFC 9110, 13.1.5): a strong entity tag, else the time of its last change.
pub(crate) fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers
        .get(ETAG)
        .filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    tag.or_else(|| headers.get(LAST_MODIFIED)).cloned()
}
