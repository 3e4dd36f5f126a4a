//! Logins of registries in the form of docker's `config.json`, which is also that of `auth.json` of podman, skopeo and others.
//!
//! <https://docs.docker.com/reference/cli/docker/login/#credential-stores>, containers-auth.json(5)
//! <https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md>

use std::collections::BTreeMap;

use data_encoding::BASE64;
use fetch::{Login, docker_hub};
use serde::Deserialize;

/// The key of Docker's registry in such files.
const DOCKER: &str = "https://index.docker.io/v1/";

/// A file.
#[derive(Debug)]
pub(super) struct Config {
    /// Where it is, for messages.
    from: String,
    text: Text,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Text {
    auths: BTreeMap<String, Auth>,
    creds_store: String,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// Holds secrets.
impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Text").finish_non_exhaustive()
    }
}

/// What a file says about a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The login itself.
    Login(Login),
    /// The program `docker-credential-…` that knows it.
    Helper {
        /// The program's name after `docker-credential-`.
        name: String,
        /// What it is asked about.
        server: String,
        /// Whether the file names it for this registry, and not for all of them.
        is_own: bool,
    },
}

impl Config {
    /// Reads a text; `from` is where it is written.
    ///
    /// # Errors
    /// Why it cannot be read, without any of it: it holds passwords.
    pub(super) fn read(text: &str, from: &str) -> Result<Self, String> {
        let text = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!(
                "{from} is not of the form of docker's config.json (line {line}, column {column})"
            )
        })?;
        let from = from.to_owned();
        Ok(Self { from, text })
    }

    /// Where it is written.
    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// What it says about a repository of a registry: about the repository, the groups above it, then the registry.
    ///
    /// # Errors
    /// If the login is not of its form.
    pub(super) fn about(&self, registry: &str, repository: &str) -> Result<Option<Said>, String> {
        let registry = canonical(registry);
        for place in places(registry, repository) {
            let helper = self.text.cred_helpers.iter();
            let mut helper = helper.filter(|(key, _)| canonical(key) == place);
            if let Some((key, name)) = helper.find(|(_, name)| !name.is_empty()) {
                return Ok(Some(Said::Helper {
                    name: name.clone(),
                    server: key.clone(),
                    is_own: true,
                }));
            }
            let auths = self.text.auths.iter();
            for (_, auth) in auths.filter(|(key, _)| canonical(key) == place) {
                if let Some(login) = self.login(auth, &place)? {
                    return Ok(Some(Said::Login(login)));
                }
            }
        }
        let name = &self.text.creds_store;
        Ok((!name.is_empty()).then(|| Said::Helper {
            name: name.clone(),
            server: match registry {
                docker_hub::NAME => DOCKER.to_owned(),
                host => host.to_owned(),
            },
            is_own: false,
        }))
    }

    /// The login of an entry; none if a credential store has it.
    fn login(&self, auth: &Auth, place: &str) -> Result<Option<Login>, String> {
        let wrong = || {
            let from = &self.from;
            format!("{from}: the `auth` of {place} is not USER:PASSWORD in base64")
        };
        let (mut user, mut password) = (auth.username.clone(), auth.password.clone());
        if !auth.auth.is_empty() {
            let decoded = BASE64.decode(auth.auth.as_bytes()).map_err(|_| wrong())?;
            let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
            let (name, word) = decoded.split_once(':').ok_or_else(wrong)?;
            // docker pads it with zeros.
            (user, password) = (name.to_owned(), word.trim_end_matches('\0').to_owned());
        }
        let is_identity = !auth.identitytoken.is_empty();
        if is_identity {
            password.clone_from(&auth.identitytoken);
        }
        let is_there = !user.is_empty() || !password.is_empty();
        Ok(is_there.then(|| Login {
            user,
            password,
            is_identity,
            from: self.from.clone(),
        }))
    }
}

/// The repository, each group above it, and the registry.
fn places(registry: &str, repository: &str) -> Vec<String> {
    let whole = format!("{registry}/{repository}");
    let ends = whole.match_indices('/').map(|(at, _)| at);
    let mut all: Vec<String> = ends.map(|end| whole[..end].to_owned()).collect();
    all.push(whole);
    all.reverse();
    all
}

/// A key without scheme, without the path of an API, and with one name for Docker's registry.
fn canonical(key: &str) -> &str {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").unwrap_or(key);
    let key = key.strip_suffix("/v2").unwrap_or(key);
    match key {
        docker_hub::OLDER_NAME | docker_hub::HOST => docker_hub::NAME,
        key => key,
    }
}

/// The answer of a credential helper: `{"ServerURL":"…","Username":"…","Secret":"…"}`, as
/// <https://github.com/docker/docker-credential-helpers#development> documents it.
///
/// # Errors
/// If it is not of that form; the message has none of it.
pub(super) fn answer(text: &[u8], from: &str) -> Result<Login, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let answer: Answer = serde_json::from_slice(text)
        .map_err(|_| format!("{from} answered without Username and Secret"))?;
    Ok(Login {
        // This name stands for a token (docker-credential-helpers, `credentials/credentials.go`).
        is_identity: answer.username == "<token>",
        user: answer.username,
        password: answer.secret,
        from: from.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "auths": {
            "https://index.docker.io/v1/": {"auth": "am9lOmh1Yg=="},
            "r.example": {"auth": "am9lOmE6Yg=="},
            "r.example/group/app": {"username": "app", "password": "own"},
            "https://old.example:5000/v2/": {"auth": "am9lOnAAAA=="},
            "token.example": {"auth": "am9lOg==", "identitytoken": "t"},
            "stored.example": {},
            "bad.example": {"auth": "?"}
        },
        "credHelpers": {"ecr.example": "ecr-login"},
        "credsStore": "pass",
        "HttpHeaders": {"User-Agent": "x"}
    }"#;

    fn said(registry: &str, repository: &str) -> String {
        let config = Config::read(FILE, "/f").unwrap();
        match config.about(registry, repository).unwrap() {
            Some(Said::Login(login)) => {
                assert_eq!(login.from, "/f");
                let kind = if login.is_identity { "token " } else { "" };
                format!("{kind}{} {}", login.user, login.password)
            }
            Some(Said::Helper {
                name,
                server,
                is_own,
            }) => format!("{name} about {server} {is_own}"),
            None => String::new(),
        }
    }

    #[test]
    fn the_nearest_entry_counts() {
        for (registry, repository, expected) in [
            ("registry-1.docker.io", "library/x", "joe hub"),
            ("docker.io", "library/x", "joe hub"),
            ("r.example", "x", "joe a:b"),
            ("r.example", "group/app", "app own"),
            ("r.example", "group/app/deep", "app own"),
            ("r.example", "group/apple", "joe a:b"),
            ("old.example:5000", "x", "joe p"),
            ("token.example", "x", "token joe t"),
            ("ecr.example", "x", "ecr-login about ecr.example true"),
            ("stored.example", "x", "pass about stored.example false"),
            ("other.example", "x", "pass about other.example false"),
            // Another port is another server.
            ("r.example:5000", "x", "pass about r.example:5000 false"),
        ] {
            assert_eq!(
                said(registry, repository),
                expected,
                "{registry}/{repository}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_text() {
        let config = Config::read(FILE, "/f").unwrap();
        let why = config.about("bad.example", "x").unwrap_err();
        assert!(why.contains("/f: the `auth` of bad.example"), "{why}");
        assert!(!format!("{config:?}").contains("own"));
        let why = Config::read(r#"{"auths": "c2VjcmV0"}"#, "/f").unwrap_err();
        assert!(why.contains("/f") && !why.contains("c2Vj"), "{why}");
        let why = answer(br#"{"Username":"secret"}"#, "helper").unwrap_err();
        assert!(why.contains("helper") && !why.contains("secret"), "{why}");
    }

    #[test]
    fn a_helper_may_give_a_token() {
        let login = answer(
            br#"{"ServerURL":"r","Username":"<token>","Secret":"t"}"#,
            "h",
        );
        assert!(login.unwrap().is_identity);
        let login = answer(br#"{"Username":"joe","Secret":"p"}"#, "h").unwrap();
        assert_eq!((login.is_identity, login.password.as_str()), (false, "p"));
    }
}
