//! Times as text (RFC 3339).

use jiff::Timestamp;

/// A time in seconds since 1970, as `2026-11-20T02:11:10Z`; the bare number if its year is out of range.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .map_or_else(|| seconds.to_string(), |time| time.to_string())
}
