//! A folder of a bucket of S3: objects are stored below it, and asked for.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html>

use reqwest::Method;

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::{Failure, shown};
use crate::s3::{Object, Place, is_name};
use crate::sigv4::EMPTY;
use crate::upload::{self, Content, Upload};
use crate::want::Patience;

/// The largest object of one request, bytes.
const LARGEST: u64 = 5 << 30;

/// A folder of a bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    name: String,
    /// Empty, or with a slash at its end.
    prefix: String,
    patience: Patience,
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
        })
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
        let asked = self.send(client, Method::HEAD, object, EMPTY, Content::Bytes(&[]));
        match asked.await {
            Ok(()) => Ok(true),
            Err(failure) if failure.is_gone() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Stores an object; S3 itself refuses content of another SHA-256 (hexadecimal).
    ///
    /// # Errors
    /// [`Failure`], as for every request, and for content of more than 5 GiB.
    pub async fn put(
        &self,
        client: &Client,
        object: &str,
        sha256: &str,
        content: Content<'_>,
    ) -> Result<(), Failure> {
        if content.size() > LARGEST {
            return Err(Failure::TooLarge {
                url: self.url(object),
                limit: LARGEST,
            });
        }
        self.send(client, Method::PUT, object, sha256, content)
            .await
    }

    async fn send(
        &self,
        client: &Client,
        method: Method,
        object: &str,
        sha256: &str,
        content: Content<'_>,
    ) -> Result<(), Failure> {
        let url = self.url(object);
        let key = format!("{}{object}", self.prefix);
        let place = Place::Bucket(self.name.clone(), None);
        let mut signed = Object::new(shown(&url), place, key, None);
        let make = async || {
            let limit = self.patience.header_timeout;
            let request = signed.make_request(client, method.as_str(), sha256);
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
            })
        };
        upload::send(client, &url, self.patience, make)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
