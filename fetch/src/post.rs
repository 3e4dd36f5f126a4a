//! Posts one JSON message to a server, such as a failure report, with retries until a deadline.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::failure::{Failure, shown};
use crate::want::LONGEST_WAIT;

/// Limit from the request to the response's header.
const HEADER: Duration = Duration::from_secs(10);
/// Client errors (4xx) after which another attempt may succeed: Request Timeout, Too Early, Too Many Requests.
const MENDABLE: [u16; 3] = [408, 425, 429];

/// Posts JSON text until a server accepts it (any 2xx), for at most `total`. Any other status from 400 to 499, except
/// 408, 425 and 429, is final.
///
/// # Errors
/// [`Failure::Status`] for a final status, [`Failure::Unreachable`] when the time is over.
pub async fn post_json(
    client: &Client,
    url: &str,
    text: &str,
    total: Duration,
) -> Result<(), Failure> {
    let until = Instant::now() + total;
    let address = reqwest::Url::parse(url).map_err(|error| Failure::Address {
        url: shown(url),
        why: error.to_string(),
    })?;
    let (mut attempts, mut wait) = (0, Duration::from_millis(250));
    loop {
        attempts += 1;
        let left = until.saturating_duration_since(Instant::now());
        let request = client
            .http
            .request(reqwest::Method::POST, address.clone())
            .header("content-type", "application/json")
            .timeout(HEADER.min(left))
            .body(text.to_owned())
            .build();
        let sent = match request {
            Ok(request) => client.http.execute(request).await,
            Err(error) => Err(error),
        };
        let why = match sent.map(|answer| answer.status()) {
            Ok(status) if status.is_success() => return Ok(()),
            Ok(status) if status.is_client_error() && !MENDABLE.contains(&status.as_u16()) => {
                return Err(Failure::Status {
                    url: shown(url),
                    code: status.as_u16(),
                    challenge: None,
                });
            }
            Ok(status) => format!("the server answered {status}"),
            Err(error) => error.without_url().to_string(),
        };
        if Instant::now() + wait >= until {
            return Err(Failure::Unreachable {
                url: shown(url),
                attempts,
                why,
            });
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
