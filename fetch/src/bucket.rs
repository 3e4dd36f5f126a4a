//! A folder of a bucket of S3: objects are stored below it, and asked for.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html>

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::{Failure, shown};
use crate::s3::{Object, Place, is_name};
use crate::sigv4::EMPTY;
use crate::upload::{self, Content, Stored, Upload};
use crate::want::Patience;

/// The most parts of an object.
const MOST: u64 = 10_000;
/// What the size of larger parts is a multiple of, bytes.
const STEP: u64 = 1 << 20;
/// How often an upload asks whether it is to end.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// Which objects are sent in parts, and how large these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Objects of more bytes are.
    pub above: u64,
    /// Bytes of each part but the last, at least 5 MiB for S3; more where it would be more than 10,000 parts.
    pub size: u64,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            above: 512 << 20,
            size: 64 << 20,
        }
    }
}

impl Parts {
    /// The size of the parts of an object of `total` bytes.
    pub(crate) fn of(self, total: u64) -> u64 {
        let least = total.div_ceil(MOST);
        match least <= self.size {
            true => self.size.max(1),
            false => least.next_multiple_of(STEP),
        }
    }
}

/// Whether an upload is to end early; a large one is taken back then.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Stop {
    /// Ends uploads once `asked` is true, which is called several times in a second.
    pub fn when(asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(asked)))
    }

    /// Returns once the upload is to end.
    pub(crate) async fn asked(&self) {
        loop {
            tokio::time::sleep(STOP_EVERY).await;
            if self.0.as_ref().is_some_and(|asked| asked()) {
                return;
            }
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.0.is_some()).finish()
    }
}

/// A folder of a bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    name: String,
    /// Empty, or with a slash at its end.
    prefix: String,
    patience: Patience,
    parts: Parts,
    stop: Stop,
}

impl Bucket {
    /// Reads `s3://BUCKET[/PREFIX]`; the prefix has letters, digits, `-`, `_`, `.` and slashes.
    ///
    /// # Errors
    /// Says what is expected.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = || {
            "expected s3://BUCKET or s3://BUCKET/PREFIX, of letters, digits, -, _, . and /"
                .to_owned()
        };
        let rest = url.strip_prefix("s3://").ok_or_else(wrong)?;
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let plain = |part: &str| is_name(part) && part != "." && part != "..";
        if !plain(name) || !(prefix.is_empty() || prefix.split('/').all(plain)) {
            return Err(wrong());
        }
        let prefix = match prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self {
            name: name.to_owned(),
            prefix,
            patience: Patience {
                attempts: Some(3),
                ..Patience::default()
            },
            parts: Parts::default(),
            stop: Stop::default(),
        })
    }

    /// The same with other parts of large objects.
    #[must_use]
    pub fn with_parts(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// The same, whose uploads in parts end early when they are asked to.
    #[must_use]
    pub fn with_stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    pub(crate) fn parts(&self) -> Parts {
        self.parts
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// The address of an object, for [`crate::Want`].
    #[must_use]
    pub fn url(&self, object: &str) -> String {
        format!("s3://{}/{}{object}", self.name, self.prefix)
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// [`Failure`], as for every request.
    pub async fn has(&self, client: &Client, object: &str) -> Result<bool, Failure> {
        let asked = self.send(client, Method::HEAD, (object, ""), EMPTY, Content::NONE);
        match asked.await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_gone() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sends a request for an object, with a query whose parameters are encoded and sorted.
    pub(crate) async fn send(
        &self,
        client: &Client,
        method: Method,
        (object, query): (&str, &str),
        sha256: &str,
        content: Content<'_>,
    ) -> Result<Stored, Failure> {
        let url = self.url(object);
        let key = format!("{}{object}", self.prefix);
        let place = Place::Bucket(self.name.clone(), None);
        let mut signed = Object::new(shown(&url), place, key, None);
        let make = async || {
            let limit = self.patience.header_timeout;
            let request = signed.make_request_of(client, method.as_str(), query, sha256);
            // Asking for a role or a region takes no longer than asking for the object.
            let request = tokio::time::timeout(limit, request).await;
            let request = request.map_err(|_| Ending::broken("no answer"))??;
            let address = request.address.into_url();
            let url = address
                .ok_or_else(|| Ending::refused(&url, "a URL cannot hold the object's name"))?;
            Ok(Upload {
                method: method.clone(),
                url,
                headers: request.headers,
                content,
                follows: false,
            })
        };
        upload::send(client, &url, self.patience, make).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_large_as_needed_for_ten_thousand() {
        let parts = Parts::default();
        assert_eq!(parts.of(6 << 30), 64 << 20);
        assert_eq!(parts.of(10_000 * (64 << 20)), 64 << 20);
        let large = parts.of(5 << 40);
        assert!(large * MOST >= 5 << 40 && large.is_multiple_of(STEP) && large <= 5 << 30);
    }

    #[test]
    fn folders_of_buckets_are_read() {
        for (text, url) in [
            ("s3://b", "s3://b/x"),
            ("s3://b/", "s3://b/x"),
            ("s3://b.c/a/d-e_f/", "s3://b.c/a/d-e_f/x"),
        ] {
            assert_eq!(Bucket::parse(text).unwrap().url("x"), url);
        }
        for text in [
            "s3://",
            "s3:///a",
            "b/a",
            "s3://b/../c",
            "s3://b/a//c",
            "s3://b/a b",
            "s3://b/a?x",
        ] {
            assert!(Bucket::parse(text).is_err(), "{text}");
        }
    }
}
