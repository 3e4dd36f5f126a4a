//! The attempts at one download: what is tried again, after how long, from which byte on.

use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::digest::Hash;
use crate::failure::{chain, shown};
use crate::pause::{less_a_random_quarter, retry_after};
use crate::request::{self, Resume};
use crate::sink::Sink;
use crate::{Client, Failure, LONGEST_WAIT, Want};

/// How one attempt ended, when it did not succeed.
enum Ending {
    /// Trying again may help, after the time that the server asked for, if it did.
    Broken(String, Option<Duration>),
    /// It will not.
    Final(Failure),
}

impl Ending {
    fn broken(why: impl Into<String>) -> Self {
        Self::Broken(why.into(), None)
    }
}

impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

/// One download over all its attempts.
struct Download<'a> {
    client: &'a Client,
    want: &'a Want<'a>,
    address: reqwest::Url,
    headers: HeaderMap,
    sink: &'a mut dyn Sink,
    hash: Hash,
    /// Bytes in the sink.
    have: u64,
    /// Bytes that `on_bytes` has heard of.
    told: u64,
    /// Whether what is in the sink came in more than one answer.
    pieced: bool,
    /// What names the version of the content that is in the sink, if the server said so.
    validator: Option<HeaderValue>,
    deadline: Option<Instant>,
    on_wait: &'a (dyn Fn(&str) + Sync),
    on_bytes: &'a (dyn Fn(u64) + Sync),
}

/// Tries until the sink holds the whole content and its digest is right.
pub(crate) async fn receive(
    client: &Client,
    want: &Want<'_>,
    sink: &mut dyn Sink,
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let refuse = |why: String| Failure::Address {
        url: shown(want.url),
        why,
    };
    let address = reqwest::Url::parse(want.url).map_err(|e| refuse(e.to_string()))?;
    if !matches!(address.scheme(), "http" | "https") {
        return Err(refuse(format!(
            "only http and https are fetched, not {}",
            address.scheme()
        )));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &want.headers {
        let name: HeaderName = name
            .parse()
            .map_err(|_| refuse(format!("{name:?} is no header name")))?;
        let value = HeaderValue::from_str(value).map_err(|_| {
            refuse(format!(
                "the value of header {name} has characters that no header can have"
            ))
        })?;
        headers.append(name, value);
    }
    let download = Download {
        client,
        want,
        address,
        headers,
        hash: Hash::new(want.digest),
        sink,
        have: 0,
        told: 0,
        pieced: false,
        validator: None,
        deadline: want.patience.total.map(|total| Instant::now() + total),
        on_wait,
        on_bytes,
    };
    download.run().await
}

impl Download<'_> {
    async fn run(mut self) -> Result<(), Failure> {
        let patience = self.want.patience;
        let mut wait = patience.first_wait;
        let mut attempt = 1;
        loop {
            let (why, asked) = match self.once().await {
                Ok(()) => return Ok(()),
                Err(Ending::Final(failure)) => return Err(failure),
                Err(Ending::Broken(why, asked)) => (why, asked),
            };
            let pause = less_a_random_quarter(wait.min(LONGEST_WAIT));
            let pause = asked.map_or(pause, |asked| asked.max(pause));
            let out_of_time = self
                .deadline
                .is_some_and(|end| Instant::now() + pause >= end);
            if patience.attempts.is_some_and(|most| attempt >= most) || out_of_time {
                return Err(Failure::Unreachable {
                    url: shown(self.want.url),
                    attempts: attempt,
                    why,
                });
            }
            (self.on_wait)(&format!(
                "{}: {why}; attempt {} in {:.1} s",
                shown(self.want.url),
                attempt + 1,
                pause.as_secs_f64()
            ));
            self.sleep(pause, attempt + 1).await;
            wait = (wait * 2).min(LONGEST_WAIT);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Waits before an attempt; a wait that the server asked for may be long, so it says every five seconds how much of
    /// it is left.
    async fn sleep(&self, pause: Duration, attempt: u32) {
        let mut left = pause;
        while left > LONGEST_WAIT {
            tokio::time::sleep(LONGEST_WAIT).await;
            left -= LONGEST_WAIT;
            (self.on_wait)(&format!(
                "{}: the server asked to wait; attempt {attempt} in {:.1} s",
                shown(self.want.url),
                left.as_secs_f64()
            ));
        }
        tokio::time::sleep(left).await;
    }

    /// One request and its answer.
    async fn once(&mut self) -> Result<(), Ending> {
        // Only a digest, or the server's word that the content is still the same, makes it safe to join two answers.
        let resume = self.have > 0 && (self.want.digest.is_some() || self.validator.is_some());
        if !resume {
            self.restart()?;
        }
        let mut response = self.answer(resume).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if resume && starts_at(&response, self.have) => {
                self.pieced = true
            }
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT => {
                self.restart()?;
                return Err(Ending::broken(
                    "the server does not resume where the download broke off",
                ));
            }
            StatusCode::OK => {
                self.restart()?;
                self.validator = request::validator(response.headers());
            }
            status if worth_repeating(status) || self.want.repeat.contains(&status.as_u16()) => {
                return Err(Ending::Broken(
                    format!("the server answered {status}"),
                    retry_after(response.headers()),
                ));
            }
            status => {
                return Err(Failure::Status {
                    url: shown(self.want.url),
                    code: status.as_u16(),
                    challenge: response
                        .headers()
                        .get(WWW_AUTHENTICATE)
                        .and_then(|value| value.to_str().ok())
                        .map(str::to_owned),
                }
                .into());
            }
        }
        if let Some(length) = response.content_length() {
            self.fits(self.have.saturating_add(length))?;
        }
        while let Some(piece) = self.piece(&mut response).await? {
            self.take(&piece)?;
        }
        self.check()
    }

    async fn answer(&self, resume: bool) -> Result<Response, Ending> {
        let resume = resume.then_some(Resume {
            from: self.have,
            validator: self.validator.as_ref(),
        });
        let (address, headers) = (self.address.clone(), self.headers.clone());
        let sent = request::send(self.client, self.want.method, address, headers, resume);
        self.within(self.want.patience.header_timeout, "no answer", sent)
            .await
    }

    async fn piece(
        &self,
        response: &mut Response,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, Ending> {
        let chunk = async { response.chunk().await.map_err(|e| chain(&e.without_url())) };
        self.within(self.want.patience.idle_timeout, "the answer stalls", chunk)
            .await
    }

    /// Waits for `what` until its own limit or the whole download's, with a word to the watcher every five seconds.
    async fn within<T>(
        &self,
        limit: Duration,
        complaint: &str,
        what: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Ending> {
        let begin = Instant::now();
        let end = self
            .deadline
            .map_or(begin + limit, |total| total.min(begin + limit));
        let mut what = std::pin::pin!(what);
        let mut next_word = begin + LONGEST_WAIT;
        loop {
            match timeout_at(next_word.min(end), &mut what).await {
                Ok(result) => return result.map_err(Ending::broken),
                Err(_) if Instant::now() >= end => {
                    let seconds = begin.elapsed().as_secs_f64();
                    return Err(Ending::broken(format!("{complaint} for {seconds:.1} s")));
                }
                Err(_) => {
                    let seconds = begin.elapsed().as_secs();
                    (self.on_wait)(&format!(
                        "{}: {complaint} for {seconds} s",
                        shown(self.want.url)
                    ));
                    next_word += LONGEST_WAIT;
                }
            }
        }
    }

    fn fits(&self, bytes: u64) -> Result<(), Ending> {
        if bytes > self.want.limit {
            return Err(Failure::TooLarge {
                url: shown(self.want.url),
                limit: self.want.limit,
            }
            .into());
        }
        Ok(())
    }

    fn take(&mut self, piece: &impl AsRef<[u8]>) -> Result<(), Ending> {
        let piece = piece.as_ref();
        let after = self
            .have
            .saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        self.fits(after)?;
        self.sink.push(piece)?;
        self.hash.update(piece);
        self.have = after;
        if after > self.told {
            (self.on_bytes)(after - self.told);
            self.told = after;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Ending> {
        self.sink.restart()?;
        self.hash = Hash::new(self.want.digest);
        self.have = 0;
        self.pieced = false;
        self.validator = None;
        Ok(())
    }

    fn check(&mut self) -> Result<(), Ending> {
        let hash = std::mem::replace(&mut self.hash, Hash::new(self.want.digest));
        let (Some(expected), Some(found)) = (self.want.digest, hash.finish()) else {
            return Ok(());
        };
        if expected == found {
            return Ok(());
        }
        if self.pieced {
            // The file may have changed between the two answers: once more, from the start.
            self.restart()?;
            return Err(Ending::broken(
                "the resumed content does not hash to what it should",
            ));
        }
        Err(Failure::Digest {
            url: shown(self.want.url),
            expected: Box::new(expected),
            found: Box::new(found),
        }
        .into())
    }
}

fn worth_repeating(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

/// Whether the answer's `Content-Range: bytes FIRST-LAST/ALL` begins at `first`.
fn starts_at(response: &Response, first: u64) -> bool {
    response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| {
            text.strip_prefix("bytes ")?
                .split_once('-')?
                .0
                .parse::<u64>()
                .ok()
        })
        == Some(first)
}
