//! The key files of encrypted volumes, fetched with all else before the first write.

use ignition::model::{self, Resource};

use super::{Gather, Wrong};

impl Gather<'_> {
    /// One for each of `storage.luks`, in that order; none where the config names no file.
    pub(super) fn keys(&mut self, model: &model::Config) -> Result<Vec<Option<Vec<u8>>>, Wrong> {
        let storage = model.storage.as_ref();
        let volumes = storage
            .and_then(|storage| storage.luks.as_deref())
            .unwrap_or_default();
        let files: Vec<Option<&Resource>> = volumes.iter().map(key_file).collect();
        let wanted: Vec<(String, &Resource)> = files
            .iter()
            .enumerate()
            .filter_map(|(i, key)| Some((format!("$.storage.luks.{i}.keyFile"), (*key)?)))
            .collect();
        let mut fetched = self.fetch(&wanted)?.into_iter();
        let keys = files.iter().map(|key| key.and_then(|_| fetched.next()));
        Ok(keys.collect())
    }
}

fn key_file(volume: &model::Luks) -> Option<&Resource> {
    let has_source = |key: &&Resource| key.source.as_ref().is_some_and(|source| !source.is_empty());
    volume.key_file.as_ref().filter(has_source)
}
