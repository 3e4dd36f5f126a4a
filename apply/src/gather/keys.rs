//! Keys of encrypted volumes, fetched before the first write: key files, and the advertisements of tang servers
//! (`clevis-encrypt-tang(1)`).

use ignition::model::{self, Luks, Resource, Tang};

use super::{ConfigProblems, Gather};
use crate::fetched::VolumeKeys;

impl Gather<'_> {
    /// Fetches the keys of `storage.luks`, in that order.
    pub fn keys(&mut self, model: &model::Config) -> Result<Vec<VolumeKeys>, ConfigProblems> {
        let storage = model.storage.as_ref();
        let volumes = storage
            .and_then(|storage| storage.luks.as_deref())
            .unwrap_or_default();
        let mut wanted = Vec::new();
        for (i, volume) in volumes.iter().enumerate() {
            let at = format!("$.storage.luks.{i}");
            wanted.extend(key_file(volume).map(|key| (format!("{at}.keyFile"), key.clone())));
            for (j, server) in servers(volume).iter().enumerate() {
                let request = advertisement_request(server);
                wanted.extend(request.map(|what| (format!("{at}.clevis.tang.{j}"), what)));
            }
        }
        let named: Vec<(String, &Resource)> = wanted
            .iter()
            .map(|(at, resource)| (at.clone(), resource))
            .collect();
        let mut fetched = self.fetch(&named)?.into_iter();
        let keys = volumes.iter().map(|volume| VolumeKeys {
            file: key_file(volume).and_then(|_| fetched.next()),
            advertisements: servers(volume)
                .iter()
                .map(|server| advertisement_request(server).and_then(|_| fetched.next()))
                .collect(),
        });
        let keys = keys.collect();
        if volumes.iter().any(asks_for_network) {
            self.need_network()?;
        }
        Ok(keys)
    }
}

fn key_file(volume: &Luks) -> Option<&Resource> {
    let has_source = |key: &&Resource| key.source.as_ref().is_some_and(|source| !source.is_empty());
    volume.key_file.as_ref().filter(has_source)
}

fn servers(volume: &Luks) -> &[Tang] {
    let clevis = volume.clevis.as_ref();
    clevis
        .and_then(|clevis| clevis.tang.as_deref())
        .unwrap_or_default()
}

/// The request for a server's advertisement; none if the config holds it.
fn advertisement_request(server: &Tang) -> Option<Resource> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if given(&server.advertisement).is_some() {
        return None;
    }
    let url = given(&server.url)?;
    let thumbprint = given(&server.thumbprint)?;
    Some(Resource {
        source: Some(format!("{}/adv/{thumbprint}", url.trim_end_matches('/'))),
        ..Resource::default()
    })
}

/// Whether a custom pin of the config needs the network, although nothing is fetched for it here.
fn asks_for_network(volume: &Luks) -> bool {
    let custom = volume
        .clevis
        .as_ref()
        .and_then(|clevis| clevis.custom.as_ref());
    custom.is_some_and(|custom| custom.needs_network == Some(true))
}
