//! Blobs of Azure's storage, with the token of the machine's managed identity if it has one.
//!
//! <https://learn.microsoft.com/rest/api/storageservices/authorize-with-azure-active-directory>

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::bearer::Bearer;
use crate::client::Client;
use crate::ending::Ending;
use crate::http_source::{HttpSource, Requesting};
use crate::request::{Request, header};

/// What the hosts of storage accounts end in: of the public cloud, with and without zones, of that for the United States'
/// government, of that in China, and of the former one in Germany
/// (<https://learn.microsoft.com/azure/storage/common/storage-account-overview#storage-account-endpoints>).
const DOMAINS: [&str; 5] = [
    ".blob.core.windows.net",
    ".blob.storage.azure.net",
    ".blob.core.usgovcloudapi.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.cloudapi.de",
];
/// The version of the protocol: tokens need one from 2017-11-09 on, and every cloud has this one.
const VERSION: &str = "2019-12-12";

/// What to do about several identities: of a request that names none, the service takes the system-assigned one, else the only
/// user-assigned one
/// (<https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/managed-identities-faq>).
const SEVERAL: &str = "this machine has several user-assigned identities, and the metadata service gives a token for a chosen one \
     only: leave it one, or turn on its system-assigned identity, or put a shared access signature into the URL";

/// A blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    address: Url,
    bearer: Bearer,
    /// Whether the machine has several identities, so that none of them gave a token.
    several: bool,
}

impl Blob {
    /// The blob at an address; none if it is not one of Azure's storage by https, or has a signature of its own.
    pub(crate) fn at(address: &Url) -> Option<Self> {
        let host = address.host_str()?.trim_end_matches('.');
        let is_storage = DOMAINS.iter().any(|domain| {
            let account = host.strip_suffix(domain);
            account.is_some_and(|account| !account.is_empty())
        });
        let is_signed = address.query_pairs().any(|(name, _)| name == "sig");
        let is_blob = address.scheme() == "https" && is_storage && !is_signed;
        is_blob.then(|| Self {
            address: address.clone(),
            bearer: Bearer::default(),
            several: false,
        })
    }

    async fn make_request(&mut self, client: &Client) -> Result<Request, Ending> {
        let mut headers = HeaderMap::new();
        let token = client.cloud.managed_identity();
        if let Some(authorization) = self.bearer.header(token).await? {
            headers.extend([authorization, header("x-ms-version", VERSION)?]);
        }
        self.several = client.cloud.has_several_identities().await;
        Ok(Request {
            address: self.address.clone().into(),
            headers,
            digest: None,
        })
    }
}

impl HttpSource for Blob {
    fn request<'a>(&'a mut self, client: &'a Client) -> Requesting<'a> {
        Box::pin(self.make_request(client))
    }

    fn change_credentials(&mut self) -> Option<&'static str> {
        self.bearer.refuse().then_some(
            "Azure's storage refuses the machine's identity; retrying without credentials",
        )
    }

    fn lacks_credentials(&self) -> Option<&'static str> {
        self.several.then_some(SEVERAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_vendors_storage_by_https_is_a_blob() {
        for (url, expected) in [
            ("https://account.blob.core.windows.net/c/b", true),
            (
                "https://ACCOUNT.blob.core.windows.net./c/b?versionid=x",
                true,
            ),
            ("https://account.z7.blob.storage.azure.net/c/b", true),
            ("https://account.blob.core.usgovcloudapi.net/c/b", true),
            ("https://account.blob.core.chinacloudapi.cn/c/b", true),
            ("http://account.blob.core.windows.net/c/b", false),
            ("https://blob.core.windows.net/c/b", false),
            ("https://account.blob.core.windows.net.example/c/b", false),
            ("https://accountblob.core.windows.net/c/b", false),
            ("https://account.file.core.windows.net/c/b", false),
            (
                "https://account.blob.core.windows.net/c/b?sv=1&sig=x",
                false,
            ),
            ("https://h.example/account.blob.core.windows.net", false),
        ] {
            let found = Blob::at(&Url::parse(url).unwrap());
            assert_eq!(found.is_some(), expected, "{url}");
        }
    }
}
