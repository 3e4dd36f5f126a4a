//! AWS Signature Version 4.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>

use std::fmt;
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// SHA-256 of empty content, as a GET has.
pub(crate) const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Temporary or lasting credentials of a bucket's users.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The id of the access key.
    pub key: String,
    /// The secret access key.
    pub secret: String,
    /// The session token of temporary ones.
    pub token: Option<String>,
}

/// Without the secrets.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.key).finish()
    }
}

/// The signed parts of a request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// Host, with its port if that is not the scheme's own.
    pub(crate) host: &'a str,
    /// Encoded path, as it goes over the wire.
    pub(crate) path: &'a str,
    /// Encoded query, its parameters sorted, each with its `=`.
    pub(crate) query: &'a str,
    /// Further headers to sign: names in lower case.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the content, hexadecimal; [`EMPTY`] for none. S3 refuses a content of another hash.
    pub(crate) payload: &'a str,
}

/// The headers that sign a request to S3 in `region`, valid for a quarter of an hour from `now`.
pub(crate) fn sign(
    request: &Request<'_>,
    credentials: &Credentials,
    region: &str,
    now: SystemTime,
) -> Vec<(&'static str, String)> {
    let time = stamp(now);
    let day = &time[..8];
    let mut out = vec![
        ("x-amz-content-sha256", request.payload.to_owned()),
        ("x-amz-date", time.clone()),
    ];
    if let Some(token) = &credentials.token {
        out.push(("x-amz-security-token", token.clone()));
    }
    let mut signed: Vec<(&str, &str)> = vec![("host", request.host)];
    signed.extend(request.headers);
    signed.extend(out.iter().map(|(name, value)| (*name, value.as_str())));
    signed.sort_unstable();
    let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let headers: String = signed
        .iter()
        .map(|(name, value)| format!("{name}:{}\n", value.trim()))
        .collect();
    let (method, path, query) = (request.method, request.path, request.query);
    let canonical = format!(
        "{method}\n{path}\n{query}\n{headers}\n{names}\n{}",
        request.payload
    );
    let scope = format!("{day}/{region}/s3/aws4_request");
    let digest = HEXLOWER.encode(&Sha256::digest(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let mut key = format!("AWS4{}", credentials.secret).into_bytes();
    for part in [day, region, "s3", "aws4_request"] {
        key = mac(&key, part.as_bytes());
    }
    let signature = HEXLOWER.encode(&mac(&key, text.as_bytes()));
    let key = &credentials.key;
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={key}/{scope},SignedHeaders={names},Signature={signature}"
    );
    out.push(("authorization", authorization));
    out
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mut mac) => {
            mac.update(text);
            mac.finalize().into_bytes().to_vec()
        }
        Err(_) => unreachable!("an HMAC takes a key of any length"),
    }
}

/// A time as AWS writes it: `20130524T000000Z`.
pub(crate) fn stamp(time: SystemTime) -> String {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    // `Sun, 06 Nov 1994 08:49:37 GMT`, all in ASCII and of one length.
    let text = httpdate::fmt_http_date(time);
    let month = MONTHS.find(&text[8..11]).unwrap_or_default() / 3 + 1;
    let (day, year, clock) = (&text[5..7], &text[12..16], text[17..25].replace(':', ""));
    format!("{year}{month:02}{day}T{clock}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// The examples of AWS's documentation.
    #[test]
    fn requests_are_signed_as_the_documentation_shows() {
        let credentials = Credentials {
            key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        for (path, query, headers, signature) in [
            (
                "/test.txt",
                "",
                &[("range", "bytes=0-9")][..],
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "/",
                "lifecycle=",
                &[],
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "/",
                "max-keys=2&prefix=J",
                &[],
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let request = Request {
                method: "GET",
                host: "examplebucket.s3.amazonaws.com",
                path,
                query,
                headers,
                payload: EMPTY,
            };
            let signed = sign(&request, &credentials, "us-east-1", now);
            let (_, authorization) = signed.last().unwrap();
            assert!(
                authorization.ends_with(&format!("Signature={signature}")),
                "{authorization}"
            );
        }
    }

    /// The example of AWS's documentation for an object that is stored.
    #[test]
    fn content_is_signed_by_its_hash() {
        let credentials = Credentials {
            key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let request = Request {
            method: "PUT",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test%24file.text",
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            payload: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let signed = sign(&request, &credentials, "us-east-1", now);
        let signature = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        let (_, authorization) = signed.last().unwrap();
        assert!(
            authorization.ends_with(&format!("Signature={signature}")),
            "{authorization}"
        );
        assert!(!format!("{credentials:?}").contains("MDENG"));
    }

    #[test]
    fn a_session_token_is_signed_too() {
        let credentials = Credentials {
            key: "K".to_owned(),
            secret: "S".to_owned(),
            token: Some("T".to_owned()),
        };
        let request = Request {
            method: "GET",
            host: "h",
            path: "/",
            query: "",
            headers: &[],
            payload: EMPTY,
        };
        let signed = sign(&request, &credentials, "r", UNIX_EPOCH);
        assert!(signed.contains(&("x-amz-security-token", "T".to_owned())));
        let names = "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,";
        assert!(signed.last().unwrap().1.contains(names));
    }

    #[test]
    fn times_are_written_as_aws_writes_them() {
        let time = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(stamp(time), "19941106T084937Z");
    }
}
