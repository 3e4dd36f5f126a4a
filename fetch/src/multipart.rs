//! Objects of S3 that are sent in parts: one request holds 5 GiB at most, and one that breaks off begins anew.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html>,
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html>

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use data_encoding::HEXLOWER;
use reqwest::Method;
use reqwest::header::ETAG;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::client::Client;
use crate::digest::Digest;
use crate::ending::Ending;
use crate::failure::{Failure, shown};
use crate::percent;
use crate::s3_error::element;
use crate::sigv4::EMPTY;
use crate::upload::{Content, Stored};
use crate::want::Patience;

/// The largest object of S3, bytes.
const LARGEST: u64 = 5 << 40;
/// Attempts to take back what cannot be completed.
const ABORTS: u32 = 3;

/// An upload that was begun: the object, and the query of its requests.
struct Begun<'a> {
    bucket: &'a Bucket,
    client: &'a Client,
    object: &'a str,
    id: String,
    /// Until when all of it has to be done.
    until: Option<Instant>,
}

impl Bucket {
    /// Stores an object, a large one in parts. It is there only once all of them are, and what cannot be completed is taken
    /// back, since its parts would be paid for without being seen. Content of another SHA-256 (hexadecimal) is refused.
    ///
    /// # Errors
    /// [`Failure`], as for every request, and for content of more than 5 TiB.
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
        if content.size() <= self.parts().above {
            // S3 itself holds it to its hash.
            let stored = self.send(client, Method::PUT, (object, ""), sha256, content);
            return stored.await.map(drop);
        }
        let total = self.patience().total;
        let until = total.and_then(|total| Instant::now().checked_add(total));
        let begun = (object, "uploads=");
        let begun = self.send(client, Method::POST, begun, EMPTY, Content::NONE);
        let answer = begun.await?;
        let answer = String::from_utf8_lossy(&answer.body);
        let id = element(&answer, "UploadId").filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| {
            let why = "S3 began no upload: its answer has no UploadId";
            refused(&self.url(object), why)
        })?;
        let begun = Begun {
            bucket: self,
            client,
            object,
            id: percent::encode(id),
            until,
        };
        let done = tokio::select! {
            done = begun.all(sha256, content) => done,
            () = self.stop().asked() => Err(refused(&self.url(object), "interrupted")),
        };
        if done.is_err() {
            begun.abort().await;
        }
        done
    }
}

impl Begun<'_> {
    async fn all(&self, sha256: &str, content: Content<'_>) -> Result<(), Failure> {
        let url = self.bucket.url(self.object);
        let total = content.size();
        let size = self.bucket.parts().of(total);
        let mut whole = Sha256::new();
        let mut list = String::from("<CompleteMultipartUpload>");
        for (number, at) in
            (1_u32..).zip((0..total).step_by(usize::try_from(size).unwrap_or(usize::MAX)))
        {
            let part = content.part(at, size.min(total - at));
            let sum = hash(part, &mut whole)?;
            let query = format!("partNumber={number}&uploadId={}", self.id);
            let stored = self.send(Method::PUT, &query, &sum, part).await?;
            let tag = stored.headers.get(ETAG).and_then(|tag| tag.to_str().ok());
            let tag = tag.ok_or_else(|| refused(&url, "S3 stored a part without an ETag"))?;
            let tag = tag.trim_matches('"');
            if !tag
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            {
                return Err(refused(&url, "S3 gave a part an ETag that is none"));
            }
            let numbered = format!("<PartNumber>{number}</PartNumber>");
            list += &format!("<Part>{numbered}<ETag>&quot;{tag}&quot;</ETag></Part>");
        }
        list += "</CompleteMultipartUpload>";
        // Each part is verified by S3, and all of them together here, before the object is there.
        let found = HEXLOWER.encode(&whole.finalize());
        if found != sha256 {
            return Err(mismatch(&url, sha256, &found));
        }
        self.complete(&list).await
    }

    /// Makes the object of its parts. S3 answers 200 before it is done, and says in the content whether it has failed.
    async fn complete(&self, list: &str) -> Result<(), Failure> {
        let url = self.bucket.url(self.object);
        let query = format!("uploadId={}", self.id);
        let sum = HEXLOWER.encode(&Sha256::digest(list));
        let attempts = self.bucket.patience().attempts.unwrap_or(3).max(1);
        let mut why = String::new();
        for attempt in 1..=attempts {
            if attempt > 1 {
                tokio::time::sleep(self.bucket.patience().first_wait).await;
            }
            let content = Content::Bytes(list.as_bytes());
            let answer = match self.send(Method::POST, &query, &sum, content).await {
                Ok(answer) => answer,
                // Of an earlier attempt the answer was lost.
                Err(failure) if failure.is_gone() => {
                    return match self.bucket.has(self.client, self.object).await {
                        Ok(true) => Ok(()),
                        _ => Err(failure),
                    };
                }
                Err(failure) => return Err(failure),
            };
            let answer = String::from_utf8_lossy(&answer.body);
            if answer.contains("<CompleteMultipartUploadResult") {
                return Ok(());
            }
            let code = element(&answer, "Code").unwrap_or("no result");
            why = format!("S3 answered 200 and {code} when the parts were put together");
            let may_pass = [
                "InternalError",
                "SlowDown",
                "ServiceUnavailable",
                "no result",
            ];
            if !may_pass.contains(&code) {
                return Err(refused(&url, &why));
            }
        }
        Err(Failure::Unreachable {
            url: shown(&url),
            attempts,
            why,
        })
    }

    /// Takes back the parts.
    async fn abort(&self) {
        let query = format!("uploadId={}", self.id);
        // The time that the upload had may be over.
        let patience = Patience {
            attempts: Some(ABORTS),
            total: None,
            ..self.bucket.patience()
        };
        let bucket = self.bucket.clone().with_patience(patience);
        let asked = (self.object, query.as_str());
        let gone = bucket.send(self.client, Method::DELETE, asked, EMPTY, Content::NONE);
        // The failure of the upload is the one to tell. A rule of the bucket's life cycle removes what is left.
        drop(gone.await);
    }

    async fn send(
        &self,
        method: Method,
        query: &str,
        sha256: &str,
        content: Content<'_>,
    ) -> Result<Stored, Failure> {
        let patience = Patience {
            total: self
                .until
                .map(|until| until.saturating_duration_since(Instant::now())),
            ..self.bucket.patience()
        };
        let bucket = self.bucket.clone().with_patience(patience);
        bucket
            .send(self.client, method, (self.object, query), sha256, content)
            .await
    }
}

fn refused(url: &str, why: &str) -> Failure {
    match Ending::refused(url, why) {
        Ending::Final(failure) => failure,
        Ending::Broken(why, _) => Failure::Unreachable {
            url: shown(url),
            attempts: 1,
            why,
        },
    }
}

fn mismatch(url: &str, expected: &str, found: &str) -> Failure {
    match (Digest::sha256(expected), Digest::sha256(found)) {
        (Some(expected), Some(found)) => Failure::Digest {
            url: shown(url),
            expected: Box::new(expected),
            found: Box::new(found),
        },
        _ => refused(url, "the content has another SHA-256 than expected"),
    }
}

/// The SHA-256 of a part, hexadecimal, which is added to that of the whole.
fn hash(part: Content<'_>, whole: &mut Sha256) -> Result<String, Failure> {
    let mut own = Sha256::new();
    match part {
        Content::Bytes(bytes) => {
            own.update(bytes);
            whole.update(bytes);
        }
        Content::File(path, size) => add_range(path, 0, size, &mut own, whole)?,
        Content::Range(path, at, size) => add_range(path, at, size, &mut own, whole)?,
    }
    Ok(HEXLOWER.encode(&own.finalize()))
}

fn add_range(
    path: &std::path::Path,
    at: u64,
    size: u64,
    own: &mut Sha256,
    whole: &mut Sha256,
) -> Result<(), Failure> {
    let mut read = || -> std::io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(at))?;
        let mut file = file.take(size);
        let mut piece = vec![0; 1 << 18];
        let mut left = size;
        while left > 0 {
            let read = file.read(&mut piece)?;
            if read == 0 {
                return Err(std::io::Error::other("the file became shorter"));
            }
            own.update(&piece[..read]);
            whole.update(&piece[..read]);
            left -= read as u64;
        }
        Ok(())
    };
    read().map_err(|source| Failure::Disk {
        path: path.to_path_buf(),
        source,
    })
}
