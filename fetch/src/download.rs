//! Downloads: attempts, the waits between them, resumption, verification.

use std::path::Path;
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::digest::{Digest, Hash};
use crate::ending::Ending;
use crate::failure::{Failure, chain, shown};
use crate::pause::less_a_random_quarter;
use crate::request::{self, Resume};
use crate::schemes::Source;
use crate::sink::{File, Memory, Open, Sink};
use crate::tftp::Piece;
use crate::want::{LONGEST_WAIT, Patience, Want};

/// Fetches into memory. A body that is cut short goes on where it broke off if the server can tell that it is still the
/// same content, and is fetched anew otherwise. `on_wait` is called with the reason before each new attempt, and every five
/// seconds of silence; `on_bytes` with the number of bytes that each piece adds, as for [`file()`].
///
/// # Errors
/// [`Failure`], when the patience is exhausted or another attempt cannot help.
pub async fn bytes(
    client: &Client,
    want: &Want<'_>,
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<Vec<u8>, Failure> {
    let mut sink = Memory::of(want);
    receive(client, want, (&mut sink, false), on_wait, on_bytes).await?;
    Ok(sink.keep())
}

/// Fetches into the file `dest`: a temporary file beside it, synced and renamed once its digest is right. An attempt
/// that breaks off is resumed where it ended. `on_bytes` is called with the number of bytes that each piece adds; bytes
/// that are fetched again are not counted twice.
///
/// # Errors
/// [`Failure`], when the patience is exhausted or another attempt cannot help; also when `want` has no digest.
pub async fn file(
    client: &Client,
    want: &Want<'_>,
    dest: &Path,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    if want.digest.is_none() {
        return Err(Failure::Address {
            url: shown(want.url),
            why: "a download to a file needs a digest".to_owned(),
        });
    }
    let mut sink = File::beside(dest)?;
    receive(client, want, (&mut sink, false), &|_| (), on_bytes).await?;
    sink.keep().await
}

/// Fetches into an open, empty file whose content is verified block by block by other means: a root below dm-verity.
/// The file is not synced. Without such a verifier, [`file()`] is the right one.
///
/// # Errors
/// [`Failure`], when the patience is exhausted or another attempt cannot help.
pub async fn verified_elsewhere(
    client: &Client,
    want: &Want<'_>,
    file: std::fs::File,
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let mut sink = Open(file);
    receive(client, want, (&mut sink, true), on_wait, on_bytes).await
}

/// Fetches piece by piece into the caller's sink, which verifies the content once it is complete.
///
/// # Errors
/// [`Failure`], when the patience is exhausted, when another attempt cannot help, or the sink's own.
pub async fn pieces(
    client: &Client,
    want: &Want<'_>,
    sink: &mut dyn Sink,
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    receive(client, want, (sink, false), on_wait, on_bytes).await
}

/// One download over all its attempts.
struct Download<'a> {
    client: &'a Client,
    want: &'a Want<'a>,
    source: Source,
    headers: HeaderMap,
    /// The expected digest: the caller's, else the one that the source names.
    digest: Option<Digest>,
    sink: &'a mut dyn Sink,
    /// Whether the caller verifies the content.
    verified: bool,
    hash: Hash,
    /// Bytes in the sink.
    have: u64,
    /// Bytes that were passed to `on_bytes`.
    reported: u64,
    /// Whether the sink's content came in more than one response.
    pieced: bool,
    /// The validator of the content in the sink, if the server sent one.
    validator: Option<HeaderValue>,
    /// Since when the answer's pace is measured, and its bytes since then.
    pace: (Instant, u64),
    watch: Watch<'a>,
    on_bytes: &'a (dyn Fn(u64) + Sync),
}

/// The deadlines, and the callback for waits.
#[derive(Clone, Copy)]
struct Watch<'a> {
    url: &'a str,
    patience: Patience,
    begin: Instant,
    /// When the last byte came that had not come before.
    last_byte: Instant,
    on_wait: &'a (dyn Fn(&str) + Sync),
}

/// Tries until the sink holds the whole content and its digest is right; the flag beside the sink says whether the caller
/// verifies the content by other means.
async fn receive(
    client: &Client,
    want: &Want<'_>,
    (sink, verified): (&mut dyn Sink, bool),
    on_wait: &(dyn Fn(&str) + Sync),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let refuse = |why: String| Failure::Address {
        url: shown(want.url),
        why,
    };
    client.online(want.url)?;
    let source = Source::parse(want.url).map_err(&refuse)?;
    if want.source_ports.is_some() && !want.url.starts_with("http:") {
        return Err(refuse(
            "a source port can be chosen for plain http only".to_owned(),
        ));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &want.headers {
        let name: HeaderName = name
            .parse()
            .map_err(|_| refuse(format!("{name:?} is not a header name")))?;
        let value = HeaderValue::from_str(value).map_err(|_| {
            refuse(format!(
                "the value of header {name} has characters that are not allowed in a header"
            ))
        })?;
        headers.append(name, value);
    }
    let begin = Instant::now();
    let download = Download {
        client,
        want,
        source,
        headers,
        digest: want.digest,
        hash: Hash::new(want.digest),
        sink,
        verified,
        have: 0,
        reported: 0,
        pieced: false,
        validator: None,
        pace: (begin, 0),
        watch: Watch {
            url: want.url,
            patience: want.patience,
            begin,
            last_byte: begin,
            on_wait,
        },
        on_bytes,
    };
    download.run().await
}

impl Watch<'_> {
    /// When all attempts together end, and why. A limit beyond the clock's range is none, as a config may have one.
    fn deadline(&self) -> Option<(Instant, String)> {
        let end = |since: Instant, limit: Option<Duration>, what: &str| {
            let limit = limit?;
            let seconds = limit.as_secs_f64();
            let end = since.checked_add(limit)?;
            Some((end, format!("{what} within {seconds:.1} s")))
        };
        let whole = end(self.begin, self.patience.total, "not complete");
        let bytes = end(self.last_byte, self.patience.without_bytes, "no new byte");
        [whole, bytes].into_iter().flatten().min()
    }

    /// Waits for `what` until its own limit or the whole download's, with a word to the watcher every five seconds.
    async fn within<T>(
        self,
        limit: Duration,
        complaint: &str,
        what: impl Future<Output = Result<T, Ending>>,
    ) -> Result<T, Ending> {
        let begin = Instant::now();
        let deadline = self.deadline();
        let last = deadline.as_ref().map(|(end, _)| *end);
        let end = [last, begin.checked_add(limit)];
        let end = end.into_iter().flatten().min();
        let mut what = std::pin::pin!(what);
        let mut next_word = begin + LONGEST_WAIT;
        loop {
            let next = end.map_or(next_word, |end| end.min(next_word));
            match timeout_at(next, &mut what).await {
                Ok(result) => return result,
                Err(_) if end.is_some_and(|end| Instant::now() >= end) => {
                    let seconds = limit.as_secs_f64();
                    let why = match deadline {
                        Some((last, why)) if Some(last) == end => why,
                        _ => format!("{complaint} for {seconds:.1} s"),
                    };
                    return Err(Ending::broken(why));
                }
                Err(_) => {
                    let seconds = begin.elapsed().as_secs();
                    (self.on_wait)(&format!("{}: {complaint} for {seconds} s", shown(self.url)));
                    next_word += LONGEST_WAIT;
                }
            }
        }
    }
}

impl Download<'_> {
    async fn run(mut self) -> Result<(), Failure> {
        let patience = self.want.patience;
        let mut wait = patience.first_wait;
        let mut attempt = 1;
        loop {
            let (why, asked) = match self.once(attempt).await {
                Ok(()) => return Ok(()),
                Err(Ending::Final(failure)) => return Err(failure),
                Err(Ending::Broken(why, asked)) => (why, asked),
            };
            let pause = less_a_random_quarter(wait.min(LONGEST_WAIT));
            let pause = asked.map_or(pause, |asked| asked.max(pause));
            let deadline = self.watch.deadline();
            let out_of_time = deadline.is_some_and(|(end, _)| Instant::now() + pause >= end);
            if patience.attempts.is_some_and(|most| attempt >= most) || out_of_time {
                return Err(Failure::Unreachable {
                    url: shown(self.want.url),
                    attempts: attempt,
                    why,
                });
            }
            (self.watch.on_wait)(&format!(
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

    /// Waits before an attempt. A server may request a long wait, so the time that remains is reported every five
    /// seconds.
    async fn sleep(&self, pause: Duration, attempt: u32) {
        let mut left = pause;
        while left > LONGEST_WAIT {
            tokio::time::sleep(LONGEST_WAIT).await;
            left -= LONGEST_WAIT;
            (self.watch.on_wait)(&format!(
                "{}: the server asked to wait; attempt {attempt} in {:.1} s",
                shown(self.want.url),
                left.as_secs_f64()
            ));
        }
        tokio::time::sleep(left).await;
    }

    /// One request and its answer.
    async fn once(&mut self, attempt: u32) -> Result<(), Ending> {
        if let Source::Tftp(_) = self.source {
            let links = &self.client.http.links;
            let way = links.of_attempt(attempt - 1);
            let done = self.transfer(way.as_deref()).await;
            if done.is_ok() {
                links.answered(&way);
            }
            return done;
        }
        // Only a digest, or the server's word that the content is still the same, makes it safe to join two answers.
        self.pace = (Instant::now(), 0);
        let resume = self.have > 0 && (self.digest.is_some() || self.validator.is_some());
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
            // Ignition takes 204 as empty content too.
            StatusCode::OK | StatusCode::NO_CONTENT => {
                self.restart()?;
                self.validator = request::validator(response.headers());
            }
            status => {
                let headers = response.headers().clone();
                self.source.refused(response).await;
                return Err(self.turned_away(status, &headers));
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

    /// Handles a response without content.
    fn turned_away(&mut self, status: StatusCode, headers: &HeaderMap) -> Ending {
        let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        match denied.then(|| self.source.change_credentials()).flatten() {
            Some(why) => Ending::broken(why),
            None => self.given_up(status, headers),
        }
    }

    /// The ending where no other credentials are left. A server hides what is not public, by 404 too.
    fn given_up(&self, status: StatusCode, headers: &HeaderMap) -> Ending {
        let ending = Ending::of(self.want.url, status, headers, self.want.repeat);
        match (ending, self.source.lacks_credentials()) {
            (Ending::Final(_), Some(why)) => {
                let why =
                    format!("the server answered {status} to a request without credentials; {why}");
                Ending::refused(self.want.url, why)
            }
            (
                Ending::Final(Failure::Status {
                    url,
                    code,
                    challenge,
                    ..
                }),
                None,
            ) => Ending::Final(Failure::Status {
                url,
                code,
                challenge,
                note: self.source.note(status),
            }),
            (ending, _) => ending,
        }
    }

    async fn answer(&mut self, resume: bool) -> Result<Response, Ending> {
        let resume = resume.then(|| (self.have, self.validator.clone()));
        let client = self.client;
        let header_timeout = self.want.patience.header_timeout;
        let watch = self.watch;
        let asked = self.source.request(client);
        let asked = watch.within(header_timeout, "no answer", asked).await?;
        if self.digest.is_none() && asked.digest.is_some() {
            self.digest = asked.digest;
            self.hash = Hash::new(self.digest);
        }
        let mut headers = self.headers.clone();
        for (name, value) in &asked.headers {
            // The caller's own credentials are meant for this server.
            headers.entry(name).or_insert_with(|| value.clone());
        }
        let resume = resume.as_ref().map(|(from, validator)| Resume {
            from: *from,
            validator: validator.as_ref(),
        });
        let sent = request::send(
            &client.http,
            self.want.method,
            asked.address,
            headers,
            resume,
            self.want.source_ports.as_ref(),
            self.verified || self.digest.is_some(),
        );
        watch.within(header_timeout, "no answer", sent).await
    }

    /// One transfer by TFTP, which can only begin at the start.
    async fn transfer(&mut self, link: Option<&str>) -> Result<(), Ending> {
        self.restart()?;
        let Source::Tftp(place) = &self.source else {
            return Err(Ending::broken("expected a TFTP source"));
        };
        let place = place.clone();
        let patience = self.want.patience;
        let mut transfer = self
            .watch
            .within(patience.header_timeout, "no answer", place.open(link))
            .await?;
        let mut limit = patience.header_timeout;
        loop {
            let next = self
                .watch
                .within(limit, "no answer", transfer.next())
                .await?;
            limit = patience.idle_timeout;
            match next {
                Piece::Size(size) => self.fits(size)?,
                Piece::Data(data) => self.take(&data)?,
                Piece::End => return self.check(),
                Piece::Error(code, message) => {
                    return Err(match &mut self.source {
                        Source::Tftp(place) => place.error(code, &message),
                        _ => Ending::broken(message),
                    });
                }
            }
        }
    }

    async fn piece(
        &self,
        response: &mut Response,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, Ending> {
        let chunk = async {
            let chunk = response.chunk().await;
            chunk.map_err(|e| Ending::broken(chain(&e.without_url())))
        };
        let limit = self.want.patience.idle_timeout;
        self.watch.within(limit, "the answer stalls", chunk).await
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
        self.keeps_pace(after - self.have)?;
        self.have = after;
        if after > self.reported {
            self.watch.last_byte = Instant::now();
            (self.on_bytes)(after - self.reported);
            self.reported = after;
        }
        Ok(())
    }

    /// Measures the answer's pace, from the first byte on.
    fn keeps_pace(&mut self, bytes: u64) -> Result<(), Ending> {
        let Some(slowest) = self.want.patience.slowest else {
            return Ok(());
        };
        let (since, so_far) = self.pace;
        if so_far == 0 {
            self.pace = (Instant::now(), bytes);
            return Ok(());
        }
        let so_far = so_far + bytes;
        self.pace = (since, so_far);
        let time = since.elapsed();
        if time < slowest.within {
            return Ok(());
        }
        self.pace = (Instant::now(), 0);
        if so_far < slowest.bytes {
            let seconds = time.as_secs_f64();
            return Err(Ending::broken(format!(
                "the answer comes too slowly, {so_far} bytes in {seconds:.1} s"
            )));
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Ending> {
        self.sink.restart()?;
        self.hash = Hash::new(self.digest);
        self.have = 0;
        self.pieced = false;
        self.validator = None;
        Ok(())
    }

    fn check(&mut self) -> Result<(), Ending> {
        let hash = std::mem::replace(&mut self.hash, Hash::new(self.digest));
        let (Some(expected), Some(found)) = (self.digest, hash.finish()) else {
            return Ok(());
        };
        if expected == found {
            return Ok(());
        }
        if self.pieced {
            // The file may have changed between the two responses: it is fetched again from the start.
            self.restart()?;
            return Err(Ending::broken(
                "the resumed content does not have the expected digest",
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

/// Whether the response's `Content-Range: bytes FIRST-LAST/ALL` begins at `first`.
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
