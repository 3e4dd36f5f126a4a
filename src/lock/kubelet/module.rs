//! The kubelet, the other components and CoreDNS, compiled from their Go modules, for machines without access to a release
//! server, and CoreDNS for all.
//!
//! `go install k8s.io/kubernetes/cmd/kubelet@…` cannot work: that module replaces its staging modules by local folders,
//! and Go ignores replacements in a dependency. So a module of ours requires it, with each staging module
//! `k8s.io/NAME` replaced by its published version `v0.Y.Z`; the names come from the release's `go.mod`.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::coredns;
use super::program::{Pinned, ask_version, go, keep};
use super::version;
use crate::host::cache::{Cache, Key};
use crate::host::progress::Step;
use crate::host::sandbox::{Cmd, Sandbox};
use crate::host::session::Session;
use crate::install::tools::Tools;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::recipe::KubeletRequest;

/// The module.
const MODULE: &str = "k8s.io/kubernetes";
/// Path of the work folder inside the sandbox.
const WORK: &str = "/work";
/// Path of the caches inside the sandbox.
const CACHE: &str = "/cache";
/// The folder of the modules below it.
const MODULES: &str = "modules";
/// Variables of the environment that select the source of modules, beside those of every step with a network.
const VARIABLES: &[&str] = &["GOINSECURE", "GONOPROXY", "GOPRIVATE", "GOVCS", "GOAUTH"];
/// Lines of Go's output that are part of an error.
const TAIL: usize = 12;

/// What is compiled, a package of our module each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The kubelet alone: it starts faster and in less memory than a program that is more.
    Kubelet,
    /// All other components and CoreDNS in one program, which acts as the one by whose name it is called: they share most of
    /// their code.
    Components,
    /// CoreDNS alone, where the others are not compiled.
    CoreDns,
}

impl Content {
    const ALL: [Self; 3] = [Self::Kubelet, Self::Components, Self::CoreDns];

    /// The name of the package's folder and of the program.
    const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Components => "components",
            Self::CoreDns => coredns::NAME,
        }
    }

    /// The sources of the program: (file name, text).
    const fn sources(self) -> &'static [(&'static str, &'static str)] {
        const COREDNS: (&str, &str) = ("coredns.go", include_str!("module/coredns.go"));
        match self {
            Self::Kubelet => &[("main.go", include_str!("module/kubelet.go"))],
            Self::Components => &[("main.go", include_str!("module/components.go")), COREDNS],
            Self::CoreDns => &[("main.go", include_str!("module/coredns_main.go")), COREDNS],
        }
    }
}

/// The modules that a program is compiled from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modules<'a> {
    /// `go.mod` of our module.
    pub(super) go_mod: &'a str,
    /// `go.sum`: the hash of every module.
    pub(super) go_sum: &'a str,
}

pub(super) fn pin(
    request: &KubeletRequest,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<Pinned> {
    let go = Go::new(go(session, locked)?, &session.cache)?;
    let release = format!("v{}", request.version);
    let (go_mod, go_sum) = resolve(&go, &release, &session.cache, step)?;
    let modules = Modules {
        go_mod: &go_mod,
        go_sum: &go_sum,
    };
    let (kubelet, hit) = pin_one(&go, Content::Kubelet, &release, modules, session, step)?;
    let found = ask_version(&session.cache, &session.cache.object(&kubelet.sha256))?;
    ensure!(
        found == release,
        "the compiled kubelet reports version {found}, expected {release}"
    );
    let mut pinned = Pinned::kubelet(kubelet, hit);
    if !request.components.is_empty() {
        let (program, hit) = pin_one(&go, Content::Components, &release, modules, session, step)?;
        pinned.hit &= hit;
        for name in &request.components {
            let program = LockedProgram {
                version: version_of(name, &release, modules)?,
                ..program.clone()
            };
            pinned.components.insert(name.clone(), program);
        }
    }
    Ok(pinned)
}

/// Adds CoreDNS to programs of a release that came from elsewhere.
pub(super) fn add_coredns(
    pinned: &mut Pinned,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    let go = Go::new(go(session, locked)?, &session.cache)?;
    let release = &pinned.kubelet.version;
    let (go_mod, go_sum) = resolve(&go, release, &session.cache, step)?;
    let modules = Modules {
        go_mod: &go_mod,
        go_sum: &go_sum,
    };
    let (program, hit) = pin_one(&go, Content::CoreDns, release, modules, session, step)?;
    pinned.hit &= hit;
    let version = version_of(coredns::NAME, release, modules)?;
    let program = LockedProgram { version, ..program };
    pinned.components.insert(coredns::NAME.to_owned(), program);
    Ok(())
}

/// The version of a compiled program: the release, or CoreDNS's own.
fn version_of(name: &str, release: &str, modules: Modules<'_>) -> Result<String> {
    let version = match name {
        coredns::NAME => coredns::version_in(modules.go_mod),
        _ => Some(release),
    };
    version
        .map(str::to_owned)
        .context("the modules have no CoreDNS")
}

/// Compiles a program for a lock; tells whether it came from the cache.
fn pin_one(
    go: &Go,
    content: Content,
    release: &str,
    modules: Modules<'_>,
    session: &Session,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let (program, hit) = compile(go, content, release, modules, &session.cache, step)?;
    let (sha256, size) = keep(&session.cache, &program)?;
    let source = match content {
        Content::Kubelet | Content::CoreDns => LockedFrom::GoModule {
            go_mod: modules.go_mod.to_owned(),
            go_sum: modules.go_sum.to_owned(),
        },
        Content::Components => LockedFrom::KubeletModule,
    };
    let program = LockedProgram {
        version: release.to_owned(),
        sha256,
        size,
        source,
    };
    Ok((program, hit))
}

/// `go.mod` and `go.sum` of our module, for all programs: a kubelet is the same with and without the components, and
/// compiled once. A published release never changes, so they are made once.
fn resolve(go: &Go, release: &str, cache: &Cache, step: &Step) -> Result<(String, String)> {
    let coredns = coredns::version_for(release);
    let mut key = Key::of("kubelet modules", 3)
        .key("go", &go.tools.key)
        .text("release", release)
        .text("coredns", coredns.unwrap_or_default());
    for (name, text) in Content::ALL.iter().flat_map(|content| content.sources()) {
        key = key.text(name, text);
    }
    let key = key.finish();
    let made = cache.step("kubelet-modules", &key, |folder| {
        let ours = go_mod(&go.module_file(release)?, release, coredns)?;
        go.write(&ours, None)?;
        step.note("resolving modules");
        go.online(&["mod", "tidy"])?;
        for name in ["go.mod", "go.sum"] {
            fs::copy(go.folder().join(name), folder.join(name))?;
        }
        Ok(())
    })?;
    let read = |name: &str| fs::read_to_string(made.path.join(name));
    Ok((read("go.mod")?, read("go.sum")?))
}

/// Compiles a locked program of a release again and compares the digests.
pub(super) fn fetch(
    content: Content,
    modules: Modules<'_>,
    release: &str,
    program: &LockedProgram,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    knows_coredns(content, modules)?;
    let go = Go::new(go(session, locked)?, &session.cache)?;
    let (file, _) = compile(&go, content, release, modules, &session.cache, step)?;
    let (sha256, _) = keep(&session.cache, &file)?;
    ensure!(
        sha256 == program.sha256,
        "the compiled program has SHA-256 {sha256}, expected {} as the lock says: it was made \
         with another Go, or by another version of Slipway; `slipway lock --renew` makes it anew",
        program.sha256
    );
    Ok(())
}

/// Refuses the modules of a lock that is older than CoreDNS's place beside the components.
fn knows_coredns(content: Content, modules: Modules<'_>) -> Result<()> {
    ensure!(
        content == Content::Kubelet || coredns::version_in(modules.go_mod).is_some(),
        "the lock was made by a version of Slipway that did not compile CoreDNS; `slipway lock --renew` makes it anew"
    );
    Ok(())
}

/// The program, and whether it came from the cache. Module and build caches (4 GB) are removed with the work folder, and
/// until then serve the other program.
fn compile(
    go: &Go,
    content: Content,
    release: &str,
    modules: Modules<'_>,
    cache: &Cache,
    step: &Step,
) -> Result<(PathBuf, bool)> {
    let flags = link_flags(release)?;
    let name = content.name();
    let package = format!("./{name}");
    let mut key = Key::of("kubelet", 3).key("go", &go.tools.key);
    for (name, text) in content.sources() {
        key = key.text(name, text);
    }
    let key = key
        .text("go.mod", modules.go_mod)
        .text("go.sum", modules.go_sum)
        .text("flags", &flags)
        .finish();
    let made = cache.step(name, &key, |folder| {
        go.write(modules.go_mod, Some(modules.go_sum))?;
        step.note("fetching modules");
        let packages = go.online(&["list", "-mod=readonly", "-deps", &package])?;
        let total = packages.lines().count();
        if content != Content::Kubelet {
            coredns::adapt(modules.go_mod, &go.scratch.path().join(MODULES))?;
        }
        let build = go
            .offline()
            .args([
                "build",
                "-v",
                "-mod=readonly",
                "-trimpath",
                "-buildvcs=false",
                // The linker would discard it: saves a tenth of the time.
                "-gcflags=all=-dwarf=false",
            ])
            .args(["-ldflags", &flags, "-o", &format!("{WORK}/program")])
            .arg(&package);
        watch(build, total, step)?;
        fs::rename(go.folder().join("program"), folder.join(name))?;
        Ok(())
    })?;
    Ok((made.path.join(name), made.hit))
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

/// Sets the version variables: without them a node would report `v0.0.0-master`, which every other program refuses. The
/// time and the commit of upstream's builds are not recorded in a module.
fn link_flags(release: &str) -> Result<String> {
    let (major, minor, _) = version::parse(release)
        .with_context(|| format!("{release:?} is not a release of Kubernetes"))?;
    let mut flags = "-s -w -buildid=".to_owned();
    for (name, value) in [
        ("gitVersion", release),
        ("gitMajor", &major.to_string()),
        ("gitMinor", &minor.to_string()),
        ("gitCommit", ""),
        ("gitTreeState", "archive"),
        ("buildDate", "1970-01-01T00:00:00Z"),
    ] {
        write!(flags, " -X k8s.io/component-base/version.{name}={value}")?;
    }
    Ok(flags)
}

/// `go.mod` of our module, derived from that of the release; without a version of CoreDNS it is for Go to choose the newest.
fn go_mod(theirs: &str, release: &str, coredns: Option<&str>) -> Result<String> {
    let staged = release
        .strip_prefix("v1.")
        .map(|rest| format!("v0.{rest}"))
        .with_context(|| format!("{release:?} is not a release of Kubernetes 1"))?;
    let go = theirs
        .lines()
        .find(|line| line.starts_with("go "))
        .context("the release's go.mod names no Go version")?;
    let mut text = format!("module slipway/kubelet\n\n{go}\n\nrequire {MODULE} {release}\n");
    if let Some(version) = coredns {
        writeln!(text, "require {} {version}", coredns::MODULE)?;
    }
    text.push_str("\nreplace (\n");
    let mut count = 0;
    for line in theirs.lines() {
        let line = line.trim().trim_start_matches("replace ");
        let Some((name, target)) = line.split_once(" => ") else {
            continue;
        };
        if target.trim().starts_with("./staging/") {
            writeln!(text, "\t{name} => {name} {staged}")?;
            count += 1;
        }
    }
    ensure!(
        count > 0,
        "the release's go.mod has no staging modules: its format is unknown"
    );
    text.push_str(")\n");
    Ok(text)
}

/// A Go toolchain with a private folder for sources and caches.
struct Go {
    tools: Tools,
    program: String,
    scratch: crate::host::cache::Scratch,
}

impl Go {
    fn new(tools: Tools, cache: &Cache) -> Result<Self> {
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
        let scratch = cache.scratch()?;
        for folder in ["source", "tmp"] {
            fs::create_dir(scratch.path().join(folder))?;
        }
        Ok(Self {
            tools,
            program,
            scratch,
        })
    }

    fn folder(&self) -> PathBuf {
        self.scratch.path().join("source")
    }

    fn write(&self, go_mod: &str, go_sum: Option<&str>) -> Result<()> {
        let folder = self.folder();
        for content in Content::ALL {
            let package = folder.join(content.name());
            fs::create_dir_all(&package)?;
            for (name, text) in content.sources() {
                fs::write(package.join(name), text)?;
            }
        }
        fs::write(folder.join("go.mod"), go_mod)?;
        if let Some(go_sum) = go_sum {
            fs::write(folder.join("go.sum"), go_sum)?;
        }
        Ok(())
    }

    fn sandbox(&self) -> Sandbox {
        self.tools
            .sandbox()
            .bind(&self.folder(), WORK)
            .bind(self.scratch.path(), CACHE)
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", "/cache/build")
            .env("GOENV", "off")
            // Garbage collection is a seventh of the compiler's work; with this much memory it can run less often.
            .env("GOGC", "400")
            .env("GOMEMLIMIT", "1536MiB")
            // Read-only folders would make the cache hard to remove.
            .env("GOFLAGS", "-modcacherw")
            .env("GOMODCACHE", format!("{CACHE}/{MODULES}"))
            // The checksum database stores its tree here.
            .env("GOPATH", "/cache/go")
            .env("GOTELEMETRY", "off")
            .env("GOTMPDIR", "/cache/tmp")
            // Use the toolchain of the lock, whatever version a go.mod names.
            .env("GOTOOLCHAIN", "local")
    }

    /// Runs Go with the network and the environment's sources of modules; gives its output.
    fn online(&self, arguments: &[&str]) -> Result<String> {
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
    fn module_file(&self, release: &str) -> Result<String> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Downloaded {
            go_mod: PathBuf,
        }
        fs::write(self.folder().join("go.mod"), "module slipway/kubelet\n")?;
        let module = format!("{MODULE}@{release}");
        let said = self.online(&["mod", "download", "-json", &module])?;
        let downloaded: Downloaded =
            serde_json::from_str(&said).context("reading what `go mod download` says")?;
        let below = downloaded
            .go_mod
            .strip_prefix("/cache")
            .context("finding the release's go.mod")?;
        let path: &Path = &self.scratch.path().join(below);
        fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_become_published_ones() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\tk8s.io/api \
                      v0.0.0\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/mount-utils => \
                      ./staging/src/k8s.io/mount-utils\n\tother => other v1\n)\n\nreplace k8s.io/x => \
                      ./staging/src/k8s.io/x\n";
        assert_eq!(
            go_mod(theirs, "v1.36.3", Some("v1.14.2")).unwrap(),
            "module slipway/kubelet\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.3\nrequire \
             github.com/coredns/coredns v1.14.2\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/mount-utils => k8s.io/mount-utils v0.36.3\n\tk8s.io/x => k8s.io/x \
             v0.36.3\n)\n"
        );
        let error = go_mod("module m\ngo 1.26\n", "v1.36.3", None).unwrap_err();
        assert!(error.to_string().contains("staging"), "{error}");
        assert!(go_mod(theirs, "v2.0.0", None).is_err());
        let newest = go_mod(theirs, "v1.36.3", None).unwrap();
        assert!(!newest.contains(coredns::MODULE), "{newest}");
    }

    #[test]
    fn a_lock_without_coredns_names_its_renewal() {
        let modules = |go_mod| Modules { go_mod, go_sum: "" };
        let old = "require k8s.io/kubernetes v1.36.3\n";
        for content in [Content::Components, Content::CoreDns] {
            let error = knows_coredns(content, modules(old)).unwrap_err();
            assert!(error.to_string().contains("lock --renew"), "{error}");
            knows_coredns(
                content,
                modules("require github.com/coredns/coredns v1.14.2"),
            )
            .unwrap();
        }
        knows_coredns(Content::Kubelet, modules(old)).unwrap();
    }

    #[test]
    fn coredns_has_its_own_version() {
        let modules = Modules {
            go_mod: "require github.com/coredns/coredns v1.14.2",
            go_sum: "",
        };
        for (name, version) in [("coredns", "v1.14.2"), ("kube-proxy", "v1.36.3")] {
            assert_eq!(version_of(name, "v1.36.3", modules).unwrap(), version);
        }
    }

    #[test]
    fn the_node_will_know_its_version() {
        let flags = link_flags("v1.36.3").unwrap();
        for part in ["gitVersion=v1.36.3 ", "gitMajor=1 ", "gitMinor=36 "] {
            assert!(flags.contains(part), "{flags}");
        }
        assert!(link_flags("1.36").is_err());
    }
}
