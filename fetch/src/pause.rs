//! Waits between attempts: jitter, and `Retry-After`.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

/// The longest wait that a server may ask for: a node cannot wait an hour for its config.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// Machines that failed together must not retry together. `RandomState` is the standard library's only
/// source of randomness, and enough for this.
pub(crate) fn less_a_random_quarter(wait: Duration) -> Duration {
    let part = u32::try_from(RandomState::new().hash_one(0) % 250).unwrap_or_default();
    wait * (1000 - part) / 1000
}

/// The wait that `Retry-After` requests (RFC 9110, 10.2.3): seconds, or a date, which is compared with the server's own
/// clock, since ours may be wrong this early.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    let wait = match asked.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = httpdate::parse_http_date(asked).ok()?;
            let now = text(DATE)
                .and_then(|date| httpdate::parse_http_date(date).ok())
                .unwrap_or_else(SystemTime::now);
            until.duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_ASKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_ask_in_seconds_or_by_date() {
        let after = |pairs: &[(HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(name, value.parse().unwrap());
            }
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[(RETRY_AFTER, "7")]), Some(7));
        assert_eq!(after(&[(RETRY_AFTER, "86400")]), Some(120));
        assert_eq!(after(&[(RETRY_AFTER, "soon")]), None);
        let date = [
            (RETRY_AFTER, "Sun, 06 Nov 1994 08:49:47 GMT"),
            (DATE, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ];
        assert_eq!(after(&date), Some(10));
        // Without the server's clock ours is used, and by ours the date is long past.
        assert_eq!(after(&date[..1]), Some(0));
    }

    #[test]
    fn the_jitter_only_shortens() {
        for _ in 0..100 {
            let wait = less_a_random_quarter(Duration::from_secs(4));
            assert!(wait > Duration::from_secs(3) && wait <= Duration::from_secs(4));
        }
    }
}
