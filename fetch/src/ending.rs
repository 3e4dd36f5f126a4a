//! The failure of one attempt: final, or worth another attempt.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

use crate::failure::{Failure, shown};
use crate::pause::retry_after;

/// The failure of one attempt.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Another attempt may succeed, after the time that the server requested, if any.
    Broken(String, Option<Duration>),
    /// Another attempt cannot succeed.
    Final(Failure),
}

impl Ending {
    pub(crate) fn broken(why: impl Into<String>) -> Self {
        Self::Broken(why.into(), None)
    }

    /// The failure that a status other than success means for the request for `url`; `repeat` are further statuses
    /// after which another attempt is made.
    pub(crate) fn of(url: &str, status: StatusCode, headers: &HeaderMap, repeat: &[u16]) -> Self {
        if worth_repeating(status) || repeat.contains(&status.as_u16()) {
            let why = format!("the server answered {status}");
            return Self::Broken(why, retry_after(headers));
        }
        Self::Final(Failure::Status {
            url: shown(url),
            code: status.as_u16(),
            challenge: challenge(headers),
            note: None,
        })
    }

    /// The same with what the server says of its status.
    pub(crate) fn with_note(self, said: Option<String>) -> Self {
        match (self, said) {
            (
                Self::Final(Failure::Status {
                    url,
                    code,
                    challenge,
                    ..
                }),
                Some(note),
            ) => Self::Final(Failure::Status {
                url,
                code,
                challenge,
                note: Some(note),
            }),
            (Self::Broken(why, wait), Some(note)) => Self::Broken(format!("{why}; {note}"), wait),
            (ending, _) => ending,
        }
    }

    /// The server refuses, for a reason that another attempt does not change.
    pub(crate) fn refused(url: &str, why: impl Into<String>) -> Self {
        Self::Final(Failure::Refused {
            url: shown(url),
            why: why.into(),
        })
    }
}

impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

impl From<String> for Ending {
    fn from(why: String) -> Self {
        Self::broken(why)
    }
}

/// The server's challenge; of several the one for a token, which every registry's client prefers, then the one for a user and a password.
fn challenge(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(WWW_AUTHENTICATE).iter();
    let all: Vec<&str> = all.filter_map(|value| value.to_str().ok()).collect();
    let of = |scheme: &str| {
        let mut all = all.iter();
        all.find(|text| {
            let found = text.split(' ').next();
            found.is_some_and(|found| found.eq_ignore_ascii_case(scheme))
        })
    };
    let chosen = of("bearer").or_else(|| of("basic")).or_else(|| all.first());
    chosen.map(|text| (*text).to_owned())
}

fn worth_repeating(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}
