//! The description of a download: address, limits, retries.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::digest::Digest;

/// Timeouts and the number of attempts.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The number of attempts; `None`: no limit.
    pub attempts: Option<u32>,
    /// From the request to the answer's header, for each attempt, connecting included.
    pub header_timeout: Duration,
    /// The longest silence inside an answer.
    pub idle_timeout: Duration,
    /// For all attempts together; `None`: no limit.
    pub total: Option<Duration>,
    /// Wait before the second attempt; it doubles up to [`LONGEST_WAIT`], less a random quarter.
    pub first_wait: Duration,
}

/// The longest wait between two attempts, and the longest silence without a report to the watcher.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: Some(5),
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            total: None,
            first_wait: Duration::from_millis(250),
        }
    }
}

/// The request method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// GET: the content.
    #[default]
    Get,
    /// HEAD: the headers of the content only.
    Head,
    /// A PUT without a body, which returns a token from EC2.
    Put,
}

/// What to fetch, and the limits of an acceptable response.
#[derive(Clone, Debug)]
pub struct Want<'a> {
    /// The address: `http`, `https`, `tftp`, `s3`, `arn`, `gs` or `oci`.
    pub url: &'a str,
    /// The expected digest of the content.
    pub digest: Option<Digest>,
    /// The size limit in bytes.
    pub limit: u64,
    /// The request method.
    pub method: Method,
    /// Headers to send. A redirected request has none of them but `Accept` and `Accept-Encoding`.
    pub headers: Vec<(String, String)>,
    /// Statuses after which another attempt is made, beside 408, 425, 429 and all from 500 on. A response's
    /// `Retry-After` is honoured, up to two minutes.
    pub repeat: &'a [u16],
    /// The source ports of the request, one of which is bound; none: any. Only for plain `http`, which then bypasses
    /// every proxy; a redirected request comes from any port. Ports below 1024 need `CAP_NET_BIND_SERVICE`.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Timeouts and the number of attempts.
    pub patience: Patience,
}

impl<'a> Want<'a> {
    /// A want with no digest, no headers and the usual patience.
    #[must_use]
    pub fn new(url: &'a str, limit: u64) -> Self {
        Self {
            url,
            digest: None,
            limit,
            method: Method::Get,
            headers: Vec::new(),
            repeat: &[],
            source_ports: None,
            patience: Patience::default(),
        }
    }

    /// The same with a digest.
    #[must_use]
    pub fn digest(mut self, digest: Digest) -> Self {
        self.digest = Some(digest);
        self
    }
}
