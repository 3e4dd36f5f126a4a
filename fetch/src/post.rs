//! Posts one message to a server, such as a failure report, with retries until a deadline.

use std::time::{Duration, Instant};

use reqwest::{StatusCode, Url};

use crate::client::Client;
use crate::failure::{Failure, shown};
use crate::http::NoAnswer;
use crate::want::LONGEST_WAIT;

/// Limit from the request to the response's header.
const HEADER: Duration = Duration::from_secs(10);
/// Client errors (4xx) after which another attempt may succeed: Request Timeout, Too Early, Too Many Requests.
const MENDABLE: [u16; 3] = [408, 425, 429];

/// A message for a server.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The address: `http` or `https`.
    pub url: &'a str,
    /// The media type of the text.
    pub content_type: &'a str,
    /// Further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The text.
    pub text: &'a str,
    /// Statuses after which another attempt is made, beside 408, 425, 429 and all from 500 on.
    pub repeat: &'a [u16],
}

impl<'a> Message<'a> {
    /// A JSON text.
    #[must_use]
    pub const fn json(url: &'a str, text: &'a str) -> Self {
        Self {
            url,
            content_type: "application/json",
            headers: &[],
            text,
            repeat: &[],
        }
    }

    fn is_final(&self, status: StatusCode) -> bool {
        let code = status.as_u16();
        status.is_client_error() && !MENDABLE.contains(&code) && !self.repeat.contains(&code)
    }
}

/// Posts a message until a server accepts it (any 2xx), for at most `total`. Any other status from 400 to 499, except
/// 408, 425, 429 and those that the message names, is final.
///
/// # Errors
/// [`Failure::Status`] for a final status, [`Failure::Unreachable`] when the time is over.
pub async fn post(client: &Client, message: &Message<'_>, total: Duration) -> Result<(), Failure> {
    let url = message.url;
    client.online(url)?;
    let until = Instant::now() + total;
    let address = Url::parse(url).map_err(|error| Failure::Address {
        url: shown(url),
        why: error.to_string(),
    })?;
    let (mut attempts, mut wait) = (0, Duration::from_millis(250));
    loop {
        attempts += 1;
        let left = until.saturating_duration_since(Instant::now());
        let why = match once(client, message, &address, HEADER.min(left)).await {
            Ok(status) if status.is_success() => return Ok(()),
            Ok(status) if message.is_final(status) => {
                return Err(Failure::Status {
                    url: shown(url),
                    code: status.as_u16(),
                    challenge: None,
                    note: None,
                });
            }
            Ok(status) => format!("the server answered {status}"),
            Err(error) => error.to_string(),
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

/// One attempt.
async fn once(
    client: &Client,
    message: &Message<'_>,
    address: &Url,
    limit: Duration,
) -> Result<StatusCode, NoAnswer> {
    let mut request = client
        .http
        .request(reqwest::Method::POST, address.clone())
        .header("content-type", message.content_type)
        .timeout(limit)
        .body(message.text.to_owned());
    for (name, value) in message.headers {
        request = request.header(*name, *value);
    }
    let response = client.http.execute(request.build()?).await?;
    Ok(response.status())
}
