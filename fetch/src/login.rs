//! User names and passwords of servers, and who knows them.

use std::fmt;

use data_encoding::BASE64;
use reqwest::Url;

use crate::percent;

/// A user name and a password, for one server.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user name.
    pub user: String,
    /// The password; of an identity token the token.
    pub password: String,
    /// Whether the password is an identity token: a registry's token service takes it as an OAuth 2.0 refresh token.
    pub is_identity: bool,
    /// Where it is written, for messages, as the path of a file.
    pub from: String,
}

/// The name may be a secret too: some services put a token there.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl Login {
    /// The value of an `Authorization` header (RFC 7617).
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.user, self.password);
        format!("Basic {}", BASE64.encode(pair.as_bytes()))
    }

    /// Takes user and password out of a URL.
    pub(crate) fn taken_from(url: &mut Url) -> Option<Self> {
        if url.username().is_empty() && url.password().is_none() {
            return None;
        }
        let login = Self {
            user: percent::decode(url.username()),
            password: percent::decode(url.password().unwrap_or_default()),
            is_identity: false,
            from: "its URL".to_owned(),
        };
        // Both succeed for every URL that had one of them.
        let cleared = url.set_username("").is_ok() && url.set_password(None).is_ok();
        cleared.then_some(login)
    }
}

/// What knows the logins of servers. It is asked before a request, and may block for as long as a program of the user takes.
pub trait Logins: fmt::Debug + Send + Sync {
    /// The login for an `http` or `https` URL, which is sent with the first request to that server, and with no other.
    ///
    /// # Errors
    /// If a source of logins that the user named cannot be read; the message holds no secret.
    fn of_url(&self, url: &str) -> Result<Option<Login>, String>;

    /// The login for a repository of a registry, `HOST[:PORT]`, which is asked for once the registry refuses a request without.
    ///
    /// # Errors
    /// As [`Logins::of_url`].
    fn of_repository(&self, registry: &str, repository: &str) -> Result<Option<Login>, String>;

    /// What a message says about a server, `[http://]HOST[:PORT]`, that wants a login when there is none.
    fn missing(&self, server: &str) -> String;
}

/// The server of a URL without user and password, with its scheme if that is not https.
pub(crate) fn server_of(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    match url.starts_with("https://") {
        true => &url[start..end],
        false => &url[..end],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_are_taken_out_of_a_url() {
        let mut url = Url::parse("https://a%40b:p%3aw@h.example:8/x?y").unwrap();
        let login = Login::taken_from(&mut url).unwrap();
        assert_eq!(url.as_str(), "https://h.example:8/x?y");
        assert_eq!(
            (login.user.as_str(), login.password.as_str()),
            ("a@b", "p:w")
        );
        assert_eq!(login.basic(), "Basic YUBiOnA6dw==");
        let shown = format!("{login:?}");
        assert!(!shown.contains("p:w") && !shown.contains("a@b"), "{shown}");
        assert_eq!(Login::taken_from(&mut url), None);
    }
}
