//! Parallel downloads, each with its headers.

use std::sync::Arc;

use anyhow::Result;
use fetch::{Client, Failure, Patience, Want};
use ignition::model::Resource;
use ignition::source::shown;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The number of parallel downloads.
const AT_ONCE: usize = 32;
/// The `Accept` header that Ignition sends.
const ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1";

/// The index of a resource, and its bytes or why there are none.
pub(super) type Answer = (usize, Result<Vec<u8>, String>);

/// Fetches all resources; each answer has the index of its resource.
///
/// # Errors
/// Only if no runtime can be made: a failed download is an answer.
pub(super) fn all(
    client: &Client,
    wanted: &[(usize, &Resource)],
    patience: Patience,
    limit: u64,
    on_wait: &Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<Vec<Answer>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut tasks = JoinSet::new();
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        for (index, resource) in wanted {
            let (client, on_wait, gate) = (client.clone(), Arc::clone(on_wait), Arc::clone(&gate));
            let (index, url, headers) = (
                *index,
                resource.source.clone().unwrap_or_default(),
                headers(resource),
            );
            tasks.spawn_local(async move {
                let _turn = gate.acquire().await;
                let want = Want {
                    headers,
                    patience,
                    ..Want::new(&url, limit)
                };
                let on_wait = |text: &str| on_wait(&redact(text, &url));
                let got = fetch::bytes(&client, &want, &on_wait).await;
                (index, got.map_err(|failure| why(&failure, &url)))
            });
        }
        Ok(tasks.join_all().await)
    })
}

/// A message of a download with its URL redacted: the query may hold a token.
fn redact(text: &str, url: &str) -> String {
    let secret = url.split_once(['?', '#']).map_or("", |(_, secret)| secret);
    match secret.is_empty() {
        true => text.to_owned(),
        false => format!("{}: {}", shown(url), text.replace(secret, "…")),
    }
}

fn why(failure: &Failure, url: &str) -> String {
    let url_shown = shown(url);
    match failure {
        Failure::Status { code, .. } => format!("fetching {url_shown}: the server answered {code}"),
        Failure::TooLarge { limit, .. } => {
            format!("fetching {url_shown}: it is larger than {limit} bytes")
        }
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
