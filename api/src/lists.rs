//! Lists of objects page by page, and what happens to their objects after that
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>).

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::{Api, LARGEST, NoAnswer, Refusal, message};

/// Objects of one answer: a Node has some 20 KB, and an answer may have 8 MiB.
const PAGE: u32 = 100;
/// What the server may take to begin an answer and to end it, beyond the time that it was asked to watch for.
const GRACE: Duration = Duration::from_secs(10);

/// What happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is there, new or changed.
    Kept(Value),
    /// It is there no longer; this was its last state.
    Deleted(Value),
    /// Nothing else has happened up to the version of this object, which has nothing but that. The server says it where the path asks for
    /// it (`allowWatchBookmarks=true`).
    Bookmark(Value),
}

impl Event {
    /// The `resourceVersion` that it leads to; none if the server named none.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        let (Self::Kept(object) | Self::Deleted(object) | Self::Bookmark(object)) = self;
        object["metadata"]["resourceVersion"].as_str()
    }
}

/// The server reported an error in place of an event.
#[derive(Debug)]
struct AmongEvents;

impl fmt::Display for AmongEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an error among the events")
    }
}

/// Whether a watch that failed may go on after the last version that it has heard of: nobody answered, the answer was cut off, or the server
/// does not take the request now. After an error among the events, an answer that is not understood and any other refusal that version is
/// in doubt.
pub fn goes_on(error: &Error) -> bool {
    const LATER: [StatusCode; 4] = [
        StatusCode::UNAUTHORIZED,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => {
            LATER.contains(&refusal.status) && error.downcast_ref::<AmongEvents>().is_none()
        }
        None => error.downcast_ref::<NoAnswer>().is_some(),
    }
}

impl Api {
    /// Calls `take` for every object of a list. Returns the list's `resourceVersion`.
    ///
    /// # Errors
    /// If the server does not answer, refuses, or has no such list.
    pub fn list(&self, path: &str, mut take: impl FnMut(&Value)) -> Result<String> {
        let and = if path.contains('?') { '&' } else { '?' };
        let mut next = String::new();
        loop {
            let page = format!("{path}{and}limit={PAGE}{next}");
            let page = self
                .get(&page)?
                .with_context(|| format!("the server has no {path}"))?;
            let items = page["items"].as_array().into_iter().flatten();
            items.for_each(&mut take);
            let text = |name: &str| page["metadata"][name].as_str().unwrap_or_default();
            match text("continue") {
                "" => return Ok(text("resourceVersion").to_owned()),
                token => next = format!("&continue={token}"),
            }
        }
    }

    /// Calls `take` for what happens to the objects of a list after this version, until `take` breaks or the time is over.
    ///
    /// # Errors
    /// If the server does not answer, refuses, or no longer knows what happened after this version (410). [`goes_on`] says whether the
    /// version is to be used again.
    pub fn watch(
        &self,
        path: &str,
        version: &str,
        time: Duration,
        mut take: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        let and = if path.contains('?') { '&' } else { '?' };
        let path = format!(
            "{path}{and}watch=true&resourceVersion={version}&timeoutSeconds={}",
            time.as_secs().max(1)
        );
        let about = || format!("GET {}{path}", self.server);
        let request = self.request(Method::GET, &path).timeout(time + GRACE);
        let mut response = self
            .runtime
            .block_on(async { request.send().await })
            .map_err(|error| NoAnswer::of(&error))
            .with_context(about)?;
        let status = response.status();
        let mut text = Vec::new();
        loop {
            let piece = self.runtime.block_on(async { response.chunk().await });
            let piece = match piece {
                // A server that holds the connection and says nothing is as good as one that ended the answer.
                Err(error) if error.is_timeout() && begin.elapsed() >= time => return Ok(()),
                piece => piece
                    .map_err(|error| NoAnswer::of(&error))
                    .with_context(about)?,
            };
            let Some(piece) = piece else { break };
            text.extend_from_slice(&piece);
            if text.len() > LARGEST {
                return Err(anyhow!("an event is larger than {LARGEST} bytes")).with_context(about);
            }
            if !status.is_success() {
                continue;
            }
            let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            let rest = text.split_off(end + 1);
            for line in text.split(|byte| *byte == b'\n') {
                let event = event(line).with_context(about)?;
                if event.map(&mut take).is_some_and(|flow| flow.is_break()) {
                    return Ok(());
                }
            }
            text = rest;
        }
        if status.is_success() {
            return Ok(());
        }
        let message = message(&text);
        Err(Refusal { status, message }).with_context(about)
    }
}

/// The event of a line; none of an empty line.
fn event(line: &[u8]) -> Result<Option<Event>> {
    if line.is_empty() {
        return Ok(None);
    }
    let mut event: Value = serde_json::from_slice(line).context("reading an event")?;
    let object = event["object"].take();
    match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") => Ok(Some(Event::Kept(object))),
        Some("DELETED") => Ok(Some(Event::Deleted(object))),
        Some("BOOKMARK") => Ok(Some(Event::Bookmark(object))),
        Some("ERROR") => {
            let code = object["code"].as_u64().unwrap_or_default();
            let status = u16::try_from(code).ok();
            let status = status.and_then(|code| StatusCode::from_u16(code).ok());
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let message = message(object.to_string().as_bytes());
            Err(Error::new(Refusal { status, message }).context(AmongEvents))
        }
        other => bail!("an event of the type {other:?}"),
    }
}
