//! Credentials for a cloud's storage: the role of an EC2 instance, the service account of a Compute Engine instance.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html>,
//! <https://cloud.google.com/compute/docs/access/authenticate-workloads#applications>

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use reqwest::StatusCode;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::ending::Ending;
use crate::hosts;
use crate::http::Http;
use crate::request::{Small, small};
use crate::sigv4::{Credentials, stamp};
use crate::want::Method;

/// Credentials are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(60);
/// The size limit of a response with credentials.
const LIMIT: usize = 64 << 10;

/// The credentials of requests to a cloud's storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Anonymous: public objects only.
    #[default]
    Anonymous,
    /// The role of this EC2 instance, if it has one.
    Ec2Role,
    /// The service account of this Compute Engine instance, if it has one.
    ComputeAccount,
}

/// Addresses of the clouds' services; tests replace them by servers on loopback. URLs without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// EC2's instance metadata service.
    pub ec2: String,
    /// Compute Engine's metadata server.
    pub compute: String,
    /// S3 for all regions, with the bucket in the path; none: AWS's own, one for each region.
    pub s3: Option<String>,
    /// Cloud Storage.
    pub gs: String,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            ec2: hosts::EC2.to_owned(),
            compute: hosts::COMPUTE.to_owned(),
            s3: None,
            gs: "https://storage.googleapis.com".to_owned(),
        }
    }
}

/// Endpoints, cached credentials and cached regions of the clouds, for all downloads of a client.
pub(crate) struct Cloud {
    pub(crate) endpoints: Endpoints,
    identity: Identity,
    /// Connects without a proxy: metadata services are link-local.
    direct: Http,
    role: Mutex<Option<Role>>,
    account: Mutex<Option<Account>>,
    /// Regions of buckets.
    pub(crate) regions: Mutex<BTreeMap<String, String>>,
}

/// Holds secrets.
impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloud")
            .field("endpoints", &self.endpoints)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The instance's role and region, from EC2's metadata service.
#[derive(Clone, Default)]
pub(crate) struct Role {
    /// None if the instance has no role.
    pub(crate) credentials: Option<Credentials>,
    /// Its region.
    pub(crate) region: Option<String>,
    /// As [`stamp`] writes it.
    until: Option<String>,
}

/// A token of the service account; none if there is no account.
struct Account {
    token: Option<String>,
    until: Option<Instant>,
}

impl Cloud {
    pub(crate) fn new(identity: Identity, endpoints: Endpoints, direct: Http) -> Self {
        Self {
            endpoints,
            identity,
            direct,
            role: Mutex::default(),
            account: Mutex::default(),
            regions: Mutex::default(),
        }
    }

    /// The role of this instance; an empty one elsewhere.
    pub(crate) async fn role(&self) -> Result<Role, Ending> {
        if self.identity != Identity::Ec2Role {
            return Ok(Role::default());
        }
        let mut known = self.role.lock().await;
        let soon = stamp(SystemTime::now() + MARGIN);
        let lasts = |role: &Role| role.until.as_ref().is_none_or(|until| *until > soon);
        if let Some(role) = known.as_ref().filter(|role| lasts(role)) {
            return Ok(role.clone());
        }
        let role = self.ask_ec2().await?;
        *known = Some(role.clone());
        Ok(role)
    }

    async fn ask_ec2(&self) -> Result<Role, Ending> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Document {
            access_key_id: String,
            secret_access_key: String,
            token: Option<String>,
            expiration: Option<String>,
        }
        let base = &self.endpoints.ec2;
        let life = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
        let token = self
            .ask(Method::Put, &format!("{base}/latest/api/token"), &life)
            .await?;
        let token = token.map(|answer| text(&answer));
        let header = token.as_deref().map(|t| ("x-aws-ec2-metadata-token", t));
        let get = async |path: &str| {
            let url = format!("{base}/latest/meta-data/{path}");
            self.ask(Method::Get, &url, header.as_slice()).await
        };
        let region = get("placement/region").await?.map(|answer| text(&answer));
        let roles = get("iam/security-credentials/").await?;
        let name = roles.and_then(|answer| text(&answer).lines().next().map(str::to_owned));
        let document = match name {
            Some(name) => get(&format!("iam/security-credentials/{name}")).await?,
            None => None,
        };
        let Some(document) = document else {
            return Ok(Role {
                region,
                ..Role::default()
            });
        };
        // While a role is being attached, the document has another form.
        let document: Document = serde_json::from_slice(&document)
            .map_err(|_| Ending::broken("EC2 gave no credentials of the instance's role"))?;
        Ok(Role {
            credentials: Some(Credentials {
                key: document.access_key_id,
                secret: document.secret_access_key,
                token: document.token,
            }),
            region,
            until: document.expiration.map(|time| time.replace(['-', ':'], "")),
        })
    }

    /// A token of this instance's service account for its storage; none if it has none, and elsewhere.
    pub(crate) async fn account(&self) -> Result<Option<String>, Ending> {
        #[derive(Deserialize)]
        struct Token {
            access_token: String,
            expires_in: u64,
        }
        if self.identity != Identity::ComputeAccount {
            return Ok(None);
        }
        let mut known = self.account.lock().await;
        let soon = Instant::now() + MARGIN;
        let lasts = |account: &Account| account.until.is_none_or(|until| until > soon);
        if let Some(account) = known.as_ref().filter(|account| lasts(account)) {
            return Ok(account.token.clone());
        }
        let path = "computeMetadata/v1/instance/service-accounts/default/token";
        let url = format!("{}/{path}", self.endpoints.compute);
        let flavor = [("metadata-flavor", "Google")];
        let account = match self.ask(Method::Get, &url, &flavor).await? {
            None => Account {
                token: None,
                until: None,
            },
            Some(answer) => {
                let token: Token = serde_json::from_slice(&answer)
                    .map_err(|_| Ending::broken("the metadata server gave no token"))?;
                Account {
                    token: Some(token.access_token),
                    until: Instant::now().checked_add(Duration::from_secs(token.expires_in)),
                }
            }
        };
        Ok(known.insert(account).token.clone())
    }

    /// The document at a path of a metadata service; none if the service answers that it does not exist, or that access
    /// is disabled.
    async fn ask(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Option<Vec<u8>>, Ending> {
        let Small {
            status,
            headers,
            body,
        } = small(&self.direct, method, url, headers, LIMIT).await?;
        match status {
            StatusCode::OK => Ok(Some(body)),
            status if status.is_success() => Ok(None),
            status => match Ending::of(url, status, &headers, &[]) {
                Ending::Final(_) => Ok(None),
                broken => Err(broken),
            },
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
