//! One attempt: reads both configs, follows their chains of `replace` and `merge`, merges and checks everything, and
//! fetches and verifies all that it names. All mistakes are reported together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fetch::{Client, Endpoints, Identity, Links, Options, Pace, Patience, Proxy, Room};
use ignition::contents::{Hash, gunzip, open};
use ignition::model::{self, Resource};
use ignition::{Config, Report, source};
use linux::world::World;

use crate::config_source::ConfigSource;
use crate::fetched::{Contents, Fetched, Sources};

pub mod amount;
mod download;
mod keys;
mod memory;

/// The most that one source may hold, unpacked too.
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
    patience: Patience,
    /// Certificate authorities from configs, PEM.
    pub authorities: Vec<u8>,
    proxy: Option<Proxy>,
    identity: Identity,
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
            patience: settings.patience,
            authorities: Vec::new(),
            proxy: None,
            identity,
            room: Arc::new(Room::new(memory::half(&settings.world))),
            remote: false,
            warnings: Vec::new(),
        }
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
        self.adopt_transfer_settings(&model);
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
        self.adopt_transfer_settings(model);
        self.adopt_authorities(model)
    }

    fn adopt_transfer_settings(&mut self, model: &model::Config) {
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
            self.authorities.extend(bundle);
            self.authorities.push(b'\n');
        }
        Ok(())
    }

    fn files(&mut self, model: &model::Config) -> Result<Vec<Contents>, ConfigProblems> {
        let storage = model.storage.as_ref();
        let files = storage
            .and_then(|storage| storage.files.as_deref())
            .unwrap_or_default();
        let mut wanted = Vec::new();
        let has_source = |resource: &&Resource| resource.source.is_some();
        for (i, file) in files.iter().enumerate() {
            let path = format!("$.storage.files.{i}");
            if let Some(contents) = file.contents.as_ref().filter(has_source) {
                wanted.push((format!("{path}.contents"), contents));
            }
            for (j, append) in file.append.iter().flatten().filter(has_source).enumerate() {
                wanted.push((format!("{path}.append.{j}"), append));
            }
        }
        let mut fetched = self.fetch(&wanted)?.into_iter();
        let mut next = || fetched.next().unwrap_or_default();
        let contents = files.iter().map(|file| Contents {
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

    /// Fetches all resources at the same time; each is unpacked and verified.
    fn fetch(&mut self, wanted: &[(String, &Resource)]) -> Result<Vec<Vec<u8>>, ConfigProblems> {
        let mut lines = Vec::new();
        let mut out: Vec<Vec<u8>> = vec![Vec::new(); wanted.len()];
        let mut remote = Vec::new();
        for (i, (path, resource)) in wanted.iter().enumerate() {
            let url = resource.source.as_deref().unwrap_or_default();
            match source::split(url).map(|url| url.scheme).as_deref() {
                Ok("data") => match memory::decode(url, &self.room) {
                    Ok(data) => out[i] = data,
                    Err(why) => lines.push(format!("{path}.source: {why}")),
                },
                Ok("") if url.is_empty() => {}
                Ok(_) => remote.push((i, *resource)),
                Err(why) => lines.push(format!("{path}.source: {why}")),
            }
        }
        if !remote.is_empty() && lines.is_empty() {
            self.remote = true;
            for (i, result) in self.download(&remote)? {
                match result {
                    Ok(data) => out[i] = data,
                    Err(why) => lines.push(format!("{}.source: {why}", wanted[i].0)),
                }
            }
        }
        for (data, (path, resource)) in out.iter_mut().zip(wanted) {
            if let Err(why) = verify(data, resource, &self.room) {
                lines.push(format!("{path}: {why}"));
            }
        }
        match lines.is_empty() {
            true => Ok(out),
            false => Err(self.wrong(lines)),
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
        &mut self,
        wanted: &[(usize, &Resource)],
    ) -> Result<Vec<download::Answer>, ConfigProblems> {
        let failed = |error: anyhow::Error| ConfigProblems {
            lines: vec![format!("{error:#}")],
            remote: true,
        };
        self.need_network()?;
        let mut bundle = self.settings.ca_bundle.clone();
        if !self.authorities.is_empty() {
            bundle.get_or_insert_default().extend(&self.authorities);
        }
        let options = Options {
            ca_bundle: bundle,
            user_agent: concat!("Ignition/3.6.0 slipway/", env!("CARGO_PKG_VERSION")).to_owned(),
            proxy: self.proxy.clone(),
            identity: self.identity,
            endpoints: self.settings.endpoints.clone(),
            links: self.settings.links.clone(),
            ..Options::default()
        };
        let client = Client::new(&options).map_err(failed)?;
        let round = download::Round {
            client,
            settings: self.settings,
            patience: self.patience,
            room: &self.room,
        };
        round.fetch(wanted).map_err(failed)
    }
}

fn verify(data: &mut Vec<u8>, resource: &Resource, room: &Room) -> Result<(), String> {
    let hash = resource
        .verification
        .as_ref()
        .and_then(|verification| verification.hash.as_deref());
    let hash = hash.map(|hash| Hash::parse(hash, 7)).transpose()?;
    let gzip = resource.compression.as_deref() == Some("gzip");
    let packed = std::mem::take(data);
    *data = memory::within(room, packed, gzip, |packed, limit| {
        open(packed, gzip, hash.as_ref(), limit)
    })?;
    Ok(())
}
