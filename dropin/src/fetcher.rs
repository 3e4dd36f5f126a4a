//! Configs of another system, in Ignition's place: fetched in one stage, applied in others, with nothing of the image's own
//! and nothing that the machine says of itself.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use fetch::Identity;
use ignition::{Config, model, source};
use serde_json::{Map, Value};

use crate::disks::refused;
use apply::config_source::ConfigSource;
use apply::fetched::{Fetched, VolumeKeys};
use apply::gather::{ConfigProblems, Gather, Settings};
use linux::certificates::ca_bundle;
use linux::world::World;

/// How a stage fetches.
#[derive(Debug)]
pub(crate) struct Fetcher {
    identity: Identity,
    /// Whether there is a network to fetch by.
    online: bool,
    /// Whether it was missed.
    missed: Cell<bool>,
    world: World,
}

/// What the fetch stages come to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The user's config, if there is one, with all that it refers to in it.
    Done(Option<Box<Config>>),
    /// Only the network has it.
    NeedsNetwork,
}

impl Fetcher {
    /// A fetcher on a machine of this kind.
    pub(crate) fn new(identity: Identity, online: bool) -> Self {
        Self {
            identity,
            online,
            missed: Cell::new(false),
            world: World::real(),
        }
    }

    /// The network, where it may be used; where not, it is noted that it was missed.
    pub(crate) fn network(&self) -> Result<()> {
        if self.online {
            return Ok(());
        }
        self.missed.set(true);
        bail!("this needs the network, which is not there yet")
    }

    fn settings(&self, total: Option<Duration>) -> Settings {
        let mut settings = Settings {
            ca_bundle: bundle(&self.world),
            on_wait: Arc::new(|text| tracing::warn!("{text}")),
            ..Settings::default()
        };
        settings.patience.total = total;
        settings
    }

    /// Reads the base, and the user's config with all that it refers to; both are checked together, and with them
    /// whether this version applies what they say.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn obtain(
        &self,
        base: &[ConfigSource],
        user: Option<&ConfigSource>,
        timeout: Duration,
    ) -> Result<Outcome> {
        let settings = self.settings((!timeout.is_zero()).then_some(timeout));
        let network = || self.network();
        let mut gather = Gather::new(&settings, &network, self.identity);
        let mut read = || {
            let base = of_base(&mut gather, base)?;
            let user = gather.one(user)?;
            let both = match &user {
                Some(user) => gather.merged(&base, user)?,
                None => base,
            };
            let model = both.model().map_err(one)?;
            let lines = model.storage.as_ref().map_or_else(Vec::new, refused);
            if !lines.is_empty() {
                return Err(ConfigProblems {
                    lines,
                    remote: false,
                });
            }
            Ok((user, both))
        };
        let (user, both) = match read() {
            Ok(read) => read,
            Err(_) if self.missed.get() => return Ok(Outcome::NeedsNetwork),
            Err(wrong) => bail!("{wrong}"),
        };
        for warning in &gather.warnings {
            tracing::warn!("{warning}");
        }
        if !self.online && needs_network(&both) {
            return Ok(Outcome::NeedsNetwork);
        }
        let user = user.map(|user| Box::new(user.with_authorities(&gather.authorities)));
        Ok(Outcome::Done(user))
    }

    /// The base under the config that an earlier stage has kept, and all files that they name.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn contents(
        &self,
        base: &[ConfigSource],
        kept: &Config,
        user_config: bool,
    ) -> Result<Fetched> {
        let settings = self.settings(None);
        let network = || self.network();
        let mut gather = Gather::new(&settings, &network, self.identity);
        let mut read = || {
            let base = of_base(&mut gather, base)?;
            let both = gather.merged(&base, kept)?;
            let model = both.model().map_err(one)?;
            gather.adopt(&model)?;
            gather.with_contents(both, user_config, false)
        };
        read().map_err(|wrong| anyhow::anyhow!("{wrong}"))
    }

    /// The storage of the base under the config that an earlier stage has kept, and what opens its encrypted volumes, in
    /// their order.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn storage(
        &self,
        base: &[ConfigSource],
        kept: &Config,
    ) -> Result<(model::Storage, Vec<VolumeKeys>)> {
        let settings = self.settings(None);
        let network = || self.network();
        let mut gather = Gather::new(&settings, &network, self.identity);
        let mut read = || {
            let base = of_base(&mut gather, base)?;
            let model = gather.merged(&base, kept)?.model().map_err(one)?;
            gather.adopt(&model)?;
            let keys = gather.keys(&model)?;
            Ok((model.storage.unwrap_or_default(), keys))
        };
        read().map_err(|wrong: ConfigProblems| anyhow::anyhow!("{wrong}"))
    }

    /// The base under the config that an earlier stage has kept.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn config(&self, base: &[ConfigSource], kept: &Config) -> Result<model::Config> {
        let settings = self.settings(None);
        let network = || self.network();
        let mut gather = Gather::new(&settings, &network, self.identity);
        let mut read = || {
            let base = of_base(&mut gather, base)?;
            gather.merged(&base, kept)?.model().map_err(one)
        };
        read().map_err(|wrong| anyhow::anyhow!("{wrong}"))
    }
}

fn one(line: String) -> ConfigProblems {
    ConfigProblems {
        lines: vec![line],
        remote: false,
    }
}

/// All fragments of the base, later ones over earlier ones.
fn of_base(gather: &mut Gather<'_>, fragments: &[ConfigSource]) -> Result<Config, ConfigProblems> {
    let mut base = Config::empty();
    for fragment in fragments {
        if let Some(fragment) = gather.one(Some(fragment))? {
            base = gather.merged(&base, &fragment)?;
        }
    }
    Ok(base)
}

/// The certificates that the environment names, else those of this system.
fn bundle(world: &World) -> Option<Vec<u8>> {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty());
    match named {
        Some(path) => std::fs::read(path).ok(),
        None => ca_bundle(world, &world.initrd),
    }
}

/// Whether anything that a config wants in its storage is only to be had by the network: sources, keys that are bound to a
/// tang server whose advertisement is not there, pins that say so of themselves.
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

    fn place(text: &str) -> ConfigSource {
        ConfigSource::Text(text.as_bytes().to_vec(), "test".to_owned())
    }

    fn file(source: &str) -> String {
        format!(
            r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{"files": [
                {{"path": "/a", "append": [{{"source": "{source}"}}]}}]}}}}"#
        )
    }

    fn obtain(fetcher: &Fetcher, text: &str) -> Result<Outcome> {
        fetcher.obtain(&[], Some(&place(text)), Duration::ZERO)
    }

    #[test]
    fn without_a_network_it_is_said_who_needs_it() {
        let offline = Fetcher::new(Identity::Anonymous, false);
        let merge = r#"{"ignition": {"version": "3.5.0", "config": {"merge": [{"source": "http://far.example/x"}]}}}"#;
        for text in [
            &file("http://far.example/x"),
            &file("tftp://far.example/x"),
            merge,
        ] {
            let outcome = obtain(&Fetcher::new(Identity::Anonymous, false), text).unwrap();
            assert!(matches!(outcome, Outcome::NeedsNetwork), "{text}");
        }
        let outcome = obtain(&offline, &file("data:,x")).unwrap();
        assert!(matches!(outcome, Outcome::Done(Some(_))));
        let none = offline.obtain(&[], None, Duration::ZERO).unwrap();
        assert!(matches!(none, Outcome::Done(None)));
        // What is wrong is wrong without a network too.
        let wrong = r#"{"ignition": {"version": "3.8.0"}}"#;
        assert!(obtain(&offline, wrong).is_err());
        // With one, what a file is made of is fetched only when it is written.
        let online = Fetcher::new(Identity::Anonymous, true);
        let outcome = obtain(&online, &file("http://127.0.0.1:1/x")).unwrap();
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
    fn what_cannot_be_made_is_refused_by_name_before_anything_is_done() {
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
                let error = obtain(&Fetcher::new(Identity::Anonymous, online), &text).unwrap_err();
                assert!(error.to_string().contains(why), "{error}");
            }
        }
        let stack = r#"{"ignition": {"version": "3.5.0"}, "storage": {
            "raid": [{"name": "r", "level": "raid1", "devices": ["/dev/a", "/dev/b"]}],
            "luks": [{"name": "a", "device": "/dev/md/r", "keyFile": {"source": "data:,k"}},
                {"name": "b", "device": "/dev/c"}]}}"#;
        // What a server will say of itself is not known yet.
        let tang = stack.replace(
            r#""device": "/dev/c""#,
            r#""device": "/dev/c", "clevis": {"tang": [{"url": "http://t.example", "thumbprint": "x"}]}"#,
        );
        let online = Fetcher::new(Identity::Anonymous, true);
        let kept = match obtain(&online, stack).unwrap() {
            Outcome::Done(Some(kept)) => kept,
            other => panic!("{other:?}"),
        };
        assert!(matches!(obtain(&online, &tang), Ok(Outcome::Done(Some(_)))));
        let (storage, keys) = online.storage(&[], &kept).unwrap();
        assert_eq!(storage.raid.map(|list| list.len()), Some(1));
        let files: Vec<Option<&[u8]>> = keys.iter().map(|keys| keys.file.as_deref()).collect();
        assert_eq!(files, [Some(&b"k"[..]), None]);
        // The stage that writes files asks nobody for keys.
        assert!(online.contents(&[], &kept, true).unwrap().keys.is_empty());
    }

    #[test]
    fn what_is_kept_holds_the_certificates_and_what_was_merged() {
        let inner = file("data:,inner");
        let inner: String = inner.bytes().map(|b| format!("%{b:02x}")).collect();
        let text = format!(
            r#"{{"ignition": {{"version": "3.5.0",
                "config": {{"merge": [{{"source": "data:,{inner}"}}]}},
                "security": {{"tls": {{"certificateAuthorities": [{{"source": "data:,PEM", "compression": ""}}]}}}}}}}}"#
        );
        let online = Fetcher::new(Identity::Anonymous, true);
        let base = [place(&file("data:,base").replace("/a", "/base"))];
        let kept = match online
            .obtain(&base, Some(&place(&text)), Duration::ZERO)
            .unwrap()
        {
            Outcome::Done(Some(kept)) => kept,
            other => panic!("{other:?}"),
        };
        let json = kept.to_json().to_string();
        // `PEM` and a line feed in base64.
        assert!(json.contains("data:;base64,UEVNCg=="), "{json}");
        assert!(
            !json.contains("/base"),
            "the base is read anew by each stage"
        );
        let (kept, _) = Config::read(json.as_bytes(), "cache").unwrap();
        let both = online.config(&base, &kept).unwrap();
        let paths: Vec<String> = both
            .storage
            .and_then(|storage| storage.files)
            .unwrap_or_default()
            .into_iter()
            .map(|file| file.path)
            .collect();
        assert_eq!(paths, ["/base", "/a"]);
        let fetched = online.contents(&base, &kept, true).unwrap();
        assert_eq!(fetched.files[1].append, [b"inner".to_vec()]);
    }
}
