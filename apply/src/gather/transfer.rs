//! How servers are asked, as the machine's settings and the configs so far say.

use std::time::Duration;

use anyhow::Result;
use fetch::{Client, Identity, Options, Patience, Proxy};
use ignition::model;

use super::Settings;

/// What configs say about later downloads.
#[derive(Clone)]
pub(super) struct Transfer {
    pub(super) patience: Patience,
    /// Certificate authorities, PEM.
    pub(super) authorities: Vec<u8>,
    proxy: Option<Proxy>,
    identity: Identity,
}

impl Transfer {
    /// Before any config; `identity` are the credentials for the clouds' storage.
    pub(super) const fn new(patience: Patience, identity: Identity) -> Self {
        Self {
            patience,
            authorities: Vec::new(),
            proxy: None,
            identity,
        }
    }

    /// Takes over the timeouts and the proxy of a config.
    pub(super) fn adopt(&mut self, model: &model::Config) {
        if let Some(timeouts) = &model.ignition.timeouts {
            let seconds =
                |value: Option<i64>| value.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
            if let Some(header) = seconds(timeouts.http_response_headers) {
                self.patience.header_timeout = Duration::from_secs(header);
            }
            if let Some(total) = seconds(timeouts.http_total) {
                self.patience.total = Some(Duration::from_secs(total));
            }
        }
        if let Some(proxy) = &model.ignition.proxy {
            let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
            let (http, https) = (given(&proxy.http_proxy), given(&proxy.https_proxy));
            self.proxy = (http.is_some() || https.is_some()).then(|| Proxy {
                http,
                https,
                none: proxy.no_proxy.iter().flatten().cloned().collect(),
            });
        }
    }

    /// A client that asks so.
    ///
    /// # Errors
    /// If the certificates or the proxy cannot be used.
    pub(super) fn client(&self, settings: &Settings) -> Result<Client> {
        Client::new(&Options {
            ca_bundle: self.bundle(settings.ca_bundle.clone()),
            user_agent: concat!("Ignition/3.6.0 slipway/", env!("CARGO_PKG_VERSION")).to_owned(),
            proxy: self.proxy.clone(),
            identity: self.identity,
            endpoints: settings.endpoints.clone(),
            links: settings.links.clone(),
            ..Options::default()
        })
    }

    /// The certificates to trust: those of the machine, then those of the configs.
    fn bundle(&self, machine: Option<Vec<u8>>) -> Option<Vec<u8>> {
        if self.authorities.is_empty() {
            return machine;
        }
        let mut bundle = machine.unwrap_or_default();
        // A file may end without a line's end, and a certificate begins on its own line (RFC 7468, 3).
        if bundle.last().is_some_and(|last| *last != b'\n') {
            bundle.push(b'\n');
        }
        bundle.extend(&self.authorities);
        Some(bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_authority_of_a_config_begins_on_its_own_line() {
        let mut transfer = Transfer::new(Patience::default(), Identity::Anonymous);
        let bundle = |transfer: &Transfer, machine: Option<&str>| {
            let bundle = transfer.bundle(machine.map(|text| text.as_bytes().to_vec()));
            bundle.map(|bundle| String::from_utf8(bundle).unwrap())
        };
        for machine in [None, Some("machine")] {
            assert_eq!(bundle(&transfer, machine).as_deref(), machine);
        }
        transfer.authorities = b"config\n".to_vec();
        for (machine, expected) in [
            (None, "config\n"),
            (Some(""), "config\n"),
            (Some("machine"), "machine\nconfig\n"),
            (Some("machine\n"), "machine\nconfig\n"),
        ] {
            assert_eq!(bundle(&transfer, machine).as_deref(), Some(expected));
        }
    }
}
