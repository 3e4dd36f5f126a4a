//! Objects of S3: the region of a bucket, and requests, signed if the instance has a role.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-bucket-intro.html>

use std::time::SystemTime;

use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode, Url};

use crate::client::Client;
use crate::ending::Ending;
use crate::failure::shown;
use crate::http_source::{HttpSource, Reading, Requesting};
use crate::identity::Role;
use crate::partition::Partition;
use crate::percent;
use crate::request::{Address, Request, header, small};
use crate::s3_error;
use crate::sigv4::{self, EMPTY, sign};
use crate::want::Method;

/// The header with the region of a bucket, which S3 sends with every response.
const REGION: &str = "x-amz-bucket-region";

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// The caller's address without its query, for messages.
    shown: String,
    place: Place,
    key: String,
    pub(crate) version: Option<String>,
    /// Whether S3 refused the role, so that further requests are not signed.
    anonymous: bool,
    /// Whether the last request was signed.
    signed: bool,
    /// What S3 says of the last request that it refused.
    said: Option<String>,
    /// What it says of the credentials, once it refused them.
    said_of_credentials: Option<String>,
}

/// The location of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A bucket, and the region whose endpoint is asked for its location, if the address implies one.
    Bucket(String, Option<&'static str>),
    /// An access point: name, account, region.
    Point(String, String, String),
}

impl Object {
    pub(crate) fn new(shown: String, place: Place, key: String, version: Option<String>) -> Self {
        Self {
            shown,
            place,
            key,
            version,
            anonymous: false,
            signed: false,
            said: None,
            said_of_credentials: None,
        }
    }

    /// A request for the object, or one that stores content of the hash `payload` in its place.
    pub(crate) async fn make_request(
        &mut self,
        client: &Client,
        method: &str,
        payload: &str,
    ) -> Result<Request, Ending> {
        let query = self.version.as_deref().map(percent::encode);
        let query = query.map_or_else(String::new, |version| format!("versionId={version}"));
        self.make_request_of(client, method, &query, payload).await
    }

    /// The same with this query, whose parameters are encoded and sorted.
    pub(crate) async fn make_request_of(
        &mut self,
        client: &Client,
        method: &str,
        query: &str,
        payload: &str,
    ) -> Result<Request, Ending> {
        let mut role = client.cloud.role().await?;
        if self.anonymous {
            role.credentials = None;
        }
        let region = self.region(client, &role).await?;
        let text = self.address(client, &region);
        let mut address = self.parsed(client, &text)?;
        let path = path_of(&text);
        if !query.is_empty() {
            address.set_query(Some(query));
        }
        let mut headers = HeaderMap::new();
        self.signed = role.credentials.is_some();
        if let Some(credentials) = &role.credentials {
            let host = address.host_str().unwrap_or_default();
            let host = address
                .port()
                .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            let request = sigv4::Request {
                method,
                host: &host,
                path,
                query,
                headers: &[],
                payload,
            };
            for (name, value) in sign(&request, credentials, &region, SystemTime::now()) {
                let (name, value) = header(name, &value)?;
                headers.insert(name, value);
            }
        }
        // S3 signs and looks up a key as it is, with segments that a URL resolves.
        let address = match address.path() == path {
            true => address.into(),
            false if query.is_empty() => Address::exact(address, path.to_owned()),
            false => Address::exact(address, format!("{path}?{query}")),
        };
        Ok(Request {
            address,
            headers,
            digest: None,
        })
    }

    pub(crate) fn address(&self, client: &Client, region: &str) -> String {
        let key = percent::encode_path(&self.key);
        let Partition { domain, dual, .. } = Partition::of_region(region);
        match (&client.cloud.endpoints.s3, &self.place) {
            (Some(base), Place::Bucket(bucket, _)) => format!("{base}/{bucket}/{key}"),
            (Some(base), Place::Point(name, account, _)) => {
                format!("{base}/{name}-{account}/{key}")
            }
            // The certificate is for one label before the service's name.
            (None, Place::Bucket(bucket, _)) if bucket.contains('.') => {
                format!("https://s3{dual}.{region}.{domain}/{bucket}/{key}")
            }
            (None, Place::Bucket(bucket, _)) => {
                format!("https://{bucket}.s3{dual}.{region}.{domain}/{key}")
            }
            (None, Place::Point(name, account, _)) => {
                format!("https://{name}-{account}.s3-accesspoint{dual}.{region}.{domain}/{key}")
            }
        }
    }

    /// Parses an address. Its beginning is the user's where there is another server than AWS.
    fn parsed(&self, client: &Client, address: &str) -> Result<Url, Ending> {
        let read = Url::parse(address).map_err(|error| error.to_string());
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https");
        match (read, &client.cloud.endpoints.s3) {
            (Ok(url), _) if is_http(&url) => Ok(url),
            (_, Some(endpoint)) => {
                let endpoint = shown(endpoint);
                let why = format!("the endpoint {endpoint} is not a URL as https://HOST");
                Err(Ending::refused(&self.shown, why))
            }
            (Ok(_), None) => Err(Ending::refused(&self.shown, "its address is not http")),
            (Err(why), None) => Err(Ending::refused(&self.shown, why)),
        }
    }

    /// The region of the bucket, requested from S3 once for each bucket.
    async fn region(&self, client: &Client, role: &Role) -> Result<String, Ending> {
        let (bucket, hint) = match &self.place {
            Place::Point(_, _, region) => return Ok(region.clone()),
            Place::Bucket(bucket, hint) => (bucket, *hint),
        };
        if let Some(region) = &client.cloud.endpoints.s3_region {
            return Ok(region.clone());
        }
        let mut known = client.cloud.regions.lock().await;
        if let Some(region) = known.get(bucket) {
            return Ok(region.clone());
        }
        let hint = hint.or(role.region.as_deref()).unwrap_or("us-east-1");
        let base = match &client.cloud.endpoints.s3 {
            Some(base) => base.clone(),
            None => {
                let Partition { domain, dual, .. } = Partition::of_region(hint);
                format!("https://s3{dual}.{hint}.{domain}")
            }
        };
        let url = format!("{base}/{bucket}");
        let answer = small(&client.http, Method::Head, &url, &[], 0).await?;
        let found = answer.headers.get(REGION);
        let region = match found.and_then(|region| region.to_str().ok()) {
            Some(region) if is_name(region) => region.to_owned(),
            _ if answer.status.is_success() => hint.to_owned(),
            _ => return Err(Ending::of(&url, answer.status, &answer.headers, &[])),
        };
        known.insert(bucket.clone(), region.clone());
        Ok(region)
    }
}

impl HttpSource for Object {
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a> {
        Box::pin(self.make_request(client, "GET", EMPTY))
    }

    // A role that may not read a bucket must not prevent this machine from reading public objects.
    fn change_credentials(&mut self) -> Option<&'static str> {
        if !self.signed || self.anonymous {
            return None;
        }
        self.anonymous = true;
        self.said_of_credentials = self.said.take();
        Some("S3 refuses the credentials; retrying without them")
    }

    // Where the request without credentials is refused for lack of them, S3's reason to refuse the credentials says more. Any other status
    // is of the object itself, and its code is that of the same answer.
    fn note(&self, status: StatusCode) -> Option<String> {
        let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let of_credentials = self.said_of_credentials.as_ref().filter(|_| denied);
        of_credentials.or(self.said.as_ref()).cloned()
    }

    fn refused(&mut self, answer: Response) -> Reading<'_> {
        Box::pin(async move {
            self.said = s3_error::note(answer).await;
        })
    }
}

/// The path of an address as it is written.
fn path_of(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let path = address[host..].find('/').map(|at| host + at);
    path.map_or("/", |at| &address[at..])
}

/// Whether a text is a valid bucket, access point, account or region: one that may be part of a host name.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}
