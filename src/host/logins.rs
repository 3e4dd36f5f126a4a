//! Logins of private servers and registries: from the environment, from apt's files, from docker's and podman's.
//!
//! A login is used for requests alone: it is in no key, no lock, no message and nothing that a build writes.

// Floor: forms
mod auth_conf;
mod config_json;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fetch::{Login, Logins};

use super::sandbox::user_program;
use auth_conf::{Fit, Machine};
use config_json::{Config, Said};

/// The variable with logins in the form of apt's `auth.conf`.
pub const AUTH: &str = "SLIPWAY_AUTH";
/// The variable with the path of a file of that form.
pub const AUTH_FILE: &str = "SLIPWAY_AUTH_FILE";
/// The variable with the text of a `config.json`, as docker and CI systems know it.
const DOCKER_AUTH: &str = "DOCKER_AUTH_CONFIG";
/// The variables that decide where files are.
const VARIABLES: [&str; 8] = [
    AUTH,
    AUTH_FILE,
    DOCKER_AUTH,
    "DOCKER_CONFIG",
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "HOME",
];
/// The time that a credential helper has: some ask a person to unlock a keyring.
const HELPER: Duration = Duration::from_secs(60);

/// Where logins may be.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Variables of the environment.
    variables: BTreeMap<&'static str, String>,
    /// apt's folder.
    apt: PathBuf,
    /// The time that a credential helper has.
    helper: Duration,
}

/// Some of the variables are secrets.
impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&&str> = self.variables.keys().collect();
        f.debug_struct("Surroundings")
            .field("variables", &names)
            .field("apt", &self.apt)
            .finish_non_exhaustive()
    }
}

impl Surroundings {
    /// Those of this host.
    #[must_use]
    pub fn here() -> Self {
        let value = |name| Some((name, env::var(name).ok().filter(|value| !value.is_empty())?));
        Self {
            variables: VARIABLES.into_iter().filter_map(value).collect(),
            apt: PathBuf::from("/etc/apt"),
            helper: HELPER,
        }
    }

    /// Nothing but a text in apt's form in the environment, and apt's folder.
    #[cfg(test)]
    pub(crate) fn with_apt(text: &str, apt: &Path) -> Self {
        Self {
            variables: BTreeMap::from([(AUTH, text.to_owned())]),
            apt: apt.to_owned(),
            ..Self::default()
        }
    }

    /// Nothing but the `config.json` of a folder.
    #[cfg(test)]
    pub(crate) fn with_docker(folder: &Path) -> Self {
        let folder = folder.to_string_lossy().into_owned();
        Self {
            variables: BTreeMap::from([("DOCKER_CONFIG", folder)]),
            ..Self::default()
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A path below the folder that a variable names.
    fn below(&self, variable: &str, path: &str) -> Option<PathBuf> {
        Some(Path::new(self.value(variable)?).join(path))
    }

    /// The path that a variable names.
    fn path(&self, variable: &str) -> Option<PathBuf> {
        self.value(variable).map(PathBuf::from)
    }

    /// The folder of the user's configuration.
    fn config(&self) -> Option<PathBuf> {
        let given = self.path("XDG_CONFIG_HOME");
        given.or_else(|| self.below("HOME", ".config"))
    }
}

/// The logins that a host has. The files are read at the first question.
#[derive(Debug)]
pub struct HostLogins {
    surroundings: Surroundings,
    found: OnceLock<Found>,
    /// The answers of credential helpers, by helper and server.
    answers: Mutex<BTreeMap<(String, String), Answered>>,
}

/// What was read.
#[derive(Debug, Default)]
struct Found {
    machines: Vec<Machine>,
    configs: Vec<Config>,
    /// Why something that the user named cannot be read.
    wrong: Vec<String>,
    /// Why files at their usual places were not read.
    unread: Vec<String>,
}

impl HostLogins {
    /// The logins of these surroundings.
    #[must_use]
    pub fn of(surroundings: Surroundings) -> Self {
        Self {
            surroundings,
            found: OnceLock::new(),
            answers: Mutex::default(),
        }
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| Found::read(&self.surroundings))
    }

    fn readable(&self) -> Result<&Found, String> {
        let found = self.found();
        match found.wrong.as_slice() {
            [] => Ok(found),
            wrong => Err(wrong.join("; ")),
        }
    }

    /// The login that a credential helper knows. A helper for all registries that fails is as one that knows none: it may be that of
    /// another machine's configuration.
    fn ask(&self, config: &Config, name: &str, server: &str, is_own: bool) -> Answered {
        let key = (name.to_owned(), server.to_owned());
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answers
            .entry(key)
            .or_insert_with(|| helper(name, server, config.from(), self.surroundings.helper));
        match answer {
            Err(why) if !is_own => {
                tracing::warn!("{why}; going on without a login of {server}");
                Ok(None)
            }
            answer => answer.clone(),
        }
    }
}

type Answered = Result<Option<Login>, String>;

impl Logins for HostLogins {
    fn of_url(&self, url: &str) -> Answered {
        let machines = self.readable()?.machines.iter();
        let mut fitting = machines.filter(|machine| machine.fits(url) == Fit::Yes);
        Ok(fitting.next().map(|machine| machine.login().clone()))
    }

    fn of_repository(&self, registry: &str, repository: &str) -> Answered {
        for config in &self.readable()?.configs {
            let login = match config.about(registry, repository)? {
                None => None,
                Some(Said::Login(login)) => Some(login),
                Some(Said::Helper {
                    name,
                    server,
                    is_own,
                }) => self.ask(config, &name, &server, is_own)?,
            };
            if login.is_some() {
                return Ok(login);
            }
        }
        let https = self.of_url(&format!("https://{registry}/v2/{repository}"))?;
        match https {
            Some(login) => Ok(Some(login)),
            // A registry without TLS is on this machine.
            None => self.of_url(&format!("http://{registry}/v2/{repository}")),
        }
    }

    fn missing(&self, server: &str) -> String {
        let found = self.found();
        let plain = found.machines.iter().filter(|machine| {
            server.starts_with("http://") && machine.fits(&format!("{server}/")) == Fit::Plain
        });
        let plain = plain.map(|machine| {
            let from = &machine.login().from;
            format!("{from} has a login for https alone: write `machine {server}` there")
        });
        let notes = plain.chain(found.unread.iter().cloned());
        let said = format!(
            "no login of {server} is known: `machine {server} login USER password PASSWORD` in a file that {AUTH_FILE} names gives one, for a registry `docker login` too"
        );
        std::iter::once(said)
            .chain(notes)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// Asks a credential helper.
fn helper(name: &str, server: &str, config: &str, limit: Duration) -> Answered {
    let program = format!("docker-credential-{name}");
    let from = format!("{program}, which {config} names");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.chars().all(plain) {
        return Err(format!(
            "{config} names a credential helper {name:?}, which is not a program's name"
        ));
    }
    ask_program(&program, &from, server, limit)
}

/// Asks the program of a credential helper; `from` is what messages call it.
fn ask_program(program: &str, from: &str, server: &str, limit: Duration) -> Answered {
    let answer = user_program::ask(program, "get", server.as_bytes(), limit);
    let answer = answer.map_err(|error| format!("asking {from} about {server}: {error:#}"))?;
    if answer.status.success() {
        let login = config_json::answer(&answer.output, from)?;
        return Ok(Some(login));
    }
    let said = [&answer.output, &answer.error].map(|text| first_line(text));
    if said
        .iter()
        .any(|line| line.contains("credentials not found"))
    {
        return Ok(None);
    }
    let said = said.into_iter().find(|line| !line.is_empty());
    let said = said.unwrap_or_else(|| "it said nothing".to_owned());
    let status = answer.status;
    Err(format!("asking {from} about {server}: {status}: {said}"))
}

/// The first line of what a helper says about its failure; what looks like an answer is not shown.
fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next().unwrap_or_default().trim();
    match line.contains('{') {
        true => String::new(),
        false => line.chars().take(200).collect(),
    }
}

impl Found {
    fn read(surroundings: &Surroundings) -> Self {
        let mut found = Self::default();
        if let Some(text) = surroundings.value(AUTH) {
            let from = format!("the variable {AUTH}");
            found.machines.extend(auth_conf::read(text, &from));
        }
        let named = surroundings.path(AUTH_FILE);
        for (path, is_named) in auth_files(surroundings, named) {
            if let Some(text) = found.text(&path, is_named) {
                let from = path.display().to_string();
                found.machines.extend(auth_conf::read(&text, &from));
            }
        }
        if let Some(text) = surroundings.value(DOCKER_AUTH) {
            found.config(text, &format!("the variable {DOCKER_AUTH}"), true);
        }
        for (path, is_named) in configs(surroundings) {
            if let Some(text) = found.text(&path, is_named) {
                found.config(&text, &path.display().to_string(), is_named);
            }
        }
        found
    }

    /// The text of a file; none if it is not there, or cannot be read.
    fn text(&mut self, path: &Path, is_named: bool) -> Option<String> {
        match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => None,
            Err(error) => {
                self.not_read(format!("{}: {error}", path.display()), is_named);
                None
            }
        }
    }

    fn config(&mut self, text: &str, from: &str, is_named: bool) {
        match Config::read(text, from) {
            Ok(config) => self.configs.push(config),
            Err(why) => self.not_read(why, is_named),
        }
    }

    fn not_read(&mut self, why: String, is_named: bool) {
        match is_named {
            true => self.wrong.push(why),
            false => self.unread.push(why),
        }
    }
}

/// Files of apt's form, those that count first before the others, and whether the user named them.
fn auth_files(surroundings: &Surroundings, named: Option<PathBuf>) -> Vec<(PathBuf, bool)> {
    let own = surroundings.config();
    let own = own.map(|folder| (folder.join("slipway/auth.conf"), false));
    let mut all: Vec<(PathBuf, bool)> = named.map(|path| (path, true)).into_iter().collect();
    all.extend(own);
    all.push((surroundings.apt.join("auth.conf"), false));
    let parts = fs::read_dir(surroundings.apt.join("auth.conf.d"));
    let parts = parts.into_iter().flatten().flatten();
    let mut parts: Vec<PathBuf> = parts.map(|entry| entry.path()).collect();
    parts.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "conf")
    });
    parts.sort();
    all.extend(parts.into_iter().map(|path| (path, false)));
    all
}

/// Files of docker's form, as [`auth_files`]. With `REGISTRY_AUTH_FILE` podman reads no other file of its own.
fn configs(surroundings: &Surroundings) -> Vec<(PathBuf, bool)> {
    let mut all = Vec::new();
    match surroundings.path("REGISTRY_AUTH_FILE") {
        Some(named) => all.push((named, true)),
        None => {
            let run = surroundings.below("XDG_RUNTIME_DIR", "containers/auth.json");
            let own = surroundings.config();
            let own = own.map(|folder| folder.join("containers/auth.json"));
            all.extend(run.into_iter().chain(own).map(|path| (path, false)));
        }
    }
    let docker = surroundings.below("DOCKER_CONFIG", "config.json");
    let docker = docker.or_else(|| surroundings.below("HOME", ".docker/config.json"));
    // A folder that DOCKER_CONFIG names may be without the file, as for docker.
    all.extend(docker.map(|path| (path, false)));
    all
}

#[cfg(test)]
mod tests;
