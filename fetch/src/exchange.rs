//! One request and its answer over a connection of its own: what reqwest cannot do by its pools.

use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::rt::{Read, Write};
use reqwest::{Body, Response, ResponseBuilderExt as _, Url};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request to the server itself. `target` is its path and query as they go over the wire; none: the URL's.
pub(crate) async fn exchange(
    stream: impl Read + Write + Unpin + Send + 'static,
    url: &Url,
    target: Option<&str>,
    request: reqwest::Request,
) -> Result<Response, BoxError> {
    let mut request = hyper::Request::<Body>::try_from(request)?;
    // In a request to the server itself the target is the path alone, and the host is a header (RFC 9112, 3.2.1).
    let path = request.uri().path_and_query();
    let path = target.unwrap_or(path.map_or("/", |path| path.as_str()));
    *request.uri_mut() = path.parse()?;
    let host = url.host_str().unwrap_or_default();
    let host = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    request.headers_mut().insert(HOST, host.parse()?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    // The connection ends with the response's body, which reports its failure too.
    tokio::spawn(connection);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let mut answer = hyper::Response::builder()
        .status(parts.status)
        .url(url.clone())
        .body(Body::wrap(body))?;
    *answer.headers_mut() = parts.headers;
    Ok(answer.into())
}
