//! Credentials for a cloud's storage: the role of an EC2 instance, the service account of a Compute Engine instance, the managed
//! identity of a machine of Azure.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html>,
//! <https://cloud.google.com/compute/docs/access/authenticate-workloads#applications>,
//! <https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token>

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

/// What the error of Azure's service says for a machine with several user-assigned identities and no system-assigned one.
const AZURE_SEVERAL: &str = "multiple user assigned identities";

/// Credentials are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(60);
/// The size limit of a response with credentials.
const LIMIT: usize = 64 << 10;
/// A token for Azure's storage, in each of its clouds.
const AZURE_TOKEN: &str = "metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F";
/// The statuses of Azure's service while it is updated, and how long that takes at most; after that a machine counts as one
/// without identity.
const AZURE_UPDATING: &[u16] = &[404, 410];
const AZURE_UPDATE: Duration = Duration::from_secs(70);

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
    /// The managed identity of this machine of Azure, if it has one.
    ManagedIdentity,
}

/// Addresses of the clouds' services; tests replace them by servers on loopback. URLs without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// EC2's instance metadata service.
    pub ec2: String,
    /// Compute Engine's metadata server.
    pub compute: String,
    /// Azure's instance metadata service.
    pub azure: String,
    /// S3 for all regions, with the bucket in the path; none: AWS's own, one for each region.
    pub s3: Option<String>,
    /// The region of all buckets; none: S3 is asked for that of each.
    pub s3_region: Option<String>,
    /// Cloud Storage.
    pub gs: String,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            ec2: hosts::EC2.to_owned(),
            compute: hosts::COMPUTE.to_owned(),
            azure: hosts::AZURE.to_owned(),
            s3: None,
            s3_region: None,
            gs: "https://storage.googleapis.com".to_owned(),
        }
    }
}

/// Endpoints, cached credentials and cached regions of the clouds, for all downloads of a client.
pub(crate) struct Cloud {
    pub(crate) endpoints: Endpoints,
    identity: Identity,
    /// Credentials for buckets, in place of the identity's.
    credentials: Option<Credentials>,
    /// Connects without a proxy: metadata services are link-local.
    direct: Http,
    role: Mutex<Option<Role>>,
    account: Mutex<Option<Account>>,
    managed: Mutex<Managed>,
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

/// A token of the service account or of the managed identity; none if there is none.
struct Account {
    token: Option<String>,
    until: Option<Instant>,
    /// Whether there are several, of which none is meant.
    several: bool,
}

impl Account {
    /// No account, which does not change while the machine boots.
    const NONE: Self = Self {
        token: None,
        until: None,
        several: false,
    };
    /// Several accounts: as none.
    const SEVERAL: Self = Self {
        several: true,
        ..Self::NONE
    };

    fn lasting(token: String, seconds: u64) -> Self {
        Self {
            token: Some(token),
            until: Instant::now().checked_add(Duration::from_secs(seconds)),
            several: false,
        }
    }

    fn lasts(&self) -> bool {
        let soon = Instant::now() + MARGIN;
        self.until.is_none_or(|until| until > soon)
    }
}

/// The managed identity, as far as it is known.
#[derive(Default)]
struct Managed {
    account: Option<Account>,
    /// Since when the service is asked without an answer.
    since: Option<Instant>,
}

impl Cloud {
    pub(crate) fn new(
        identity: Identity,
        credentials: Option<Credentials>,
        endpoints: Endpoints,
        direct: Http,
    ) -> Self {
        Self {
            endpoints,
            identity,
            credentials,
            direct,
            role: Mutex::default(),
            account: Mutex::default(),
            managed: Mutex::default(),
            regions: Mutex::default(),
        }
    }

    /// The role of this instance; an empty one elsewhere.
    pub(crate) async fn role(&self) -> Result<Role, Ending> {
        if self.credentials.is_some() || self.identity != Identity::Ec2Role {
            return Ok(Role {
                credentials: self.credentials.clone(),
                ..Role::default()
            });
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
        if let Some(account) = known.as_ref().filter(|account| account.lasts()) {
            return Ok(account.token.clone());
        }
        let path = "computeMetadata/v1/instance/service-accounts/default/token";
        let url = format!("{}/{path}", self.endpoints.compute);
        let flavor = [("metadata-flavor", "Google")];
        let account = match self.ask(Method::Get, &url, &flavor).await? {
            None => Account::NONE,
            Some(answer) => {
                let token: Token = serde_json::from_slice(&answer)
                    .map_err(|_| Ending::broken("the metadata server gave no token"))?;
                Account::lasting(token.access_token, token.expires_in)
            }
        };
        Ok(known.insert(account).token.clone())
    }

    /// A token of this machine's managed identity for Azure's storage; none if it has none, and elsewhere.
    pub(crate) async fn managed_identity(&self) -> Result<Option<String>, Ending> {
        if self.identity != Identity::ManagedIdentity {
            return Ok(None);
        }
        let mut known = self.managed.lock().await;
        if let Some(account) = known.account.as_ref().filter(|account| account.lasts()) {
            return Ok(account.token.clone());
        }
        let since = *known.since.get_or_insert_with(Instant::now);
        let account = match is_over(since, Instant::now()) {
            true => Account::NONE,
            false => self.ask_azure().await?,
        };
        known.since = None;
        Ok(known.account.insert(account).token.clone())
    }

    /// Whether the answer to [`Cloud::managed_identity`] was that the machine has several.
    pub(crate) async fn has_several_identities(&self) -> bool {
        let known = self.managed.lock().await;
        known
            .account
            .as_ref()
            .is_some_and(|account| account.several)
    }

    async fn ask_azure(&self) -> Result<Account, Ending> {
        // The lifetime is a text.
        #[derive(Deserialize)]
        struct Token {
            access_token: String,
            expires_in: String,
        }
        let url = format!("{}/{AZURE_TOKEN}", self.endpoints.azure);
        let headers = [("metadata", "true")];
        let answer = small(&self.direct, Method::Get, &url, &headers, LIMIT).await?;
        if answer.status == StatusCode::BAD_REQUEST && names_several(&answer.body) {
            return Ok(Account::SEVERAL);
        }
        // A machine without identity is answered 400 too.
        let Some(answer) = document(&url, answer, AZURE_UPDATING)? else {
            return Ok(Account::NONE);
        };
        let none = || Ending::broken("Azure's metadata service gave no token");
        let token: Token = serde_json::from_slice(&answer).map_err(|_| none())?;
        let seconds = token.expires_in.parse().map_err(|_| none())?;
        Ok(Account::lasting(token.access_token, seconds))
    }

    /// The document at a path of a metadata service; none if the service answers that it does not exist, or that access
    /// is disabled.
    async fn ask(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Option<Vec<u8>>, Ending> {
        let answer = small(&self.direct, method, url, headers, LIMIT).await?;
        document(url, answer, &[])
    }
}

/// The document of an answer, as [`Cloud::ask`] gives it; after the statuses `repeat` another attempt is made too.
fn document(url: &str, answer: Small, repeat: &[u16]) -> Result<Option<Vec<u8>>, Ending> {
    match answer.status {
        StatusCode::OK => Ok(Some(answer.body)),
        status if status.is_success() => Ok(None),
        status => match Ending::of(url, status, &answer.headers, repeat) {
            Ending::Final(_) => Ok(None),
            broken => Err(broken),
        },
    }
}

/// Whether an error of Azure's service says that the machine has several identities.
fn names_several(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Refusal {
        error_description: String,
    }
    let refusal = serde_json::from_slice::<Refusal>(body);
    refusal.is_ok_and(|refusal| {
        let why = refusal.error_description.to_lowercase();
        why.contains(AZURE_SEVERAL)
    })
}

/// Whether Azure's service has been asked for longer than an update of it takes.
fn is_over(since: Instant, now: Instant) -> bool {
    now.duration_since(since) > AZURE_UPDATE
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_stays_silent_is_not_asked_for_ever() {
        let since = Instant::now();
        assert!(!is_over(since, since + AZURE_UPDATE));
        assert!(is_over(
            since,
            since + AZURE_UPDATE + Duration::from_secs(1)
        ));
    }

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        assert!(Account::NONE.lasts());
        assert!(Account::lasting(String::new(), 120).lasts());
        assert!(!Account::lasting(String::new(), 30).lasts());
    }
}
