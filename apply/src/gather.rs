//! One attempt: reads both configs, follows their chains of `replace` and `merge`, merges and checks everything, and
//! fetches and verifies all that it names. All mistakes are reported together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fetch::{Endpoints, Identity, Links, Pace, Patience, Room};
use ignition::contents::{gunzip, open};
use ignition::model::{self, Resource};
use ignition::{Config, Report, source};
use linux::world::World;

use self::memory::Refusal;
use self::transfer::Transfer;
use crate::config_source::ConfigSource;
use crate::fetched::{Content, Contents, Fetched, Sources};

pub mod amount;
mod download;
mod keys;
mod memory;
mod sink;
mod spool;
mod transfer;

pub use spool::Refetch;

/// The most that one source may hold in memory, unpacked too.
const LIMIT: u64 = 256 << 20;
/// The time without a new byte after which a source is given up: then the caller begins anew, with a lease that still holds.
const WITHOUT_BYTES: Duration = Duration::from_secs(600);
/// Below 16 bytes a second a server has stopped answering, whatever it drips; systemd draws the line at 30.
const SLOWEST: Pace = Pace {
    bytes: 960,
    within: Duration::from_secs(60),
};
/// Configs that may refer to one another in a chain.
const DEEPEST: u32 = 16;

/// Settings that do not depend on the config.
#[derive(Clone)]
pub struct Settings {
    /// Certificates to trust, PEM.
    pub ca_bundle: Option<Vec<u8>>,
    /// The patience for a source.
    pub patience: Patience,
    /// Addresses of the clouds' storage and of its credentials.
    pub endpoints: Endpoints,
    /// Over which links servers are asked.
    pub links: Links,
    /// Called with what keeps a source from coming, for the log.
    pub on_wait: Say,
    /// Called every five seconds with what has come so far and how long that took, for the consoles.
    pub on_progress: Say,
    /// The machine: its watchdog is fed by the bytes that come, its memory holds them.
    pub world: Arc<World>,
    /// The bytes that `/var` can have at most, for files that do not fit into memory; none where such files are refused. A
    /// file system of the config's own at `/var` has a size of its own.
    pub spool: Option<u64>,
}

/// Tells people something.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ca_bundle: None,
            patience: Patience {
                attempts: None,
                header_timeout: Duration::from_secs(10),
                first_wait: Duration::from_millis(200),
                without_bytes: Some(WITHOUT_BYTES),
                slowest: Some(SLOWEST),
                ..Patience::default()
            },
            endpoints: Endpoints::default(),
            links: Links::default(),
            on_wait: Arc::new(|_| ()),
            on_progress: Arc::new(|_| ()),
            world: Arc::new(World::real()),
            spool: None,
        }
    }
}

/// All problems of a config.
#[derive(Debug, Default)]
pub struct ConfigProblems {
    /// One problem each.
    pub lines: Vec<String>,
    /// Whether a server was involved: then another attempt may help.
    pub remote: bool,
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// An attempt.
pub struct Gather<'a> {
    settings: &'a Settings,
    network: &'a dyn Fn() -> Result<()>,
    transfer: Transfer,
    /// The memory that everything fetched may have, until it is written. There is no disk to put it on before all of it is
    /// verified: the config decides what becomes of the disks.
    room: Arc<Room>,
    remote: bool,
    /// Warnings about the configs.
    pub warnings: Vec<String>,
}

/// Fetched data may be secret: only whether a server was involved is shown.
impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

impl<'a> Gather<'a> {
    /// An attempt; `identity` are the credentials for the clouds' storage.
    pub fn new(
        settings: &'a Settings,
        network: &'a dyn Fn() -> Result<()>,
        identity: Identity,
    ) -> Self {
        Self {
            settings,
            network,
            transfer: Transfer::new(settings.patience, identity),
            room: Arc::new(Room::new(memory::half(&settings.world))),
            remote: false,
            warnings: Vec::new(),
        }
    }

    /// Certificate authorities from configs, PEM.
    #[must_use]
    pub fn authorities(&self) -> &[u8] {
        &self.transfer.authorities
    }

    /// The problems, and whether another attempt may help.
    pub fn wrong(&self, lines: Vec<String>) -> ConfigProblems {
        ConfigProblems {
            lines,
            remote: self.remote,
        }
    }

    /// The config, its warnings kept; or all its problems.
    ///
    /// # Errors
    /// The entries of the report.
    pub fn report(
        &mut self,
        result: Result<(Config, Report), Report>,
    ) -> Result<Config, ConfigProblems> {
        match result {
            Ok((config, report)) => {
                self.warnings
                    .extend(report.entries.iter().map(ToString::to_string));
                Ok(config)
            }
            Err(report) => {
                Err(self.wrong(report.entries.iter().map(ToString::to_string).collect()))
            }
        }
    }

    /// One config under another, checked together.
    pub fn merged(&mut self, base: &Config, over: &Config) -> Result<Config, ConfigProblems> {
        let merged = base.merge(over);
        self.report(merged)
    }

    /// A merged config with everything that it names, fetched; the keys of encrypted volumes only if no earlier stage
    /// has fetched them. [`Fetched::sources`] is left empty.
    pub fn with_contents(
        &mut self,
        config: Config,
        user_config: bool,
        with_keys: bool,
    ) -> Result<Fetched, ConfigProblems> {
        let model = config.model().map_err(|error| self.wrong(vec![error]))?;
        self.transfer.adopt(&model);
        let from_server = self.remote;
        let files = self.files(&model);
        let keys = match with_keys {
            true => self.keys(&model),
            false => Ok(Vec::new()),
        };
        let (files, keys) = match (files, keys) {
            (Ok(files), Ok(keys)) => (files, keys),
            (Err(mut wrong), Err(other)) => {
                wrong.lines.extend(other.lines);
                return Err(self.wrong(wrong.lines));
            }
            (Err(wrong), _) | (_, Err(wrong)) => return Err(self.wrong(wrong.lines)),
        };
        Ok(Fetched {
            config,
            model,
            files,
            keys,
            user_config,
            from_server,
            warnings: std::mem::take(&mut self.warnings),
            sources: Sources::new(),
            spool: None,
        })
    }

    /// Reads a config from its source, and follows its chain. None without a source and for an empty text.
    pub fn one(&mut self, place: Option<&ConfigSource>) -> Result<Option<Config>, ConfigProblems> {
        let (text, name) = match place {
            None => return Ok(None),
            Some(ConfigSource::Text(text, name)) => (text.clone(), name.clone()),
            Some(ConfigSource::Url(url)) => {
                let wanted = Resource {
                    source: Some(url.clone()),
                    ..Resource::default()
                };
                let key = image::cmdline::CONFIG_URL;
                if let Err(why) = source::check(url, 7) {
                    return Err(self.wrong(vec![format!("{key}: {why}")]));
                }
                (self.fetch_one(key, &wanted)?, source::shown(url))
            }
        };
        let text = self.unpacked(text, &name)?;
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let parsed = Config::parse(&text, &name);
        let config = self.report(parsed)?;
        self.follow(config, DEEPEST).map(Some)
    }

    /// Unpacks a config that is packed with gzip, recognised by its magic number (RFC 1952).
    fn unpacked(&self, text: Vec<u8>, name: &str) -> Result<Vec<u8>, ConfigProblems> {
        match text.starts_with(&[0x1f, 0x8b]) {
            true => memory::within(&self.room, text, true, |text, limit| gunzip(&text, limit))
                .map_err(|error| self.wrong(vec![format!("{name}: {error}")])),
            false => Ok(text),
        }
    }

    /// Follows the chain of a config. `replace` takes precedence over `merge`; each merged config has its own chain
    /// followed before the next one's.
    fn follow(&mut self, config: Config, depth: u32) -> Result<Config, ConfigProblems> {
        let model = config.model().map_err(|error| self.wrong(vec![error]))?;
        self.adopt(&model)?;
        let Some(references) = model.ignition.config else {
            return Ok(config);
        };
        let replace = references
            .replace
            .filter(|replace| replace.source.is_some());
        let refers = replace.is_some() || references.merge.iter().flatten().next().is_some();
        if refers && depth == 0 {
            let what = format!("configs refer to one another more than {DEEPEST} deep");
            return Err(self.wrong(vec![format!("$.ignition.config: {what}")]));
        }
        if let Some(replace) = replace {
            let next = self.referred("$.ignition.config.replace", &replace)?;
            return self.follow(next, depth - 1);
        }
        let mut merged = config;
        for (i, reference) in references.merge.into_iter().flatten().enumerate() {
            let next = self.referred(&format!("$.ignition.config.merge.{i}"), &reference)?;
            let next = self.follow(next, depth - 1)?;
            let both = merged.merge(&next);
            merged = self.report(both)?;
        }
        Ok(merged)
    }

    fn referred(&mut self, path: &str, reference: &Resource) -> Result<Config, ConfigProblems> {
        let text = self.fetch_one(path, reference)?;
        let name = format!(
            "{path} ({})",
            source::shown(reference.source.as_deref().unwrap_or_default())
        );
        let text = self.unpacked(text, &name)?;
        let parsed = Config::parse(&text, &name);
        self.report(parsed)
    }

    /// Timeouts, proxy and certificate authorities of a config apply to all later downloads.
    pub fn adopt(&mut self, model: &model::Config) -> Result<(), ConfigProblems> {
        self.transfer.adopt(model);
        self.adopt_authorities(model)
    }

    fn adopt_authorities(&mut self, model: &model::Config) -> Result<(), ConfigProblems> {
        let tls = model
            .ignition
            .security
            .as_ref()
            .and_then(|security| security.tls.as_ref());
        let authorities = tls
            .and_then(|tls| tls.certificate_authorities.as_deref())
            .unwrap_or_default();
        let wanted: Vec<(String, &Resource)> = authorities
            .iter()
            .enumerate()
            .map(|(i, ca)| {
                (
                    format!("$.ignition.security.tls.certificateAuthorities.{i}"),
                    ca,
                )
            })
            .collect();
        for bundle in self.fetch(&wanted)? {
            self.transfer.authorities.extend(bundle);
            self.transfer.authorities.push(b'\n');
        }
        Ok(())
    }

    fn files(&mut self, model: &model::Config) -> Result<Vec<Contents>, ConfigProblems> {
        let wanted = file_resources(model);
        let answers = self.answers(&wanted)?;
        let answers = answers.into_iter().map(|one| one.map(Content::Memory));
        let mut fetched = self.large(model, &wanted, answers.collect())?.into_iter();
        let files = model
            .storage
            .as_ref()
            .and_then(|storage| storage.files.as_deref());
        let mut next = || fetched.next().unwrap_or(Content::Memory(Vec::new()));
        let contents = files.unwrap_or_default().iter().map(|file| Contents {
            contents: file.contents.as_ref().filter(has_source).map(|_| next()),
            append: file
                .append
                .iter()
                .flatten()
                .filter(has_source)
                .map(|_| next())
                .collect(),
        });
        Ok(contents.collect())
    }

    fn fetch_one(&mut self, path: &str, wanted: &Resource) -> Result<Vec<u8>, ConfigProblems> {
        let mut got = self.fetch(&[(path.to_owned(), wanted)])?;
        Ok(got.pop().unwrap_or_default())
    }

    /// Fetches all resources into memory at the same time; each is unpacked and verified.
    fn fetch(&mut self, wanted: &[(String, &Resource)]) -> Result<Vec<Vec<u8>>, ConfigProblems> {
        let answers = self.answers(wanted)?;
        self.all(wanted, answers)
    }

    /// All contents, or all reasons why there are none.
    fn all<T>(
        &self,
        wanted: &[(String, &Resource)],
        answers: Vec<Result<T, Refusal>>,
    ) -> Result<Vec<T>, ConfigProblems> {
        let (mut contents, mut lines) = (Vec::new(), Vec::new());
        for (answer, (path, _)) in answers.into_iter().zip(wanted) {
            match answer {
                Ok(content) => contents.push(content),
                Err(why) => lines.push(format!("{path}{}: {why}", why.field)),
            }
        }
        match lines.is_empty() {
            true => Ok(contents),
            false => Err(self.wrong(lines)),
        }
    }

    /// Fetches all resources into memory at the same time; each is unpacked and verified, or refused.
    fn answers(
        &mut self,
        wanted: &[(String, &Resource)],
    ) -> Result<Vec<Result<Vec<u8>, Refusal>>, ConfigProblems> {
        let here = wanted.iter().map(|(_, resource)| self.here(resource));
        let mut answers: Vec<Result<Option<Vec<u8>>, Refusal>> = here.collect();
        let remote: Vec<(usize, &Resource)> = (0..wanted.len())
            .filter(|i| matches!(answers[*i], Ok(None)))
            .map(|i| (i, wanted[i].1))
            .collect();
        // A config with a mistake of its own is not worth the downloads.
        if !remote.is_empty() && answers.iter().all(Result::is_ok) {
            self.remote = true;
            for (i, answer) in self.download(&remote)? {
                answers[i] = answer.map(Some);
            }
        }
        let contents = answers.into_iter().zip(wanted);
        let contents = contents.map(|(answer, (_, resource))| match answer? {
            Some(data) => verified(data, resource, &self.room),
            None => Ok(Vec::new()),
        });
        let mut contents: Vec<_> = contents.collect();
        // Nothing can be fetched again of what the config itself holds.
        for (i, content) in contents.iter_mut().enumerate() {
            if let Err(why) = content
                && remote.binary_search_by_key(&i, |(i, _)| *i).is_err()
            {
                why.of_memory = false;
            }
        }
        Ok(contents)
    }

    /// The content of a resource that needs no server; none for others.
    fn here(&self, resource: &Resource) -> Result<Option<Vec<u8>>, Refusal> {
        let url = resource.source.as_deref().unwrap_or_default();
        let scheme = source::split(url).map(|url| url.scheme);
        match scheme.as_deref() {
            Ok("data") => memory::decode(url, &self.room).map(Some),
            Ok("") if url.is_empty() => Ok(Some(Vec::new())),
            Ok(_) => Ok(None),
            Err(why) => Err(Refusal::source(why.to_string())),
        }
    }

    /// Brings the network up, if it is down.
    fn need_network(&self) -> Result<(), ConfigProblems> {
        (self.network)().map_err(|error| ConfigProblems {
            lines: vec![format!("{error:#}")],
            remote: true,
        })
    }

    fn download(
        &self,
        wanted: &[(usize, &Resource)],
    ) -> Result<Vec<download::Answer<Vec<u8>>>, ConfigProblems> {
        self.need_network()?;
        self.round()?.fetch(wanted).map_err(failed)
    }

    /// What downloads at the same time have in common.
    fn round(&self) -> Result<download::Round<'_>, ConfigProblems> {
        let client = self.transfer.client(self.settings).map_err(failed)?;
        Ok(download::Round {
            client,
            settings: self.settings,
            patience: self.transfer.patience,
            room: &self.room,
        })
    }
}

/// The sources of `storage.files`, each with its path in the config, in the order of [`Fetched::files`] and their parts.
fn file_resources(model: &model::Config) -> Vec<(String, &Resource)> {
    let storage = model.storage.as_ref();
    let files = storage.and_then(|storage| storage.files.as_deref());
    let mut wanted = Vec::new();
    for (i, file) in files.unwrap_or_default().iter().enumerate() {
        let path = format!("$.storage.files.{i}");
        if let Some(contents) = file.contents.as_ref().filter(has_source) {
            wanted.push((format!("{path}.contents"), contents));
        }
        for (j, append) in file.append.iter().flatten().filter(has_source).enumerate() {
            wanted.push((format!("{path}.append.{j}"), append));
        }
    }
    wanted
}

fn has_source(resource: &&Resource) -> bool {
    resource.source.is_some()
}

/// A failure of all downloads together, which another attempt may not meet.
fn failed(error: anyhow::Error) -> ConfigProblems {
    ConfigProblems {
        lines: vec![format!("{error:#}")],
        remote: true,
    }
}

/// What came for a resource, unpacked and verified.
fn verified(data: Vec<u8>, resource: &Resource, room: &Room) -> Result<Vec<u8>, Refusal> {
    let hash = sink::hash(resource).map_err(Refusal::content)?;
    let gzip = sink::is_gzip(resource);
    memory::within(room, data, gzip, |packed, limit| {
        open(packed, gzip, hash.as_ref(), limit)
    })
}
