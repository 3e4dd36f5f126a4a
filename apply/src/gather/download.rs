//! Parallel downloads, each with its headers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fetch::{Client, Failure, Patience, Room, Want};
use ignition::model::Resource;
use ignition::source::shown;
use linux::waiter::Waiter;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::memory::Refusal;
use super::sink::{Destination, Sink};
use super::{LIMIT, Say, Settings, amount, memory};
use crate::fetched::Content;

/// How often the bytes that have come are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The number of parallel downloads.
const AT_ONCE: usize = 32;
/// The `Accept` header that Ignition sends.
const ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1";

/// The index of a resource, and its content or why there is none.
pub(super) type Answer<T> = (usize, Result<T, Refusal>);

/// Downloads that run at the same time, and what they have in common.
pub(super) struct Round<'a> {
    pub(super) client: Client,
    pub(super) settings: &'a Settings,
    pub(super) patience: Patience,
    pub(super) room: &'a Arc<Room>,
}

/// A download.
#[derive(Default)]
struct Download {
    /// Its address as it may be shown.
    url: String,
    runs: AtomicBool,
    /// The bytes that have come.
    bytes: AtomicU64,
}

impl Round<'_> {
    /// Fetches all into memory; each answer with the number that came with its resource.
    ///
    /// # Errors
    /// Only if no runtime can be made: what fails to download is an answer.
    pub(super) fn fetch(&self, wanted: &[(usize, &Resource)]) -> Result<Vec<Answer<Vec<u8>>>> {
        self.run(wanted, |_, request| request.into_memory())
    }

    /// Fetches all to where `to` says for each number.
    ///
    /// # Errors
    /// As [`Round::fetch`].
    pub(super) fn spool(
        &self,
        wanted: &[(usize, &Resource)],
        to: &dyn Fn(usize) -> Destination,
    ) -> Result<Vec<Answer<Content>>> {
        self.run(wanted, |(index, resource), request| {
            let sink = Sink::new(resource, to(index));
            async move { request.into_sink(sink?).await }
        })
    }

    fn run<'a, T: 'static, F: Future<Output = Result<T, Refusal>> + 'static>(
        &self,
        wanted: &[(usize, &'a Resource)],
        work: impl Fn((usize, &'a Resource), Request) -> F,
    ) -> Result<Vec<Answer<T>>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut tasks = JoinSet::new();
            let gate = Arc::new(Semaphore::new(AT_ONCE));
            let mut progress = Progress::new(self.settings);
            for &(index, resource) in wanted {
                let request = self.request(resource);
                let download = Arc::clone(&request.download);
                progress.downloads.push(Arc::clone(&download));
                let gate = Arc::clone(&gate);
                let work = work((index, resource), request);
                tasks.spawn_local(async move {
                    let _turn = gate.acquire().await;
                    download.runs.store(true, Ordering::Relaxed);
                    let answer = work.await;
                    download.runs.store(false, Ordering::Relaxed);
                    (index, answer)
                });
            }
            let mut answers = Vec::new();
            loop {
                match timeout(LOOK_EVERY, tasks.join_next()).await {
                    Ok(Some(answer)) => {
                        answers.push(answer.context("a download has panicked")?);
                        progress.ended();
                    }
                    Ok(None) => return Ok(answers),
                    Err(_) => progress.look(),
                }
            }
        })
    }

    fn request(&self, resource: &Resource) -> Request {
        let url = resource.source.clone().unwrap_or_default();
        Request {
            client: self.client.clone(),
            on_wait: Arc::clone(&self.settings.on_wait),
            patience: self.patience,
            room: Arc::clone(self.room),
            headers: headers(resource),
            download: Arc::new(Download {
                url: shown(&url),
                ..Download::default()
            }),
            url,
        }
    }
}

/// All that one download needs while it runs.
struct Request {
    client: Client,
    on_wait: Say,
    patience: Patience,
    room: Arc<Room>,
    url: String,
    headers: Vec<(String, String)>,
    download: Arc<Download>,
}

impl Request {
    async fn into_memory(self) -> Result<Vec<u8>, Refusal> {
        let on_wait = |text: &str| (self.on_wait)(&redact(text, &self.url));
        let on_bytes = |more| self.download.add(more);
        let want = self.want(LIMIT);
        let got = fetch::bytes(&self.client, &want, &on_wait, &on_bytes).await;
        got.map_err(|failure| self.refusal(&failure))
    }

    async fn into_sink(self, mut sink: Sink) -> Result<Content, Refusal> {
        let on_wait = |text: &str| (self.on_wait)(&redact(text, &self.url));
        let on_bytes = |more| self.download.add(more);
        let want = self.want(sink.limit());
        let got = fetch::pieces(&self.client, &want, &mut sink, &on_wait, &on_bytes).await;
        got.map_err(|failure| self.refusal(&failure))?;
        sink.finish(&self.room)
    }

    fn want(&self, limit: u64) -> Want<'_> {
        Want {
            headers: self.headers.clone(),
            patience: self.patience,
            room: Some(&self.room),
            ..Want::new(&self.url, limit)
        }
    }

    fn refusal(&self, failure: &Failure) -> Refusal {
        let refusal = Refusal::source(why(failure, &self.url, &self.room));
        match failure {
            Failure::TooLarge { .. } | Failure::NoRoom { .. } => refusal.of_memory(),
            _ => refusal,
        }
    }
}

/// What has come so far: it feeds the watchdog, and is said every five seconds.
struct Progress<'a> {
    settings: &'a Settings,
    waiter: Waiter<'a>,
    downloads: Vec<Arc<Download>>,
    /// The bytes of the last look.
    before: u64,
}

impl<'a> Progress<'a> {
    fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            waiter: Waiter::for_ever(&settings.world),
            downloads: Vec::new(),
            before: 0,
        }
    }

    /// A download has ended.
    fn ended(&mut self) {
        self.waiter.attempted();
        self.line();
    }

    fn look(&mut self) {
        let bytes = self.downloads.iter().map(|download| download.received());
        let bytes = bytes.sum();
        self.waiter.received(bytes - self.before);
        self.before = bytes;
        self.line();
    }

    fn line(&mut self) {
        if let Some(waited) = self.waiter.line() {
            let running = self.downloads.iter();
            let running = running.filter(|download| download.runs.load(Ordering::Relaxed));
            let text = list(&running.map(Arc::as_ref).collect::<Vec<_>>());
            (self.settings.on_progress)(&format!("{text} ({waited})"));
        }
    }
}

impl Download {
    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn received(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The downloads that run, the first few by their addresses.
fn list(running: &[&Download]) -> String {
    const SHOWN: usize = 3;
    let mut out: Vec<String> = running
        .iter()
        .take(SHOWN)
        .map(|one| format!("{}, {} so far", one.url, amount::text(one.received())))
        .collect();
    if running.len() > SHOWN {
        out.push(format!("and {} more", running.len() - SHOWN));
    }
    out.join("; ")
}

/// A message of a download with its URL redacted: the query may hold a token.
fn redact(text: &str, url: &str) -> String {
    let secret = url.split_once(['?', '#']).map_or("", |(_, secret)| secret);
    match secret.is_empty() {
        true => text.to_owned(),
        false => format!("{}: {}", shown(url), text.replace(secret, "…")),
    }
}

fn why(failure: &Failure, url: &str, room: &Room) -> String {
    let url_shown = shown(url);
    match failure {
        Failure::Status { code, .. } => format!("fetching {url_shown}: the server answered {code}"),
        Failure::TooLarge { limit, .. } => {
            format!("fetching {url_shown}: it is larger than {limit} bytes")
        }
        Failure::NoRoom { .. } => format!("fetching {url_shown}: {}", memory::full(room)),
        Failure::Unreachable { attempts, why, .. } => {
            format!(
                "fetching {url_shown}: given up after {attempts} attempts: {}",
                redact(why, url)
            )
        }
        Failure::Address { why, .. } | Failure::Refused { why, .. } => {
            format!("fetching {url_shown}: {}", redact(why, url))
        }
        other => redact(&other.to_string(), url),
    }
}

/// Ignition's own headers under those of the config; a header without a value is not sent.
fn headers(resource: &Resource) -> Vec<(String, String)> {
    let mut out = vec![
        ("Accept".to_owned(), ACCEPT.to_owned()),
        ("Accept-Encoding".to_owned(), "identity".to_owned()),
    ];
    for header in resource.http_headers.iter().flatten() {
        out.retain(|(name, _)| !name.eq_ignore_ascii_case(&header.name));
        if let Some(value) = &header.value {
            out.push((header.name.clone(), value.clone()));
        }
    }
    out
}
