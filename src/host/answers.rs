//! Answers: which sources gave programs in this run, and which were unreachable. The images of one run take theirs from the same
//! sources, and a server that does not answer costs its timeouts once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow};
use fetch::Failure;

/// What the sources of programs answered.
#[derive(Default)]
pub struct Answers {
    /// The servers that were unreachable, with the words of the error.
    down: Mutex<BTreeMap<String, String>>,
    /// What images of this run have: the server, and the URL or architecture of what it gave.
    given: Mutex<BTreeSet<(String, String)>>,
    digests: Mutex<BTreeMap<(String, String), String>>,
}

/// A source is unreachable that an earlier image of this run has the same program from: with another source the two would differ.
#[derive(Debug)]
pub struct Inconsistent(String);

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; another image of this run has this program from there, so that no other source is taken",
            self.0
        )
    }
}

impl std::error::Error for Inconsistent {}

// Without content: the URLs of sources may have logins.
impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

impl Answers {
    /// Asks a server for something, unless it was unreachable before. One that has given the same thing to an image of this run is asked
    /// anyway.
    ///
    /// # Errors
    /// That of the request; that of the earlier one, in the same words; or [`Inconsistent`].
    pub fn ask<T>(
        &self,
        server: &str,
        what: &str,
        request: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let key = (server.to_owned(), what.to_owned());
        let is_given = locked(&self.given).contains(&key);
        if !is_given && let Some(words) = locked(&self.down).get(server) {
            return Err(anyhow!(words.clone()));
        }
        let answer = request();
        // A file that is not there may concern this request alone.
        if let Err(error) = &answer
            && is_unreachable(error)
        {
            let words = format!("{error:#}");
            if is_given {
                return Err(Inconsistent(words).into());
            }
            locked(&self.down).insert(server.to_owned(), words);
        }
        answer
    }

    /// Notes that an image of this run has what a server was asked for: with another source the next one would differ.
    pub fn give(&self, server: &str, what: &str) {
        locked(&self.given).insert((server.to_owned(), what.to_owned()));
    }

    /// The digest that the tag of an image had first in this run, for this architecture.
    #[must_use]
    pub fn digest(&self, reference: &str, architecture: &str) -> Option<String> {
        let key = (reference.to_owned(), architecture.to_owned());
        locked(&self.digests).get(&key).cloned()
    }

    /// Keeps the digest of a tag for the rest of this run, unless it has one already.
    pub fn keep_digest(&self, reference: &str, architecture: &str, digest: &str) {
        let key = (reference.to_owned(), architecture.to_owned());
        let mut digests = locked(&self.digests);
        digests.entry(key).or_insert_with(|| digest.to_owned());
    }
}

/// Whether there was no complete answer at all: what a server refuses in words is an answer.
fn is_unreachable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Unreachable { .. }))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASES: &str = "http://joe:s3cr3t@releases.example/{program}";

    fn unreachable() -> Result<u32> {
        let failure = Failure::Unreachable {
            url: "http://releases.example/kubelet".to_owned(),
            attempts: 2,
            why: "no such host".to_owned(),
        };
        Err(anyhow::Error::new(failure).context("pinning it"))
    }

    fn gone() -> Result<u32> {
        let failure = Failure::Status {
            url: "http://releases.example/kubelet".to_owned(),
            code: 404,
            challenge: None,
            note: None,
        };
        Err(failure.into())
    }

    fn words(answer: Result<u32>) -> String {
        format!("{:#}", answer.unwrap_err())
    }

    #[test]
    fn an_unreachable_server_is_asked_once_and_refuses_in_the_same_words() {
        let answers = Answers::default();
        let first = words(answers.ask(RELEASES, "crictl", unreachable));
        assert!(first.starts_with("pinning it: fetching "), "{first}");
        for what in ["crictl", "cni-plugins"] {
            let again = answers.ask(RELEASES, what, || panic!("it is asked again"));
            assert_eq!(words(again), first, "{what}");
        }
        assert_eq!(answers.ask("other", "crictl", || Ok(1)).unwrap(), 1);
    }

    #[test]
    fn a_server_that_gave_an_image_something_is_not_replaced_for_that() {
        let answers = Answers::default();
        for what in ["v1.36.3/kubelet", "v1.36.3/kubectl"] {
            answers.ask(RELEASES, what, || Ok(1)).unwrap();
        }
        // What was got of a source that then failed is in no image.
        answers.give(RELEASES, "v1.36.3/kubelet");
        for what in ["v1.35.4/kubelet", "v1.36.3/kubectl"] {
            let error = answers.ask(RELEASES, what, unreachable).unwrap_err();
            assert!(!error.is::<Inconsistent>(), "{what}: {error:#}");
        }
        let error = answers.ask(RELEASES, "v1.36.3/kubelet", unreachable);
        let error = error.unwrap_err();
        assert!(error.is::<Inconsistent>(), "{error:#}");
        assert!(
            error
                .to_string()
                .contains("another image of this run has this program from there"),
            "{error:#}"
        );
        let asked = answers.ask(RELEASES, "v1.36.3/kubelet", || Ok(2));
        assert_eq!(asked.unwrap(), 2);
        let shown = format!("{answers:?}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }

    #[test]
    fn a_file_that_is_not_there_says_nothing_of_the_next_one() {
        let answers = Answers::default();
        words(answers.ask(RELEASES, "crictl", gone));
        assert_eq!(answers.ask(RELEASES, "crictl", || Ok(1)).unwrap(), 1);
        answers.give(RELEASES, "crictl");
        let error = answers.ask(RELEASES, "crictl", gone).unwrap_err();
        assert!(!error.is::<Inconsistent>(), "{error:#}");
    }

    #[test]
    fn a_tag_keeps_its_first_digest() {
        let answers = Answers::default();
        assert_eq!(answers.digest("r.example/k:v1", "amd64"), None);
        answers.keep_digest("r.example/k:v1", "amd64", "sha256:1");
        answers.keep_digest("r.example/k:v1", "amd64", "sha256:2");
        let known = answers.digest("r.example/k:v1", "amd64");
        assert_eq!(known.as_deref(), Some("sha256:1"));
        assert_eq!(answers.digest("r.example/k:v1", "arm64"), None);
    }
}
