//! Fetches configs and the resources that they refer to. The fetch stages write the user's config to the cache; the
//! others read it there and merge it over the base configs again.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use fetch::Identity;
use ignition::{Config, model, source};
use serde_json::{Map, Value};

use crate::disks::unsupported;
use apply::config_source::ConfigSource;
use apply::fetched::{Fetched, VolumeKeys};
use apply::gather::{ConfigProblems, Gather, Settings};
use linux::certificates::ca_bundle;
use linux::world::World;

/// Fetches for one stage.
#[derive(Debug)]
pub(crate) struct Fetcher {
    identity: Identity,
    /// Whether the network is up.
    online: bool,
    /// Whether a source needed the network while it was not up.
    missed: Cell<bool>,
    world: World,
}

/// The result of a fetch stage.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The user's config, if it exists, with the configs that it refers to merged into it.
    Done(Option<Box<Config>>),
    /// The config, or a source that it names, needs the network, which is not up.
    NeedsNetwork,
}

impl Fetcher {
    /// A fetcher with the credentials of `identity` for the clouds' storage; `online`: whether the network is up.
    pub(crate) fn new(identity: Identity, online: bool) -> Self {
        Self {
            identity,
            online,
            missed: Cell::new(false),
            world: World::real(),
        }
    }

    /// Fails while the network is not up, and records that a source needed it.
    fn network(&self) -> Result<()> {
        if self.online {
            return Ok(());
        }
        self.missed.set(true);
        bail!("the network is not up in the stage fetch-offline")
    }

    fn settings(&self, total: Option<Duration>) -> Settings {
        let mut settings = Settings {
            ca_bundle: bundle(&self.world),
            on_wait: Arc::new(|text| tracing::warn!("{text}")),
            on_progress: Arc::new(|text| tracing::info!("waiting for {text}")),
            ..Settings::default()
        };
        // As Ignition: no limit but the config's and the stage's.
        settings.patience.total = total;
        settings.patience.without_bytes = None;
        settings.patience.slowest = None;
        settings
    }

    /// Fetches within `total`, if that is given.
    fn gather<T>(
        &self,
        total: Option<Duration>,
        work: impl FnOnce(&mut Gather<'_>) -> Result<T, ConfigProblems>,
    ) -> Result<T, ConfigProblems> {
        let settings = self.settings(total);
        let network = || self.network();
        work(&mut Gather::new(&settings, &network, self.identity))
    }

    /// Fetches the base configs, and the user's config with all configs that it refers to. Both are validated together,
    /// and everything in them must be supported. A `timeout` of zero is none.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn fetch(
        &self,
        base: &[ConfigSource],
        user: Option<&ConfigSource>,
        timeout: Duration,
    ) -> Result<Outcome> {
        let total = (!timeout.is_zero()).then_some(timeout);
        let read = self.gather(total, |gather| {
            let base = base_config(gather, base)?;
            let user = gather.one(user)?;
            let both = match &user {
                Some(user) => gather.merged(&base, user)?,
                None => base,
            };
            check_supported(&both)?;
            for warning in &gather.warnings {
                tracing::warn!("{warning}");
            }
            // The cached config carries the certificates: later stages need not fetch them again.
            let user = user.map(|user| Box::new(user.with_authorities(gather.authorities())));
            Ok((user, both))
        });
        let (user, both) = match read {
            Ok(read) => read,
            Err(_) if self.missed.get() => return Ok(Outcome::NeedsNetwork),
            Err(problems) => bail!("{problems}"),
        };
        if !self.online && needs_network(&both) {
            return Ok(Outcome::NeedsNetwork);
        }
        Ok(Outcome::Done(user))
    }

    /// The cached config over the base configs, with the contents of all files. `user_config`: whether a user's config
    /// existed when the cache was written.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn with_contents(
        &self,
        base: &[ConfigSource],
        cached: &Config,
        user_config: bool,
    ) -> Result<Fetched> {
        let read = self.gather(None, |gather| {
            let (both, model) = merged(gather, base, cached)?;
            gather.adopt(&model)?;
            gather.with_contents(both, user_config, false)
        });
        read.map_err(|problems| anyhow!("{problems}"))
    }

    /// The storage of the cached config over the base configs, and the keys of its encrypted volumes, in their order.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn with_keys(
        &self,
        base: &[ConfigSource],
        cached: &Config,
    ) -> Result<(model::Storage, Vec<VolumeKeys>)> {
        let read = self.gather(None, |gather| {
            let (_, model) = merged(gather, base, cached)?;
            gather.adopt(&model)?;
            let keys = gather.keys(&model)?;
            Ok((model.storage.unwrap_or_default(), keys))
        });
        read.map_err(|problems| anyhow!("{problems}"))
    }

    /// The cached config over the base configs.
    ///
    /// # Errors
    /// All mistakes at once.
    pub(crate) fn config(&self, base: &[ConfigSource], cached: &Config) -> Result<model::Config> {
        let read = self.gather(None, |gather| merged(gather, base, cached));
        let (_, model) = read.map_err(|problems| anyhow!("{problems}"))?;
        Ok(model)
    }
}

/// A config over the base configs, merged and typed.
fn merged(
    gather: &mut Gather<'_>,
    base: &[ConfigSource],
    config: &Config,
) -> Result<(Config, model::Config), ConfigProblems> {
    let base = base_config(gather, base)?;
    let both = gather.merged(&base, config)?;
    let model = both.model().map_err(problem)?;
    Ok((both, model))
}

/// All base configs, later ones over earlier ones.
fn base_config(
    gather: &mut Gather<'_>,
    fragments: &[ConfigSource],
) -> Result<Config, ConfigProblems> {
    let mut base = Config::empty();
    for fragment in fragments {
        if let Some(fragment) = gather.one(Some(fragment))? {
            base = gather.merged(&base, &fragment)?;
        }
    }
    Ok(base)
}

/// Refuses arrays and volumes that are unsupported whatever the devices hold.
fn check_supported(config: &Config) -> Result<(), ConfigProblems> {
    let model = config.model().map_err(problem)?;
    let lines = model.storage.as_ref().map_or_else(Vec::new, unsupported);
    match lines.is_empty() {
        true => Ok(()),
        false => Err(ConfigProblems {
            lines,
            remote: false,
        }),
    }
}

fn problem(line: String) -> ConfigProblems {
    ConfigProblems {
        lines: vec![line],
        remote: false,
    }
}

/// The certificates in `SSL_CERT_FILE`, else those of this system.
fn bundle(world: &World) -> Option<Vec<u8>> {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty());
    match named {
        Some(path) => std::fs::read(path).ok(),
        None => ca_bundle(world, &world.initrd),
    }
}

/// Whether the storage of a config needs the network: a source other than `data:`, a tang server whose advertisement the
/// config does not hold, or a custom pin with `needsNetwork`.
fn needs_network(config: &Config) -> bool {
    config.to_json().get("storage").is_some_and(is_remote)
}

fn is_remote(value: &Value) -> bool {
    let text = |fields: &Map<String, Value>, name: &str| {
        let text = fields.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    match value {
        Value::Array(items) => items.iter().any(is_remote),
        Value::Object(fields) => {
            let url = text(fields, "source");
            let scheme = source::split(&url).map(|url| url.scheme);
            let tang =
                fields.contains_key("thumbprint") && text(fields, "advertisement").is_empty();
            (!url.is_empty() && scheme.as_deref() != Ok("data"))
                || tang
                || fields.get("needsNetwork") == Some(&Value::Bool(true))
                || fields.values().any(is_remote)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apply::fetched::Content;

    fn source(text: &str) -> ConfigSource {
        ConfigSource::Text(text.as_bytes().to_vec(), "test".to_owned())
    }

    fn file(source: &str) -> String {
        format!(
            r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{"files": [
                {{"path": "/a", "append": [{{"source": "{source}"}}]}}]}}}}"#
        )
    }

    fn fetch(fetcher: &Fetcher, text: &str) -> Result<Outcome> {
        fetcher.fetch(&[], Some(&source(text)), Duration::ZERO)
    }

    #[test]
    fn sources_that_need_the_network_are_reported_without_one() {
        let offline = Fetcher::new(Identity::Anonymous, false);
        let merge = r#"{"ignition": {"version": "3.5.0", "config": {"merge": [{"source": "http://far.example/x"}]}}}"#;
        for text in [
            &file("http://far.example/x"),
            &file("tftp://far.example/x"),
            merge,
        ] {
            let outcome = fetch(&Fetcher::new(Identity::Anonymous, false), text).unwrap();
            assert!(matches!(outcome, Outcome::NeedsNetwork), "{text}");
        }
        let outcome = fetch(&offline, &file("data:,x")).unwrap();
        assert!(matches!(outcome, Outcome::Done(Some(_))));
        let none = offline.fetch(&[], None, Duration::ZERO).unwrap();
        assert!(matches!(none, Outcome::Done(None)));
        // A mistake is reported even without a network.
        let wrong = r#"{"ignition": {"version": "3.8.0"}}"#;
        assert!(fetch(&offline, wrong).is_err());
        // With a network, only the files stage fetches the contents of a file.
        let online = Fetcher::new(Identity::Anonymous, true);
        let outcome = fetch(&online, &file("http://127.0.0.1:1/x")).unwrap();
        assert!(matches!(outcome, Outcome::Done(Some(_))));
    }

    #[test]
    fn keys_may_need_the_network_too() {
        let luks = |entry: &str| {
            let text = format!(
                r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{"luks": [{{"name": "a", "device": "/dev/a", {entry}}}]}}}}"#
            );
            needs_network(&Config::parse(text.as_bytes(), "test").unwrap().0)
        };
        let tang = |more: &str| {
            let server = format!(r#"{{"url": "http://t.example", "thumbprint": "x"{more}}}"#);
            luks(&format!(r#""clevis": {{"tang": [{server}]}}"#))
        };
        assert!(luks(r#""keyFile": {"source": "http://k.example/k"}"#));
        assert!(!luks(r#""keyFile": {"source": "data:,k"}"#));
        assert!(tang(""));
        assert!(!tang(r#", "advertisement": "{\"payload\": \"x\"}""#));
        assert!(luks(
            r#""clevis": {"custom": {"pin": "tpm2", "config": "{}", "needsNetwork": true}}"#
        ));
        assert!(!luks(r#""clevis": {"tpm2": true}"#));
    }

    #[test]
    fn unsupported_arrays_and_volumes_are_refused_by_name() {
        for (storage, why) in [
            (
                r#""luks": [{"name": "a", "device": "/dev/a", "cex": {"enabled": true}}]"#,
                "$.storage.luks.0: cex",
            ),
            (
                r#""luks": [{"name": "a b", "device": "/dev/a"}]"#,
                "$.storage.luks.0: name",
            ),
            (
                r#""luks": [{"name": "a", "device": "/dev/a", "clevis": {"tpm2": true, "threshold": 2}}]"#,
                "$.storage.luks.0: clevis.threshold",
            ),
            (
                r#""raid": [{"name": "r", "level": "raid6", "devices": ["/dev/a", "/dev/b"]}]"#,
                "$.storage.raid.0: ",
            ),
        ] {
            let text =
                format!(r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{{storage}}}}}"#);
            for online in [false, true] {
                let error = fetch(&Fetcher::new(Identity::Anonymous, online), &text).unwrap_err();
                assert!(error.to_string().contains(why), "{error}");
            }
        }
        let stack = r#"{"ignition": {"version": "3.5.0"}, "storage": {
            "raid": [{"name": "r", "level": "raid1", "devices": ["/dev/a", "/dev/b"]}],
            "luks": [{"name": "a", "device": "/dev/md/r", "keyFile": {"source": "data:,k"}},
                {"name": "b", "device": "/dev/c"}]}}"#;
        // The advertisement of a tang server is not known yet.
        let tang = stack.replace(
            r#""device": "/dev/c""#,
            r#""device": "/dev/c", "clevis": {"tang": [{"url": "http://t.example", "thumbprint": "x"}]}"#,
        );
        let online = Fetcher::new(Identity::Anonymous, true);
        let cached = match fetch(&online, stack).unwrap() {
            Outcome::Done(Some(cached)) => cached,
            other => panic!("{other:?}"),
        };
        assert!(matches!(fetch(&online, &tang), Ok(Outcome::Done(Some(_)))));
        let (storage, keys) = online.with_keys(&[], &cached).unwrap();
        assert_eq!(storage.raid.map(|list| list.len()), Some(1));
        let files: Vec<Option<&[u8]>> = keys.iter().map(|keys| keys.file.as_deref()).collect();
        assert_eq!(files, [Some(&b"k"[..]), None]);
        // The files stage fetches no keys.
        assert!(
            online
                .with_contents(&[], &cached, true)
                .unwrap()
                .keys
                .is_empty()
        );
    }

    #[test]
    fn the_cached_config_holds_certificates_and_merged_configs() {
        let inner = file("data:,inner");
        let inner: String = inner.bytes().map(|b| format!("%{b:02x}")).collect();
        let text = format!(
            r#"{{"ignition": {{"version": "3.5.0",
                "config": {{"merge": [{{"source": "data:,{inner}"}}]}},
                "security": {{"tls": {{"certificateAuthorities": [{{"source": "data:,PEM", "compression": ""}}]}}}}}}}}"#
        );
        let online = Fetcher::new(Identity::Anonymous, true);
        let base = [source(&file("data:,base").replace("/a", "/base"))];
        let cached = match online
            .fetch(&base, Some(&source(&text)), Duration::ZERO)
            .unwrap()
        {
            Outcome::Done(Some(cached)) => cached,
            other => panic!("{other:?}"),
        };
        let json = cached.to_json().to_string();
        // `PEM` and a line feed in base64.
        assert!(json.contains("data:;base64,UEVNCg=="), "{json}");
        assert!(
            !json.contains("/base"),
            "each stage reads the base configs again"
        );
        let (cached, _) = Config::read(json.as_bytes(), "cache").unwrap();
        let both = online.config(&base, &cached).unwrap();
        let paths: Vec<String> = both
            .storage
            .and_then(|storage| storage.files)
            .unwrap_or_default()
            .into_iter()
            .map(|file| file.path)
            .collect();
        assert_eq!(paths, ["/base", "/a"]);
        let fetched = online.with_contents(&base, &cached, true).unwrap();
        assert_eq!(
            fetched.files[1].append,
            [Content::Memory(b"inner".to_vec())]
        );
    }
}
