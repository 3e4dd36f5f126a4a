//! The Go toolchain of the lock in the sandbox: resolves a module of ours and compiles its packages.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::release_module::MODULE;
use crate::host::cache::Key;
use crate::host::progress::Step;
use crate::host::sandbox::{Cmd, Sandbox};
use crate::host::session::Session;
use crate::install::tools::Tools;

/// Path of the work folder inside the sandbox.
const WORK: &str = "/work";
/// The compiled packages inside the sandbox.
const COMPILED: &str = "/compiled";
/// The folder of the modules in the cache.
const MODULES: &str = "modules";
/// Variables of the environment that select the source of modules, beside those of every step with a network.
const VARIABLES: &[&str] = &["GOINSECURE", "GONOPROXY", "GOPRIVATE", "GOVCS", "GOAUTH"];
/// Lines of Go's output that are part of an error.
const TAIL: usize = 12;

/// What Go compiles to one program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// The package, a path below our module (`./kubelet`) or the full one of another module's.
    pub(super) package: &'a str,
    /// Whether its tests are the program.
    pub(super) tests: bool,
}

/// What `go mod download -json` says of a module.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    go_mod: PathBuf,
    dir: PathBuf,
}

/// A Go toolchain with a private folder for sources and modules.
pub(super) struct Go {
    tools: Tools,
    program: String,
    scratch: crate::host::cache::Scratch,
    /// The compiled packages of this run.
    compiled: PathBuf,
    /// Whether nothing may be fetched.
    no_network: bool,
}

impl Go {
    pub(super) fn new(tools: Tools, session: &Session) -> Result<Self> {
        // Debian installs the versions side by side: /usr/lib/go-1.26.
        let mut found: Vec<(u32, String)> = fs::read_dir(tools.root.join("usr/lib"))?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let minor = name.strip_prefix("go-1.")?.parse().ok()?;
                Some((minor, format!("/usr/lib/{name}/bin/go")))
            })
            .collect();
        found.sort();
        let (_, program) = found
            .pop()
            .context("the tools tree has no Go toolchain at /usr/lib/go-1.*")?;
        let scratch = session.cache.scratch()?;
        for folder in ["source", "tmp"] {
            fs::create_dir(scratch.path().join(folder))?;
        }
        Ok(Self {
            tools,
            program,
            scratch,
            compiled: session.compiled()?,
            no_network: session.offline,
        })
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.scratch.path().join("source")
    }

    /// Hash of the compiler: of its packages. However they are unpacked, it compiles the same or does not run, so that no change
    /// of the installer compiles Kubernetes again.
    pub(super) const fn compiler(&self) -> &Key {
        &self.tools.packages
    }

    /// Writes the sources of our module, each a path below its folder and a text, and its modules.
    pub(super) fn write<'a>(
        &self,
        sources: impl IntoIterator<Item = (String, &'a str)>,
        go_mod: &str,
        go_sum: Option<&str>,
    ) -> Result<()> {
        let folder = self.folder();
        for (path, text) in sources {
            let file = folder.join(path);
            if let Some(package) = file.parent() {
                fs::create_dir_all(package)?;
            }
            fs::write(file, text)?;
        }
        fs::write(folder.join("go.mod"), go_mod)?;
        if let Some(go_sum) = go_sum {
            fs::write(folder.join("go.sum"), go_sum)?;
        }
        Ok(())
    }

    /// Resolves the modules of the written sources; writes `go.mod` and `go.sum` to `folder`.
    pub(super) fn resolve(&self, folder: &Path, step: &Step) -> Result<()> {
        step.note("resolving modules");
        self.online(&["mod", "tidy"])?;
        for name in ["go.mod", "go.sum"] {
            fs::copy(self.folder().join(name), folder.join(name))?;
        }
        Ok(())
    }

    /// Fetches the modules of a package and compiles it to the file `dest`.
    pub(super) fn compile(
        &self,
        target: Target<'_>,
        flags: &str,
        dest: &Path,
        step: &Step,
    ) -> Result<()> {
        let total = self.fetch(target, step)?;
        self.build(target, flags, dest, total, step)
    }

    /// Fetches the modules of a package; gives how many packages it consists of.
    pub(super) fn fetch(&self, target: Target<'_>, step: &Step) -> Result<usize> {
        step.note("fetching modules");
        let tests: &[&str] = if target.tests { &["-test"] } else { &[] };
        let list = ["list", "-mod=readonly", "-deps"]
            .iter()
            .chain(tests)
            .copied();
        let packages = self.online(&list.chain([target.package]).collect::<Vec<_>>())?;
        Ok(packages.lines().count())
    }

    /// The fetched modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.scratch.path().join(MODULES)
    }

    /// Compiles a package whose modules are fetched to the file `dest`.
    pub(super) fn build(
        &self,
        target: Target<'_>,
        flags: &str,
        dest: &Path,
        total: usize,
        step: &Step,
    ) -> Result<()> {
        // The vet of a test's sources takes minutes, and they are a published release's.
        let verb: &[&str] = if target.tests {
            &["test", "-c", "-vet=off"]
        } else {
            &["build"]
        };
        let build = self
            .offline()
            .args(verb)
            .args([
                "-v",
                "-mod=readonly",
                "-trimpath",
                "-buildvcs=false",
                // The linker would discard it: saves a tenth of the time.
                "-gcflags=all=-dwarf=false",
            ])
            .args(["-ldflags", flags, "-o", &format!("{WORK}/program")])
            .arg(target.package);
        watch(build, total, step)?;
        Ok(fs::rename(self.folder().join("program"), dest)?)
    }

    /// The folder of a module's sources, fetched; `module` is `NAME@VERSION`.
    pub(super) fn sources_of(&self, module: &str) -> Result<PathBuf> {
        let said = self.online(&["mod", "download", "-json", module])?;
        let downloaded: Downloaded =
            serde_json::from_str(&said).context("reading what `go mod download` says")?;
        self.on_host(&downloaded.dir)
    }

    fn sandbox(&self) -> Sandbox {
        self.tools
            .sandbox()
            .bind(&self.folder(), WORK)
            .bind(self.scratch.path(), "/cache")
            .bind(&self.compiled, COMPILED)
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", COMPILED)
            .env("GOENV", "off")
            // Garbage collection is a seventh of the compiler's work; with this much memory it can run less often.
            .env("GOGC", "400")
            .env("GOMEMLIMIT", "1536MiB")
            // Read-only folders would make the cache hard to remove.
            .env("GOFLAGS", "-modcacherw")
            .env("GOMODCACHE", format!("/cache/{MODULES}"))
            // The checksum database stores its tree here.
            .env("GOPATH", "/cache/go")
            .env("GOTELEMETRY", "off")
            .env("GOTMPDIR", "/cache/tmp")
            // Use the toolchain of the lock, whatever version a go.mod names.
            .env("GOTOOLCHAIN", "local")
    }

    /// Runs Go with the network and the environment's sources of modules; gives its output.
    pub(super) fn online(&self, arguments: &[&str]) -> Result<String> {
        ensure!(
            !self.no_network,
            "`go {}` fetches modules: {}",
            arguments.join(" "),
            fetch::OFFLINE
        );
        let mut sandbox = self.sandbox().network(true);
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name) {
                sandbox = sandbox.env(name, value);
            }
        }
        let output = sandbox
            .command(&self.program)
            .args(arguments)
            .cwd(WORK)
            .run()?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Runs Go without a network, on the fetched modules.
    fn offline(&self) -> Cmd {
        self.sandbox()
            .env("GOPROXY", "off")
            .command(&self.program)
            .cwd(WORK)
    }

    /// The release's `go.mod`.
    pub(super) fn module_file(&self, release: &str) -> Result<String> {
        fs::write(self.folder().join("go.mod"), "module slipway/kubelet\n")?;
        let module = format!("{MODULE}@{release}");
        let said = self.online(&["mod", "download", "-json", &module])?;
        let downloaded: Downloaded =
            serde_json::from_str(&said).context("reading what `go mod download` says")?;
        let path = self.on_host(&downloaded.go_mod)?;
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The path on the host of a path in the sandbox's cache.
    fn on_host(&self, path: &Path) -> Result<PathBuf> {
        let below = path.strip_prefix("/cache");
        let below = below.with_context(|| format!("finding {} of Go's cache", path.display()))?;
        Ok(self.scratch.path().join(below))
    }
}

/// Shows a build's progress by the packages that it names on stderr.
fn watch(build: Cmd, total: usize, step: &Step) -> Result<()> {
    let shown = build.to_string();
    let mut child: Child = build.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().context("reading what Go says")?;
    let mut said: Vec<String> = Vec::new();
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        step.note(&format!(
            "compiled {} of {total} packages: {line}",
            said.len() + 1
        ));
        said.push(line);
    }
    let status = child.wait()?;
    if !status.success() {
        let tail = said[said.len().saturating_sub(TAIL)..].join("\n  ");
        bail!("{shown}: {status}; its last lines:\n  {tail}");
    }
    Ok(())
}
