//! The description of a download: address, limits, retries.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::digest::Digest;

/// Timeouts and the number of attempts. In a download a time beyond the clock's range is no limit.
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
    /// The longest time without a new byte, over all attempts; bytes that come again are not new. `None`: no limit.
    pub without_bytes: Option<Duration>,
    /// An answer that comes slower than this is broken off and asked for anew. `None`: no answer is too slow.
    pub slowest: Option<Pace>,
    /// Wait before the second attempt; it doubles up to [`LONGEST_WAIT`], less a random quarter.
    pub first_wait: Duration,
}

/// So many bytes in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes.
    pub bytes: u64,
    /// The time in which they come.
    pub within: Duration,
}

/// No wait between two attempts is longer than this, and no silence passes without a word to the watcher.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: Some(5),
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            total: None,
            without_bytes: None,
            slowest: None,
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
    /// The memory that this download shares with others; none: as much as `limit`. Only what is fetched into memory counts.
    pub room: Option<&'a Room>,
}

/// Memory that several downloads share, in bytes.
#[derive(Debug)]
pub struct Room {
    size: u64,
    left: AtomicU64,
}

impl Room {
    /// So many bytes.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            left: AtomicU64::new(size),
        }
    }

    /// The bytes that it had at first.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The bytes that nobody has taken.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes so many bytes; whether there were as many.
    #[must_use]
    pub fn take(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }

    /// Gives bytes back that were taken.
    pub fn give(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
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
            room: None,
        }
    }

    /// The same with a digest.
    #[must_use]
    pub fn digest(mut self, digest: Digest) -> Self {
        self.digest = Some(digest);
        self
    }
}
