//! Objects of S3: their addresses from `s3://` and `arn:`, the region of their buckets, requests signed where there is a role.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-bucket-intro.html>

use std::time::SystemTime;

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::cloud::Role;
use crate::ending::Ending;
use crate::request::small;
use crate::route::{Asked, header};
use crate::sigv4::{Request, decoded, encoded, sign};
use crate::{Client, Method};

/// The header by which S3 tells the region of a bucket, with any answer.
const REGION: &str = "x-amz-bucket-region";

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// What the caller wrote, for messages: the query is not in it.
    shown: String,
    place: Place,
    key: String,
    version: Option<String>,
    /// Whether the role was refused, so that it is asked for without.
    anonymous: bool,
    /// Whether the last request was signed.
    signed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A bucket, and the region to ask where it is, if the address says one.
    Bucket(String, Option<&'static str>),
    /// An access point: name, account, region.
    Point(String, String, String),
}

impl Object {
    /// Reads `s3://BUCKET/KEY` or `arn:PARTITION:s3:::BUCKET/KEY` or
    /// `arn:PARTITION:s3:REGION:ACCOUNT:accesspoint/NAME/object/KEY`, each with `?versionId=` if one is meant.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.split_once('#').map_or(text, |(text, _)| text);
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let version = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("versionId="))
            .map(decoded);
        let (place, key) = match address.split_once("://") {
            Some((_, rest)) => {
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                (Place::Bucket(bucket.to_owned(), None), decoded(key))
            }
            None => of_arn(address)?,
        };
        let bad_bucket = match &place {
            Place::Bucket(name, _) => !is_name(name),
            Place::Point(name, account, region) => {
                ![name, account, region].into_iter().all(|s| is_name(s))
            }
        };
        if bad_bucket || key.is_empty() {
            return Err("expected s3://BUCKET/KEY or the ARN of an S3 object".to_owned());
        }
        Ok(Self {
            shown: address.to_owned(),
            place,
            key,
            version,
            anonymous: false,
            signed: false,
        })
    }

    pub(crate) async fn asked(&mut self, client: &Client) -> Result<Asked, Ending> {
        let mut role = client.cloud.role().await?;
        if self.anonymous {
            role.credentials = None;
        }
        let region = self.region(client, &role).await?;
        let query = self.version.as_deref().map(|version| encoded(version, ""));
        let query = query.map_or_else(String::new, |version| format!("versionId={version}"));
        let mut text = self.address(client, &region);
        if !query.is_empty() {
            text = format!("{text}?{query}");
        }
        let address =
            Url::parse(&text).map_err(|error| Ending::refused(&self.shown, error.to_string()))?;
        let mut headers = HeaderMap::new();
        self.signed = role.credentials.is_some();
        if let Some(credentials) = &role.credentials {
            let host = address.host_str().unwrap_or_default();
            let host = address
                .port()
                .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            let request = Request {
                method: "GET",
                host: &host,
                path: address.path(),
                query: &query,
                headers: &[],
            };
            for (name, value) in sign(&request, credentials, &region, SystemTime::now()) {
                let (name, value) = header(name, &value)?;
                headers.insert(name, value);
            }
        }
        Ok(Asked {
            address,
            headers,
            digest: None,
        })
    }

    /// A role that may not read a bucket must not keep this machine from what is public.
    pub(crate) fn otherwise(&mut self) -> Option<&'static str> {
        if !self.signed || self.anonymous {
            return None;
        }
        self.anonymous = true;
        Some("S3 refuses the role of this instance; it is asked without it")
    }

    fn address(&self, client: &Client, region: &str) -> String {
        let key = encoded(&self.key, "/");
        let suffix = suffix(region);
        match (&client.cloud.endpoints.s3, &self.place) {
            (Some(base), Place::Bucket(bucket, _)) => format!("{base}/{bucket}/{key}"),
            (Some(base), Place::Point(name, account, _)) => {
                format!("{base}/{name}-{account}/{key}")
            }
            // The certificate is for one label before the service's name.
            (None, Place::Bucket(bucket, _)) if bucket.contains('.') => {
                format!("https://s3.dualstack.{region}.{suffix}/{bucket}/{key}")
            }
            (None, Place::Bucket(bucket, _)) => {
                format!("https://{bucket}.s3.dualstack.{region}.{suffix}/{key}")
            }
            (None, Place::Point(name, account, _)) => {
                format!("https://{name}-{account}.s3-accesspoint.dualstack.{region}.{suffix}/{key}")
            }
        }
    }

    /// The region of the bucket, asked of S3 once for each bucket.
    async fn region(&self, client: &Client, role: &Role) -> Result<String, Ending> {
        let (bucket, hint) = match &self.place {
            Place::Point(_, _, region) => return Ok(region.clone()),
            Place::Bucket(bucket, hint) => (bucket, *hint),
        };
        let mut known = client.cloud.regions.lock().await;
        if let Some(region) = known.get(bucket) {
            return Ok(region.clone());
        }
        let hint = hint.or(role.region.as_deref()).unwrap_or("us-east-1");
        let base = match &client.cloud.endpoints.s3 {
            Some(base) => base.clone(),
            None => format!("https://s3.dualstack.{hint}.{}", suffix(hint)),
        };
        let url = format!("{base}/{bucket}");
        let answer = small(&client.http, Method::Head, &url, &[], 0).await?;
        let told = answer.headers.get(REGION);
        let region = match told.and_then(|region| region.to_str().ok()) {
            Some(region) if is_name(region) => region.to_owned(),
            _ if answer.status.is_success() => hint.to_owned(),
            _ => return Err(Ending::of(&url, answer.status, &answer.headers, &[])),
        };
        known.insert(bucket.clone(), region.clone());
        Ok(region)
    }
}

fn of_arn(text: &str) -> Result<(Place, String), String> {
    let wrong = || "this is no ARN of an S3 object".to_owned();
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let [_, partition, "s3", region, account, resource] = parts[..] else {
        return Err(wrong());
    };
    if let Some(point) = resource.strip_prefix("accesspoint/") {
        let (name, key) = point.split_once("/object/").ok_or_else(wrong)?;
        let point = Place::Point(name.to_owned(), account.to_owned(), region.to_owned());
        return Ok((point, key.to_owned()));
    }
    let hint = match partition {
        "aws" => "us-east-1",
        "aws-cn" => "cn-north-1",
        "aws-us-gov" => "us-gov-west-1",
        other => {
            return Err(format!(
                "{other:?} is no partition of AWS that is known here"
            ));
        }
    };
    let (bucket, key) = resource.split_once('/').ok_or_else(wrong)?;
    Ok((Place::Bucket(bucket.to_owned(), Some(hint)), key.to_owned()))
}

/// Buckets, access points, accounts and regions: what may stand in a host's name.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// What the names of a region's services end with.
fn suffix(region: &str) -> &'static str {
    match region.starts_with("cn-") {
        true => "amazonaws.com.cn",
        false => "amazonaws.com",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoints, Options};

    #[test]
    fn addresses_lead_to_the_region_s_own_service() {
        let client = Client::new(&Options {
            ca_bundle: Some(Vec::new()),
            ..Options::default()
        })
        .unwrap();
        for (text, region, address) in [
            (
                "s3://b/a%20b/c",
                "eu-west-1",
                "https://b.s3.dualstack.eu-west-1.amazonaws.com/a%20b/c",
            ),
            (
                "s3://b.c/k?versionId=7",
                "us-east-1",
                "https://s3.dualstack.us-east-1.amazonaws.com/b.c/k",
            ),
            (
                "arn:aws:s3:::b/a/b",
                "us-east-1",
                "https://b.s3.dualstack.us-east-1.amazonaws.com/a/b",
            ),
            (
                "arn:aws-cn:s3:::b/k",
                "cn-north-1",
                "https://b.s3.dualstack.cn-north-1.amazonaws.com.cn/k",
            ),
            (
                "arn:aws:s3:us-west-2:123456789012:accesspoint/p/object/a/b",
                "us-west-2",
                "https://p-123456789012.s3-accesspoint.dualstack.us-west-2.amazonaws.com/a/b",
            ),
        ] {
            let object = Object::parse(text).unwrap();
            assert_eq!(object.address(&client, region), address, "{text}");
        }
        let object = Object::parse("s3://b/k?x=1&versionId=a%2Bb").unwrap();
        assert_eq!(object.version.as_deref(), Some("a+b"));
        assert_eq!(Endpoints::default().s3, None);
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for text in [
            "s3://b",
            "s3://b/",
            "s3:///k",
            "s3://b@x/k",
            "arn:aws:s3:::b",
            "arn:aws:ec2:::b/k",
            "arn:mars:s3:::b/k",
            "arn:aws:s3:r:1:accesspoint/p",
            "arn:aws:s3",
        ] {
            assert!(Object::parse(text).is_err(), "{text}");
        }
    }
}
