//! Answers: which sources gave programs in this run, and which were unreachable. The images of one run take theirs from the same
//! sources, and a server that does not answer costs its timeouts once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow};
use fetch::Failure;

/// The answers of sources, by the source and the program that it was asked for.
#[derive(Default)]
pub struct Answers {
    programs: Mutex<BTreeMap<(String, String), Answer>>,
    digests: Mutex<BTreeMap<(String, String), String>>,
}

/// How a source answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// An image of this run has the program from it.
    Given,
    /// It was unreachable, with the words of the error.
    Unreachable(String),
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
    /// Asks a source for a program, unless it was unreachable before: for this one or, if it was never asked for this one, for
    /// another.
    ///
    /// # Errors
    /// That of the request; that of the earlier one, in the same words; or [`Inconsistent`].
    pub fn ask<T>(
        &self,
        source: &str,
        program: &str,
        request: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let key = (source.to_owned(), program.to_owned());
        let before = self.before(&key);
        if let Some(Answer::Unreachable(words)) = before {
            return Err(anyhow!(words));
        }
        let answer = request();
        match &answer {
            Ok(_) => {
                locked(&self.programs).insert(key, Answer::Given);
            }
            Err(error) if is_unreachable(error) => {
                let words = format!("{error:#}");
                if before == Some(Answer::Given) {
                    return Err(Inconsistent(words).into());
                }
                locked(&self.programs).insert(key, Answer::Unreachable(words));
            }
            // A file that is not there may concern this program alone.
            Err(_) => {}
        }
        answer
    }

    fn before(&self, key: &(String, String)) -> Option<Answer> {
        let programs = locked(&self.programs);
        let own = programs.get(key);
        let is_down = |((source, _), answer): &(&(String, String), &Answer)| {
            *source == key.0 && matches!(answer, Answer::Unreachable(_))
        };
        let any = || programs.iter().find(is_down).map(|(_, answer)| answer);
        own.or_else(any).cloned()
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
    fn an_unreachable_source_is_asked_once_and_refuses_in_the_same_words() {
        let answers = Answers::default();
        let first = words(answers.ask(RELEASES, "crictl", unreachable));
        assert!(first.starts_with("pinning it: fetching "), "{first}");
        for program in ["crictl", "cni-plugins"] {
            let again = answers.ask(RELEASES, program, || panic!("it is asked again"));
            assert_eq!(words(again), first, "{program}");
        }
        assert_eq!(answers.ask("other", "crictl", || Ok(1)).unwrap(), 1);
    }

    #[test]
    fn a_source_that_gave_a_program_is_not_replaced() {
        let answers = Answers::default();
        answers.ask(RELEASES, "crictl", || Ok(1)).unwrap();
        // Another program than the one that it gave has another source, for all images of the run.
        words(answers.ask(RELEASES, "cni-plugins", unreachable));
        let error = answers.ask(RELEASES, "crictl", unreachable).unwrap_err();
        assert!(error.is::<Inconsistent>(), "{error:#}");
        assert!(
            error
                .to_string()
                .contains("another image of this run has this program from there"),
            "{error:#}"
        );
        assert_eq!(answers.ask(RELEASES, "crictl", || Ok(2)).unwrap(), 2);
        let shown = format!("{answers:?}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }

    #[test]
    fn a_file_that_is_not_there_says_nothing_of_the_next_one() {
        let answers = Answers::default();
        words(answers.ask(RELEASES, "crictl", gone));
        assert_eq!(answers.ask(RELEASES, "crictl", || Ok(1)).unwrap(), 1);
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
