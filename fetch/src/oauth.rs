//! Identity tokens: a registry's token service takes one as an OAuth 2.0 refresh token, and gives a token for the repository.
//!
//! <https://distribution.github.io/distribution/spec/auth/oauth/>

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};

use crate::client::Client;
use crate::failure::{Failure, shown};
use crate::upload::{self, Content, Upload};
use crate::want::Patience;

/// What this client calls itself to a token service, which wants a name and gives it no meaning.
const CLIENT: &str = "slipway";

/// The token service's answer to an identity token. `service` is its URL with `service` and `scope` in the query, which go into the
/// form, as the identity token does: a URL is written to logs.
///
/// # Errors
/// [`Failure`], as for every request; none holds the token.
pub(crate) async fn answer(
    tokens: &Client,
    service: &str,
    identity: &str,
    patience: Patience,
) -> Result<Vec<u8>, Failure> {
    let (url, form) = form_of(service, identity).map_err(|why| Failure::Address {
        url: shown(service),
        why,
    })?;
    let stored = upload::send(tokens, url.as_str(), patience, async || {
        let media_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        Ok(Upload {
            method: Method::POST,
            url: url.clone(),
            headers: HeaderMap::from_iter([(CONTENT_TYPE, media_type)]),
            content: Content::Bytes(form.as_bytes()),
            follows: false,
        })
    });
    Ok(stored.await?.body)
}

/// The address and the form, `application/x-www-form-urlencoded`.
fn form_of(service: &str, identity: &str) -> Result<(Url, String), String> {
    let asked = Url::parse(service).map_err(|error| error.to_string())?;
    let (form, own): (Vec<_>, Vec<_>) = asked
        .query_pairs()
        .partition(|(key, _)| matches!(&**key, "service" | "scope"));
    let with = |pairs: &[_]| {
        let mut url = asked.clone();
        url.set_query(None);
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
        url
    };
    let (url, mut form) = (with(&own), with(&form));
    form.query_pairs_mut()
        .append_pair("grant_type", "refresh_token")
        .append_pair("client_id", CLIENT)
        .append_pair("refresh_token", identity);
    let form = form.query().unwrap_or_default().to_owned();
    Ok((url, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_registry_asked_for_goes_into_the_form() {
        let service =
            "https://auth.example/t?x=1&service=r.example&scope=repository:a/b:pull%2Cpush";
        let (url, form) = form_of(service, "a+b/c==").unwrap();
        assert_eq!(url.as_str(), "https://auth.example/t?x=1");
        assert_eq!(
            form,
            "service=r.example&scope=repository%3Aa%2Fb%3Apull%2Cpush&grant_type=refresh_token&client_id=slipway&refresh_token=a%2Bb%2Fc%3D%3D"
        );
        let (url, form) = form_of("https://auth.example/token", "t").unwrap();
        assert_eq!(url.as_str(), "https://auth.example/token");
        assert_eq!(
            form,
            "grant_type=refresh_token&client_id=slipway&refresh_token=t"
        );
        assert!(form_of("/token", "t").is_err());
    }
}
