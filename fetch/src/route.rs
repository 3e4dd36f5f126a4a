//! What the scheme of an address means: which request, with which headers, gives the content.

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::Client;
use crate::digest::Digest;
use crate::ending::Ending;
use crate::{gs, oci, s3, tftp};

/// Where content is to be had.
#[derive(Debug)]
pub(crate) enum Route {
    /// At the address itself.
    Http(Url),
    /// In a bucket of S3.
    S3(s3::Object),
    /// In a bucket of Google's Cloud Storage.
    Gs(gs::Object),
    /// In a registry.
    Oci(Box<oci::Content>),
    /// At a TFTP server.
    Tftp(tftp::Place),
}

/// A request that gives the content.
pub(crate) struct Asked {
    pub(crate) address: Url,
    /// Headers beside those of the caller.
    pub(crate) headers: HeaderMap,
    /// What the content hashes to, where the way there says so.
    pub(crate) digest: Option<Digest>,
}

impl Asked {
    pub(crate) fn plain(address: Url) -> Self {
        Self {
            address,
            headers: HeaderMap::new(),
            digest: None,
        }
    }
}

impl Route {
    /// Reads an address.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => Url::parse(text)
                .map(Self::Http)
                .map_err(|error| error.to_string()),
            "s3" | "arn" => s3::Object::parse(text).map(Self::S3),
            "gs" => gs::Object::parse(text).map(Self::Gs),
            "oci" => oci::Content::parse(text).map(|content| Self::Oci(Box::new(content))),
            "tftp" => tftp::Place::parse(text).map(Self::Tftp),
            "" => Err("it has no scheme".to_owned()),
            other => Err(format!(
                "{other} is not fetched; there are http, https, tftp, s3, arn, gs and oci"
            )),
        }
    }

    /// The request that gives the content now; what it needs to know is asked for first.
    pub(crate) async fn asked(&mut self, client: &Client) -> Result<Asked, Ending> {
        match self {
            Self::Http(address) => Ok(Asked::plain(address.clone())),
            Self::S3(object) => object.asked(client).await,
            Self::Gs(object) => object.asked(client).await,
            Self::Oci(content) => content.asked(client).await,
            Self::Tftp(_) => Err(Ending::broken("a TFTP server has no such requests")),
        }
    }

    /// Whether it helps to ask once more, otherwise, after the answer that who asks may not.
    pub(crate) fn otherwise(&mut self) -> Option<&'static str> {
        match self {
            Self::S3(object) => object.otherwise(),
            Self::Gs(object) => object.otherwise(),
            Self::Oci(content) => content.otherwise(),
            Self::Http(_) | Self::Tftp(_) => None,
        }
    }
}

/// One header.
pub(crate) fn header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), Ending> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        Ending::broken(format!("{name}: it has characters that no header can have"))
    })?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words from which addresses are made that nobody would write.
    const PIECES: [&str; 26] = [
        "s3",
        "arn",
        "gs",
        "oci",
        "tftp",
        "http",
        ":",
        "://",
        "/",
        "//",
        "@",
        "?",
        "#",
        "%",
        "%41",
        "[",
        "]",
        ".",
        "..",
        "versionId=",
        "title=",
        "accesspoint/",
        "/object/",
        "aws:s3:::",
        "sha256:",
        "ü",
    ];

    #[test]
    fn whatever_is_written_is_read_or_refused() {
        let (mut seed, mut read) = (1_u64, 0);
        let mut next = |most: u64| {
            // Knuth's MMIX generator; its high bits are good enough.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((seed >> 33) % most).unwrap()
        };
        for _ in 0..20_000 {
            let text: String = (0..next(12)).map(|_| PIECES[next(26)]).collect();
            read += u32::from(Route::parse(&text).is_ok());
        }
        assert!(read > 0, "none of them was an address");
        let refused = Route::parse("ftp://h.example/x").unwrap_err();
        assert!(
            refused.contains("ftp") && refused.contains("tftp, s3"),
            "{refused}"
        );
        assert!(Route::parse("no address").is_err());
    }
}
