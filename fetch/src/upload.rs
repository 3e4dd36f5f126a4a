//! Requests with content, which a server stores: bytes, or a file that is read as it goes.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, SizeHint};
use reqwest::header::{CONTENT_LENGTH, HeaderMap};
use reqwest::{Body, RequestBuilder, Response, Url};
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::{Failure, shown};
use crate::pause::less_a_random_quarter;
use crate::request::{HOPS, redirect};
use crate::s3_error;
use crate::want::{LONGEST_WAIT, Patience};

/// Bytes that are read of a file at a time.
const PIECE: u64 = 256 << 10;
/// Size limit of an answer, bytes.
const ANSWER_LIMIT: usize = 1 << 20;
/// The slowest upload that is waited for, bytes in a second.
const SLOWEST: u64 = 256 << 10;

/// What is stored.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// A file of this many bytes.
    File(&'a Path, u64),
    /// The bytes of a file from this one on, this many.
    Range(&'a Path, u64, u64),
}

impl<'a> Content<'a> {
    /// No content.
    pub(crate) const NONE: Self = Self::Bytes(&[]);

    /// The bytes from this one on, this many, all of which it has.
    pub(crate) fn part(&self, at: u64, size: u64) -> Self {
        match *self {
            // What is in memory is not larger than its numbers.
            Self::Bytes(bytes) => {
                let index = |at: u64| usize::try_from(at).unwrap_or(bytes.len()).min(bytes.len());
                Self::Bytes(&bytes[index(at)..index(at + size)])
            }
            Self::File(path, _) => Self::Range(path, at, size),
            Self::Range(path, first, _) => Self::Range(path, first + at, size),
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, size) | Self::Range(_, _, size) => *size,
        }
    }

    fn body(&self) -> Result<Body, Failure> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.to_vec().into()),
            Self::File(path, size) => pieces(path, 0, *size),
            Self::Range(path, at, size) => pieces(path, *at, *size),
        }
    }
}

fn pieces(path: &Path, at: u64, size: u64) -> Result<Body, Failure> {
    let open = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(file)
    };
    let file = open().map_err(|source| Failure::Disk {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Body::wrap(Pieces { file, left: size }))
}

/// A file as a body of known length. It is read in place: a client that uploads does nothing else meanwhile.
struct Pieces {
    file: File,
    left: u64,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = Vec::new();
        let read = (&self.file)
            .take(PIECE.min(self.left))
            .read_to_end(&mut piece);
        Poll::Ready(Some(match read {
            Ok(0) => Err(std::io::Error::other("the file became shorter")),
            Ok(n) => {
                self.left -= n as u64;
                Ok(Frame::data(piece.into()))
            }
            Err(error) => Err(error),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A request with content, or without: HEAD, or a POST of none.
pub(crate) struct Upload<'a> {
    pub(crate) method: reqwest::Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) content: Content<'a>,
    /// Whether a redirect is followed, with neither headers nor content: of a HEAD, which sends none.
    pub(crate) follows: bool,
}

/// An answer of success.
pub(crate) struct Stored {
    pub(crate) headers: HeaderMap,
    /// The content, of a POST's answer alone.
    pub(crate) body: Vec<u8>,
}

/// Sends what `make` gives until the server answers: another status than success is a failure, which is tried again where that may
/// help. `shown_as` is the address for messages.
pub(crate) async fn send<'a>(
    client: &Client,
    shown_as: &str,
    patience: Patience,
    mut make: impl AsyncFnMut() -> Result<Upload<'a>, Ending>,
) -> Result<Stored, Failure> {
    client.online(shown_as)?;
    // A limit beyond the clock's range is none.
    let until = patience
        .total
        .and_then(|total| Instant::now().checked_add(total));
    let mut wait = patience.first_wait;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let ended = match make().await {
            Ok(upload) => once(client, upload, patience, until).await,
            Err(ending) => Err(ending),
        };
        let (why, asked_for) = match ended {
            Ok(stored) => return Ok(stored),
            Err(Ending::Final(failure)) => return Err(failure),
            Err(Ending::Broken(why, asked_for)) => (why, asked_for),
        };
        let pause = asked_for.unwrap_or_else(|| less_a_random_quarter(wait));
        let is_last = patience.attempts.is_some_and(|most| attempts >= most);
        if is_last || until.is_some_and(|until| Instant::now() + pause >= until) {
            return Err(Failure::Unreachable {
                url: shown(shown_as),
                attempts,
                why,
            });
        }
        sleep(pause).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// One attempt: the time for its content follows from the size.
async fn once(
    client: &Client,
    upload: Upload<'_>,
    patience: Patience,
    until: Option<Instant>,
) -> Result<Stored, Ending> {
    let header_timeout = patience.header_timeout;
    let url = upload.url.clone();
    let has_answer = upload.method == reqwest::Method::POST;
    let size = upload.content.size();
    let limit = Instant::now() + header_timeout + Duration::from_secs(size / SLOWEST);
    let limit = until.map_or(limit, |until| until.min(limit));
    let mut request = client
        .http
        .request(upload.method.clone(), upload.url)
        .headers(upload.headers);
    if upload.method != reqwest::Method::HEAD {
        let body = upload.content.body()?;
        request = request.header(CONTENT_LENGTH, size).body(body);
    }
    let mut answer = answer(client, request, (&url, limit)).await?;
    if upload.follows && answer.status().is_redirection() {
        answer = elsewhere(client, upload.method, answer, limit).await?;
        if !answer.status().is_success() {
            // Without its headers: another server's challenge is none of the one that was asked, and gets no login.
            let at = answer.url().clone();
            return Err(Ending::of(
                at.as_str(),
                answer.status(),
                &HeaderMap::new(),
                &[],
            ));
        }
    }
    match answer.status() {
        status if status.is_success() => Ok(Stored {
            headers: answer.headers().clone(),
            body: match has_answer {
                true => body(url.as_str(), answer, patience.idle_timeout, until).await?,
                false => Vec::new(),
            },
        }),
        // A moved bucket or registry is for the user to name anew: what is stored is not sent on.
        status if status.is_redirection() => Err(Ending::refused(
            url.as_str(),
            format!("the server answered {status}, and what was sent is not sent elsewhere"),
        )),
        status => {
            let ending = Ending::of(url.as_str(), status, answer.headers(), &[]);
            Err(ending.with_note(s3_error::note(answer).await))
        }
    }
}

/// Sends a request for a URL, until a limit.
async fn answer(
    client: &Client,
    request: RequestBuilder,
    (url, limit): (&Url, Instant),
) -> Result<Response, Ending> {
    let request = request
        .build()
        .map_err(|error| Ending::refused(url.as_str(), error.without_url().to_string()))?;
    timeout_at(limit, client.http.execute(request))
        .await
        .map_err(|_| Ending::broken("no answer"))?
        .map_err(|error| Ending::broken(error.to_string()))
}

/// Follows the redirects of a request without content, and without headers: another server must not learn a token. One by https is not
/// redirected to plain http, where anybody on the way could answer.
async fn elsewhere(
    client: &Client,
    method: reqwest::Method,
    mut last: Response,
    limit: Instant,
) -> Result<Response, Ending> {
    for _ in 0..=HOPS {
        let from = last.url().clone();
        let Some(next) = redirect(&last) else {
            return Ok(last);
        };
        if from.scheme() == "https" && next.scheme() != "https" {
            let why = "it redirects from https to http";
            return Err(Ending::refused(from.as_str(), why));
        }
        let request = client.http.request(method.clone(), next.clone());
        last = answer(client, request, (&next, limit)).await?;
    }
    Err(Ending::broken(format!(
        "it was redirected more than {HOPS} times"
    )))
}

/// The content of an answer. A server that works on a request may send white space until it is done.
async fn body(
    url: &str,
    mut answer: reqwest::Response,
    idle_timeout: Duration,
    until: Option<Instant>,
) -> Result<Vec<u8>, Ending> {
    let mut body = Vec::new();
    loop {
        let limit = Instant::now() + idle_timeout;
        let limit = until.map_or(limit, |until| until.min(limit));
        let piece = timeout_at(limit, answer.chunk()).await;
        let piece = piece
            .map_err(|_| Ending::broken("the answer stopped"))?
            .map_err(|error| Ending::broken(error.without_url().to_string()))?;
        match piece {
            Some(piece) if body.len() + piece.len() <= ANSWER_LIMIT => {
                body.extend_from_slice(&piece);
            }
            Some(_) => {
                let why = format!("its answer has more than {ANSWER_LIMIT} bytes");
                return Err(Ending::refused(url, why));
            }
            None => return Ok(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;

    use super::*;

    #[test]
    fn a_file_that_became_shorter_is_not_stored_as_if_it_were_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 300_000]).unwrap();
        let mut pieces = Pieces {
            file: File::open(&path).unwrap(),
            left: 300_001,
        };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut next = || Pin::new(&mut pieces).poll_frame(&mut context);
        let mut found = 0;
        let error = loop {
            match next() {
                Poll::Ready(Some(Ok(frame))) => found += frame.into_data().unwrap().len(),
                Poll::Ready(Some(Err(error))) => break error,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(found, 300_000);
        assert!(error.to_string().contains("shorter"), "{error}");
        let whole = Pieces {
            file: File::open(&path).unwrap(),
            left: 5,
        };
        assert_eq!(whole.size_hint().exact(), Some(5));
    }
}
