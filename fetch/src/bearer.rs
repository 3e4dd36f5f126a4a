//! A bearer token that a server may refuse: what is public is fetched without it then.

use reqwest::header::{HeaderName, HeaderValue};

use crate::ending::Ending;
use crate::request::header;

/// The token of a source's requests, as far as it was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bearer {
    /// Whether the last request had one.
    sent: bool,
    /// Whether it was refused.
    refused: bool,
}

impl Bearer {
    /// The header of the next request; none if there is no token, or it was refused: `token` is not asked then.
    ///
    /// # Errors
    /// Those of `token`, and if it is not the value of a header.
    pub(crate) async fn header(
        &mut self,
        token: impl Future<Output = Result<Option<String>, Ending>> + Send,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Ending> {
        self.sent = false;
        if self.refused {
            return Ok(None);
        }
        let Some(token) = token.await? else {
            return Ok(None);
        };
        self.sent = true;
        header("authorization", &format!("Bearer {token}")).map(Some)
    }

    /// After a refusal: whether the next request differs, since the last one had the token. Who may not read one object must
    /// not be kept from the public ones.
    pub(crate) fn refuse(&mut self) -> bool {
        self.refused |= self.sent;
        std::mem::take(&mut self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_token_is_not_sent_again_nor_asked_for() {
        let given = async || Ok(Some("T0KEN".to_owned()));
        let mut bearer = Bearer::default();
        assert!(!bearer.refuse());
        // No token yet, as while an identity is attached.
        assert!(bearer.header(async { Ok(None) }).await.unwrap().is_none());
        assert!(!bearer.refuse());
        let (name, value) = bearer.header(given()).await.unwrap().unwrap();
        assert_eq!(
            (name.as_str(), value.as_bytes()),
            ("authorization", &b"Bearer T0KEN"[..])
        );
        assert!(bearer.refuse());
        let asked = async { Err(Ending::broken("asked")) };
        assert!(bearer.header(asked).await.unwrap().is_none());
        assert!(!bearer.refuse());
        let mut bearer = Bearer::default();
        let failed = async { Err(Ending::broken("down")) };
        assert!(bearer.header(failed).await.is_err() && !bearer.refuse());
        assert!(
            bearer
                .header(async { Ok(Some("a\nb".to_owned())) })
                .await
                .is_err()
        );
    }
}
