//! The settings of the machine that builds: its cache, the remote cache, and how buckets are asked. They are no part of a recipe: where somebody
//! builds decides about no byte of an image, and a recipe of others must not say whose results are taken.
//!
//! The file is `$SLIPWAY_SETTINGS`, else `slipway/settings.toml` below `$XDG_CONFIG_HOME` or `~/.config`. Variables of the environment
//! win over it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fetch::{Credentials, Endpoints, Identity};
use serde::Deserialize;

use super::keys::{PublicKey, SecretKey};
use crate::host::cache::Limit;

/// The region of a server of S3's protocol that has none.
const REGION: &str = "us-east-1";

/// The settings.
#[derive(Debug, Default)]
pub struct Settings {
    /// The remote cache.
    pub remote: Option<Remote>,
    s3: S3,
    credentials: Option<Credentials>,
}

/// A remote cache that is used.
#[derive(Debug)]
pub struct Remote {
    /// Its store.
    pub url: String,
    /// Whose results are taken.
    pub trusted: Vec<PublicKey>,
    /// Signs the results of this machine; without it none is sent.
    pub secret: Option<SecretKey>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    #[serde(default)]
    cache: RawCache,
    #[serde(default)]
    remote_cache: RawRemote,
    #[serde(default)]
    s3: S3,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCache {
    size: Option<Limit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawRemote {
    url: Option<String>,
    #[serde(default)]
    keys: Vec<String>,
    signing_key: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct S3 {
    /// A server of S3's protocol in place of AWS, as a URL without a path.
    endpoint: Option<String>,
    region: Option<String>,
    /// Whether the role of the EC2 instance is asked for, where the environment has no credentials.
    #[serde(default)]
    instance_role: bool,
}

/// A variable of the environment, by its name.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Reads the settings; `remote` is the address of the remote cache in place of theirs, empty for none.
    ///
    /// # Errors
    /// If the file or a variable is wrong, or a remote cache has no key.
    pub fn read(remote: Option<&str>) -> Result<Self> {
        let variable = |name: &str| env::var(name).ok();
        let (text, path) = text(&variable)?;
        Self::of(&text, &path, remote, &variable)
    }

    fn of(text: &str, path: &Path, remote: Option<&str>, variable: Variable<'_>) -> Result<Self> {
        let raw = Raw::of(text, path)?;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut s3 = raw.s3;
        s3.endpoint = set("AWS_ENDPOINT_URL_S3")
            .or_else(|| set("AWS_ENDPOINT_URL"))
            .or(s3.endpoint);
        // Of AWS itself a bucket's region is asked for: it need not be the one that this machine is in.
        if s3.endpoint.is_some() {
            let named = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
            s3.region = named.or(s3.region).or_else(|| Some(REGION.to_owned()));
        }
        let pair = (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY"));
        let credentials = match pair {
            (Some(key), Some(secret)) => Some(Credentials {
                key,
                secret,
                token: set("AWS_SESSION_TOKEN"),
            }),
            _ => None,
        };
        Ok(Self {
            remote: of_remote(raw.remote_cache, path, remote, variable)?,
            s3,
            credentials,
        })
    }

    /// How clients are made that ask buckets.
    #[must_use]
    pub fn fetch_options(&self) -> fetch::Options {
        let endpoint = self.s3.endpoint.as_deref();
        fetch::Options {
            credentials: self.credentials.clone(),
            identity: match self.s3.instance_role {
                true => Identity::Ec2Role,
                false => Identity::Anonymous,
            },
            endpoints: Endpoints {
                s3: endpoint.map(|url| url.trim_end_matches('/').to_owned()),
                s3_region: self.s3.region.clone(),
                ..Endpoints::default()
            },
            ..fetch::Options::default()
        }
    }
}

impl Raw {
    fn of(text: &str, path: &Path) -> Result<Self> {
        toml::from_str(text).with_context(|| format!("reading the settings {}", path.display()))
    }
}

/// The size of the cache that the settings have, if they have one. Nothing else of them has to be right for it but their form.
///
/// # Errors
/// If the file is wrong, with line and column.
pub fn cache_size() -> Result<Option<Limit>> {
    let (text, path) = text(&|name| env::var(name).ok())?;
    Ok(Raw::of(&text, &path)?.cache.size)
}

/// The text of the settings, empty without any, and their path.
fn text(variable: Variable<'_>) -> Result<(String, PathBuf)> {
    let path = file(variable);
    // An empty variable names no file.
    let is_named = variable("SLIPWAY_SETTINGS").is_some_and(|value| !value.is_empty());
    let text = match &path {
        Some(path) if path.exists() || is_named => {
            let text = fs::read_to_string(path);
            text.with_context(|| format!("reading the settings {}", path.display()))?
        }
        _ => String::new(),
    };
    Ok((text, path.unwrap_or_default()))
}

/// The file of the settings; none for a user without a home.
fn file(variable: Variable<'_>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = set("SLIPWAY_SETTINGS") {
        return Some(path.into());
    }
    let folder = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
    Some(folder.join("slipway/settings.toml"))
}

fn of_remote(
    raw: RawRemote,
    path: &Path,
    given: Option<&str>,
    variable: Variable<'_>,
) -> Result<Option<Remote>> {
    // An empty word is one too: no remote cache, whatever the file says.
    let url = given
        .map(str::to_owned)
        .or_else(|| variable("SLIPWAY_REMOTE_CACHE"))
        .or(raw.url);
    let Some(url) = url.filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    let keys = match variable("SLIPWAY_REMOTE_CACHE_KEYS") {
        Some(words) => words
            .split([' ', ',', '\n'])
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        None => raw.keys,
    };
    let trusted = keys.iter().map(|word| word.parse());
    let mut trusted = trusted.collect::<Result<Vec<PublicKey>>>()?;
    let secret = match variable("SLIPWAY_REMOTE_CACHE_SIGNING_KEY") {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(PathBuf::from(path)),
        // Relative to the file that names it.
        None => raw.signing_key.map(|key| match path.parent() {
            Some(folder) => folder.join(key),
            None => key,
        }),
    };
    let secret = secret.map(|path| SecretKey::read(&path)).transpose()?;
    if let Some(secret) = &secret {
        trusted.push(secret.public()?);
    }
    ensure!(
        !trusted.is_empty(),
        "the remote cache {} has no key: name those whose results are taken by `keys` in [remote-cache] of {} or by \
         SLIPWAY_REMOTE_CACHE_KEYS; `slipway cache keygen` makes one",
        fetch::shown(&url),
        path.display()
    );
    Ok(Some(Remote {
        url,
        trusted,
        secret,
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn of(text: &str, remote: Option<&str>, set: &[(&str, &str)]) -> Result<Settings> {
        let set: BTreeMap<&str, &str> = set.iter().copied().collect();
        let variable = |name: &str| set.get(name).map(|value| (*value).to_owned());
        Settings::of(text, Path::new("/etc/settings.toml"), remote, &variable)
    }

    fn url(settings: Result<Settings>) -> Option<String> {
        settings.unwrap().remote.map(|remote| remote.url)
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        let key = format!(
            "ci:{}",
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, [7; 32])
        );
        let file = format!("[remote-cache]\nurl = 's3://file'\nkeys = ['{key}']");
        assert_eq!(url(of("", None, &[])), None);
        assert_eq!(url(of(&file, None, &[])).as_deref(), Some("s3://file"));
        let set = [("SLIPWAY_REMOTE_CACHE", "s3://set")];
        assert_eq!(url(of(&file, None, &set)).as_deref(), Some("s3://set"));
        let given = of(&file, Some("s3://given"), &set);
        assert_eq!(url(given).as_deref(), Some("s3://given"));
        for none in [
            of(&file, Some(""), &set),
            of(&file, None, &[("SLIPWAY_REMOTE_CACHE", "")]),
        ] {
            assert_eq!(url(none), None);
        }
        let keys = [("SLIPWAY_REMOTE_CACHE_KEYS", &*format!("{key}, {key}"))];
        let found = of("", Some("s3://given"), &keys).unwrap().remote.unwrap();
        assert_eq!(found.trusted.len(), 2);
    }

    #[test]
    fn a_file_that_a_variable_names_has_to_be_there_and_an_empty_variable_names_none() {
        let home = tempfile::tempdir().unwrap();
        let of_home = home.path().to_str().unwrap();
        let text_of = |settings: Option<&str>| {
            text(&|name| match name {
                "HOME" => Some(of_home.to_owned()),
                "SLIPWAY_SETTINGS" => settings.map(str::to_owned),
                _ => None,
            })
        };
        for settings in [None, Some("")] {
            let (text, path) = text_of(settings).unwrap();
            assert_eq!(text, "", "{settings:?}");
            assert!(path.ends_with(".config/slipway/settings.toml"));
        }
        let error = text_of(Some("/none.toml")).unwrap_err();
        assert!(format!("{error:#}").contains("/none.toml"), "{error:#}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let why =
            |text: &str, set: &[(&str, &str)]| format!("{:#}", of(text, None, set).unwrap_err());
        let wrong = why("[remote-cache]\nurll = 'x'", &[]);
        assert!(
            wrong.contains("/etc/settings.toml") && wrong.contains("line 2"),
            "{wrong}"
        );
        let none = why("[remote-cache]\nurl = 'https://me:secret@b/x'", &[]);
        assert!(
            none.contains("has no key") && !none.contains("secret"),
            "{none}"
        );
        let key = why("[remote-cache]\nurl = 's3://b'\nkeys = ['x']", &[]);
        assert!(key.contains("NAME:BASE64"), "{key}");
        let path = why(
            "",
            &[
                ("SLIPWAY_REMOTE_CACHE", "s3://b"),
                ("SLIPWAY_REMOTE_CACHE_SIGNING_KEY", "/none"),
            ],
        );
        assert!(path.contains("reading the signing key /none"), "{path}");
    }

    #[test]
    fn a_size_of_the_cache_is_read_and_refused_with_its_place() {
        let size = |text: &str| {
            let raw = Raw::of(text, Path::new("/etc/settings.toml"));
            raw.map(|raw| raw.cache.size)
                .map_err(|error| format!("{error:#}"))
        };
        assert_eq!(size(""), Ok(None));
        assert_eq!(size("[cache]"), Ok(None));
        assert_eq!(
            size("[cache]\nsize = '50 GiB'"),
            Ok(Some(Limit(Some(50 << 30))))
        );
        assert_eq!(size("[cache]\nsize = 'none'"), Ok(Some(Limit(None))));
        for (wrong, column, expected) in [
            (
                "size = 'large'",
                8,
                "\"large\" is not a size: expected a whole number",
            ),
            ("size = 20", 8, "invalid type: integer"),
            ("sizes = '20G'", 1, "expected `size`"),
        ] {
            let error = size(&format!("[cache]\n{wrong}")).unwrap_err();
            let place = format!("line 2, column {column}");
            for expected in ["/etc/settings.toml", &place, expected] {
                assert!(error.contains(expected), "{expected}: {error}");
            }
        }
    }

    #[test]
    fn buckets_of_other_servers_have_a_region_and_those_of_aws_are_asked_for_theirs() {
        let keys = [
            ("AWS_ACCESS_KEY_ID", "K"),
            ("AWS_SECRET_ACCESS_KEY", "S"),
            ("AWS_REGION", "eu-west-1"),
        ];
        let options = of("", None, &keys).unwrap().fetch_options();
        assert_eq!(options.endpoints, Endpoints::default());
        assert_eq!(options.credentials.unwrap().key, "K");
        let text = "[s3]\nendpoint = 'https://minio.example/'\ninstance-role = true";
        let options = of(text, None, &[]).unwrap().fetch_options();
        assert_eq!(options.identity, Identity::Ec2Role);
        let Endpoints { s3, s3_region, .. } = options.endpoints;
        assert_eq!(s3.as_deref(), Some("https://minio.example"));
        assert_eq!(s3_region.as_deref(), Some("us-east-1"));
    }
}
