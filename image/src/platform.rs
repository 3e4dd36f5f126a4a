//! Platform ids: the text by which the manifest and the command line name a platform.
//!
//! They are Ignition's ids (`ignition.platform.id=`), so that its documentation applies here too. The table of the
//! crate `platform` lists the valid ids; the node refuses any other.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a platform: lower-case letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlatformId(Cow<'static, str>);

impl PlatformId {
    /// An id of the table; a test of the table checks its form.
    #[must_use]
    pub const fn of(id: &'static str) -> Self {
        Self(Cow::Borrowed(id))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PlatformId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for PlatformId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match !text.is_empty() && text.bytes().all(known) {
            true => Ok(Self(Cow::Owned(text))),
            false => Err(format!(
                "{text:?} is not the id of a platform; expected lower-case letters, digits and hyphens"
            )),
        }
    }
}

impl From<PlatformId> for String {
    fn from(id: PlatformId) -> Self {
        id.0.into_owned()
    }
}

impl fmt::Display for PlatformId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in ["aws", "digitalocean", "oracle-2"] {
            let id: PlatformId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<PlatformId>(&json).unwrap(), id);
        }
        for text in ["", "AWS", "a b", "qemu\n"] {
            assert!(text.parse::<PlatformId>().is_err(), "{text:?}");
            assert!(serde_json::from_value::<PlatformId>(text.into()).is_err());
        }
    }
}
