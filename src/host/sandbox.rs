//! The only way to start other programs: a command runs in namespaces with a tools tree or a root file system as its
//! root.
//!
//! Only bound paths of the host are visible inside. Mounts, processes, host name, System V IPC and, unless requested
//! otherwise, the network are separate; a separate network has the loopback interface and nothing else. The environment is fixed. The program is a child of a small init (process 1
//! of its process namespace), so that its death, or ours, ends all of its processes.

pub mod background;
mod busy;
#[cfg(test)]
pub(crate) mod c_program;
mod clock;
mod loopback;
mod namespace;
mod unsynced;
mod user;
pub mod user_program;

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

pub use clock::ANOTHER_DAY;
pub use namespace::DEVICE_LINKS;
pub use user::{become_root_of_namespace, forbidding_sysctl, without_subordinate_ids};

/// Lines of a failed program's error output that are part of our error.
const TAIL: usize = 25;
/// The search path of programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Path of the host's certificates for programs with network, and the variables that name it.
const CA_BUNDLE: &str = "/run/ca-certificates.crt";
/// Paths of certificates on hosts, in the order of the search.
const HOST_CA_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Variables of the host that programs with network inherit.
pub const PROXY_VARIABLES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "GOPROXY",
    "GONOSUMDB",
    "GOSUMDB",
    "GOFLAGS",
];

/// The way in which the tree becomes the root of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The tree is the root, writable.
    Write,
    /// A small RAM disk is the root; the tree's top-level folders are bound read-only in it.
    Read,
}

/// A bind of a host path.
#[derive(Clone, Debug)]
struct Bind {
    source: PathBuf,
    target: PathBuf,
    read_only: bool,
}

/// The environment of a program: a tree as its root, binds, and variables.
#[derive(Clone, Debug)]
pub struct Sandbox {
    root: PathBuf,
    access: Access,
    binds: Vec<Bind>,
    devices: Vec<PathBuf>,
    network: bool,
    syncs: bool,
    environment: BTreeMap<OsString, OsString>,
    hostname: String,
}

impl Sandbox {
    /// A sandbox with `root` as `/`, writable.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let environment = [
            ("PATH", PATH),
            ("HOME", "/root"),
            ("LC_ALL", "C.UTF-8"),
            ("TZ", "UTC"),
            ("SOURCE_DATE_EPOCH", "0"),
        ];
        Self {
            root: root.to_owned(),
            access: Access::Write,
            binds: Vec::new(),
            devices: Vec::new(),
            network: false,
            syncs: true,
            environment: environment
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            hostname: "slipway".into(),
        }
    }

    /// A sandbox with `root` as `/`, read-only. Binds may then go to any new path at the top level or below one.
    #[must_use]
    pub fn read_only(root: &Path) -> Self {
        Self {
            access: Access::Read,
            ..Self::new(root)
        }
    }

    /// Binds `source` of the host at `target` (absolute), writable.
    #[must_use]
    pub fn bind(self, source: &Path, target: impl AsRef<Path>) -> Self {
        self.bound(source, target.as_ref(), false)
    }

    /// Binds `source` of the host at `target` (absolute), read-only.
    #[must_use]
    pub fn bind_read_only(self, source: &Path, target: impl AsRef<Path>) -> Self {
        self.bound(source, target.as_ref(), true)
    }

    fn bound(mut self, source: &Path, target: &Path, read_only: bool) -> Self {
        self.binds.push(Bind {
            source: source.to_owned(),
            target: target.to_owned(),
            read_only,
        });
        self
    }

    /// Binds a device of the host, such as `/dev/kvm`, at the same path.
    #[must_use]
    pub fn device(mut self, path: impl AsRef<Path>) -> Self {
        self.devices.push(path.as_ref().to_owned());
        self
    }

    /// Gives the host's network, with its resolver, its certificates and its proxy variables.
    #[must_use]
    pub fn network(mut self, on: bool) -> Self {
        self.network = on;
        self
    }

    /// Lets what programs ask to be written to the disk stay in memory: for a tree that is of no use unless all of it is made, and
    /// that the caller syncs.
    #[must_use]
    pub fn without_syncs(mut self) -> Self {
        self.syncs = false;
        self
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Sets `SOURCE_DATE_EPOCH`, in seconds since 1970.
    #[must_use]
    pub fn epoch(self, epoch: u64) -> Self {
        self.env("SOURCE_DATE_EPOCH", epoch.to_string())
    }

    /// Sets the host name inside; the default is `slipway`.
    #[must_use]
    pub fn hostname(mut self, name: &str) -> Self {
        name.clone_into(&mut self.hostname);
        self
    }

    /// A command to run inside.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Cmd {
        Cmd {
            sandbox: self.clone(),
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            directory: PathBuf::from("/"),
            stdin: None,
            stdout: None,
            stderr: None,
        }
    }

    /// Adds the binds and variables that the network needs.
    fn with_network(&self) -> Self {
        let mut sandbox = self.clone();
        if let Ok(resolver) = fs::canonicalize("/etc/resolv.conf") {
            sandbox = sandbox.bind_read_only(&resolver, "/etc/resolv.conf");
        }
        let bundle = env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .into_iter()
            .chain(HOST_CA_BUNDLES.iter().map(PathBuf::from))
            .find_map(|path| fs::canonicalize(path).ok().filter(|path| path.is_file()));
        if let Some(bundle) = bundle {
            sandbox = sandbox
                .bind_read_only(&bundle, CA_BUNDLE)
                .env("SSL_CERT_FILE", CA_BUNDLE);
        }
        for name in PROXY_VARIABLES {
            if let Some(value) = env::var_os(name) {
                sandbox.environment.entry(name.into()).or_insert(value);
            }
        }
        sandbox
    }
}

/// One command in a [`Sandbox`].
#[derive(Debug)]
pub struct Cmd {
    sandbox: Sandbox,
    program: OsString,
    arguments: Vec<OsString>,
    directory: PathBuf,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
}

impl Cmd {
    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets the working folder, a path inside.
    #[must_use]
    pub fn cwd(mut self, directory: impl AsRef<Path>) -> Self {
        directory.as_ref().clone_into(&mut self.directory);
        self
    }

    /// Sets the program's standard input; the default is empty.
    #[must_use]
    pub fn stdin(mut self, from: impl Into<Stdio>) -> Self {
        self.stdin = Some(from.into());
        self
    }

    /// Sets the program's standard output. By default [`Cmd::run`] returns it and [`Cmd::spawn`] inherits ours.
    #[must_use]
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.stdout = Some(to.into());
        self
    }

    /// Sets the program's standard error. By default [`Cmd::run`] keeps its tail for the error.
    #[must_use]
    pub fn stderr(mut self, to: impl Into<Stdio>) -> Self {
        self.stderr = Some(to.into());
        self
    }

    /// Runs the command to its end and gives its output.
    ///
    /// # Errors
    /// If it cannot start or fails: the command in shell syntax, its exit status, and the tail of its error
    /// output.
    pub fn run(mut self) -> Result<Vec<u8>> {
        self.stdout.get_or_insert_with(Stdio::piped);
        self.stderr.get_or_insert_with(Stdio::piped);
        let shown = self.to_string();
        let output = self
            .spawn()?
            .wait_with_output()
            .with_context(|| format!("waiting for {shown}"))?;
        check(&shown, output.status, &output.stdout, &output.stderr)?;
        Ok(output.stdout)
    }

    /// Runs the command to its end while `write` writes its input; gives its output.
    ///
    /// # Errors
    /// The same as [`Cmd::run`], and the error of `write` unless the command failed, which is then the cause.
    pub fn feed(mut self, write: impl FnOnce(&mut ChildStdin) -> Result<()>) -> Result<Vec<u8>> {
        self.stdin = Some(Stdio::piped());
        self.stdout.get_or_insert_with(Stdio::piped);
        self.stderr.get_or_insert_with(Stdio::piped);
        let shown = self.to_string();
        let mut child = self.spawn()?;
        let written = match child.stdin.take() {
            Some(mut input) => write(&mut input),
            None => Ok(()),
        };
        let output = child
            .wait_with_output()
            .with_context(|| format!("waiting for {shown}"))?;
        check(&shown, output.status, &output.stdout, &output.stderr)?;
        written.with_context(|| format!("writing to {shown}"))?;
        Ok(output.stdout)
    }

    /// Starts the command. Killing the child ends all processes inside. The child also ends with the thread that
    /// started it.
    ///
    /// # Errors
    /// If a namespace, a mount or the program is refused; the error names the failed call.
    #[allow(clippy::disallowed_methods, reason = "this is the door")]
    pub fn spawn(self) -> Result<Child> {
        let shown = self.to_string();
        let sandbox = if self.sandbox.network {
            self.sandbox.with_network()
        } else {
            self.sandbox
        };
        let (report, reporter) = namespace::report_pipe()?;
        let plan = namespace::Plan::new(&sandbox, &self.directory, reporter)
            .with_context(|| format!("preparing {shown}"))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&sandbox.environment)
            .stdin(self.stdin.unwrap_or_else(Stdio::null))
            .stdout(self.stdout.unwrap_or_else(Stdio::inherit))
            .stderr(self.stderr.unwrap_or_else(Stdio::inherit));
        namespace::enter_before_exec(&mut command, plan);
        let spawned = busy::start_when_closed(|| command.spawn());
        // Our copy of the pipe's writing end is in the command's closure.
        drop(command);
        spawned
            .map_err(|error| match namespace::read_report(report) {
                Some(text) => anyhow::anyhow!("{text}"),
                None => anyhow::Error::new(error),
            })
            .with_context(|| format!("starting {shown}"))
    }
}

impl std::fmt::Display for Cmd {
    /// The command in shell syntax.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quote(&self.program))?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {}", quote(argument)))
    }
}

/// Quotes an argument for a shell.
fn quote(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Turns a failure into an error with the command and the tail of its error output.
fn check(shown: &str, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let said = if stderr.is_empty() { stdout } else { stderr };
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
    if tail.is_empty() {
        bail!("{shown}: {status}, without output");
    }
    bail!("{shown}: {status}; its last lines:\n  {tail}");
}

#[cfg(test)]
mod tests;
