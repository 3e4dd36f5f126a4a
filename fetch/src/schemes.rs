//! Address schemes: one file for each, which parses its addresses, and one table.

mod gs;
mod http;
mod oci;
mod s3;
mod tftp;

use reqwest::{Response, StatusCode};

use crate::client::Client;
use crate::ending::Ending;
use crate::http_source::HttpSource;
use crate::request::Request;
use crate::tftp::Place;

/// The source of a content, parsed from an address.
#[derive(Debug)]
pub(crate) enum Source {
    /// The response to an HTTP request.
    Http(Box<dyn HttpSource>),
    /// A file of a TFTP server.
    Tftp(Place),
}

/// A row of the table: schemes with one parser of their addresses.
struct Scheme {
    names: &'static [&'static str],
    parse: fn(&str) -> Result<Source, String>,
}

const SCHEMES: [Scheme; 5] = [
    Scheme {
        names: &["http", "https"],
        parse: |text| http::parse(text).map(Source::Http),
    },
    Scheme {
        names: &["tftp"],
        parse: |text| tftp::parse(text).map(Source::Tftp),
    },
    Scheme {
        names: &["s3", "arn"],
        parse: |text| s3::parse(text).map(over_http),
    },
    Scheme {
        names: &["gs"],
        parse: |text| gs::parse(text).map(over_http),
    },
    Scheme {
        names: &["oci"],
        parse: |text| oci::parse(text).map(over_http),
    },
];

fn over_http(source: impl HttpSource + 'static) -> Source {
    Source::Http(Box::new(source))
}

impl Source {
    /// Parses an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        let scheme = scheme.to_ascii_lowercase();
        if scheme.is_empty() {
            return Err("it has no scheme".to_owned());
        }
        match SCHEMES
            .iter()
            .find(|row| row.names.contains(&scheme.as_str()))
        {
            Some(row) => (row.parse)(text),
            None => {
                let known: Vec<&str> = SCHEMES.iter().flat_map(|row| row.names).copied().collect();
                Err(format!(
                    "unknown scheme {scheme}; expected one of {}",
                    known.join(", ")
                ))
            }
        }
    }

    /// The request that gives the content; fetches the credentials and documents that it needs first.
    pub(crate) async fn request(&mut self, client: &Client) -> Result<Request, Ending> {
        match self {
            Self::Http(source) => source.request(client).await,
            Self::Tftp(_) => Err(Ending::broken("TFTP has no HTTP requests")),
        }
    }

    /// After a response of 401 or 403: changes the credentials for the next request, and returns a description of the
    /// change; none if no other credentials are left to try.
    pub(crate) fn change_credentials(&mut self) -> Option<&'static str> {
        match self {
            Self::Http(source) => source.change_credentials(),
            Self::Tftp(_) => None,
        }
    }

    /// What is known of the login of the last request, which this status refuses.
    pub(crate) fn note(&self, status: StatusCode) -> Option<String> {
        match self {
            Self::Http(source) => source.note(status),
            Self::Tftp(_) => None,
        }
    }

    /// Reads from the content of an answer why the last request is refused, where the protocol says it there.
    pub(crate) async fn refused(&mut self, answer: Response) {
        if let Self::Http(source) = self {
            source.refused(answer).await;
        }
    }

    /// Why the last request had no credentials, if the user can change that.
    pub(crate) fn lacks_credentials(&self) -> Option<&'static str> {
        match self {
            Self::Http(source) => source.lacks_credentials(),
            Self::Tftp(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of addresses, joined at random.
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
            read += u32::from(Source::parse(&text).is_ok());
        }
        assert!(read > 0, "none of them was an address");
        let refused = Source::parse("ftp://h.example/x").unwrap_err();
        assert!(
            refused.contains("scheme ftp;") && refused.contains("tftp, s3"),
            "{refused}"
        );
        assert!(Source::parse("no address").is_err());
    }
}
