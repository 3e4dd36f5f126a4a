//! The SBOM of an image as scanners for vulnerabilities read it: the readers of Trivy and of Grype, compiled from their Go modules by the
//! toolchain of a lock. Minutes of compiling, so that the tests run with `--ignored` only.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread starts.
#![allow(clippy::print_stdout, reason = "a test talks to who runs it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use slipway::host::progress::Kind;
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::Mode;
use slipway::pipeline::{self, Request};
use slipway::publish::sbom;
use slipway::recipe::{Choice, SET_TOOLS_GO};

/// The recipe whose image is read: with a kubelet and the programs of a control plane.
const RECIPE: &str = "demo.toml";
/// The one that it extends.
const PARENT: &str = "node.toml";
/// The folder of a reader inside the sandbox.
const PLACE: &str = "/scanner";
/// Package, and the source package that Debian's advisories about it name.
const SOURCES: [(&str, &str); 4] = [
    ("bash", "bash"),
    ("libssl3t64", "openssl"),
    ("libsystemd0", "systemd"),
    ("systemd-boot-efi", "systemd"),
];
/// A crate of the init, modules of Kubernetes, Go's own library.
const LIBRARIES: [&str; 4] = ["rustls", "golang.org/x/net", "k8s.io/kubernetes", "stdlib"];

/// What a scanner's reader says of a document.
#[derive(Debug, Deserialize)]
struct Read {
    distribution: String,
    sources: BTreeMap<String, String>,
    libraries: BTreeMap<String, String>,
}

fn main() -> Result<()> {
    let names = ["trivy_reads_the_sbom", "grype_reads_the_sbom"];
    if !std::env::args().any(|argument| argument == "--ignored") {
        for name in names {
            println!("test {name} ... ignored");
        }
        return Ok(());
    }
    become_root_of_namespace()?;
    let session = Session::open(Kind::Quiet)?;
    let place = tempfile::tempdir()?;
    let (go, sbom) = prepare(&session, place.path())?;
    let kernel = kernel(&sbom)?;
    for (name, scanner) in [(names[0], "trivy"), (names[1], "grype")] {
        let folder = compile(&go, scanner, place.path())?;
        fs::write(folder.join("sbom.json"), &sbom)?;
        let said = sandbox(&go, &folder)
            .command(format!("{PLACE}/reader"))
            .arg("sbom.json")
            .cwd(PLACE)
            .run()?;
        let read: Read = serde_json::from_slice(&said)
            .with_context(|| format!("reading what {scanner} says"))?;
        check(&read, &kernel).with_context(|| format!("test {name}"))?;
        println!("test {name} ... ok");
    }
    Ok(())
}

/// The Go toolchain, and the SBOM of an image with a lock of today.
fn prepare(session: &Session, place: &Path) -> Result<(Tools, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    for name in [RECIPE, PARENT] {
        fs::copy(root.join(name), place.join(name))?;
    }
    let request = Request {
        recipe: place.join(RECIPE),
        choice: Choice::default(),
        output: place.join("out"),
        lock: Mode::Renew,
    };
    let built = pipeline::build(session, &request)?;
    let debs = built.locked.packages(session, SET_TOOLS_GO)?;
    let go = tools::install(session, SET_TOOLS_GO, &debs)?;
    Ok((go, fs::read_to_string(built.out.join(sbom::FILE))?))
}

/// The name of the kernel's package, whose advisories are about `linux`.
fn kernel(sbom: &str) -> Result<String> {
    let components = sbom::components(sbom)?;
    let mut names = components.into_iter().map(|component| component.name);
    let kernel = names.find(|name| name.starts_with("linux-image-"));
    kernel.context("the SBOM has no kernel")
}

/// Compiles a reader in a folder of its own; gives the folder.
fn compile(go: &Tools, scanner: &str, place: &Path) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/scanners")
        .join(scanner);
    let folder = place.join(scanner);
    fs::create_dir_all(folder.join("tmp"))?;
    for name in ["main.go", "go.mod", "go.sum"] {
        fs::copy(sources.join(name), folder.join(name))?;
    }
    let mut versions = fs::read_dir(go.root.join("usr/lib"))?.flatten();
    let version = versions.find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.starts_with("go-1.").then_some(name)
    });
    let version = version.context("the tools tree has no Go toolchain")?;
    sandbox(go, &folder)
        .network(true)
        .command(format!("/usr/lib/{version}/bin/go"))
        .args(["build", "-mod=readonly", "-o", "reader", "."])
        .cwd(PLACE)
        .run()?;
    Ok(folder)
}

/// The toolchain's tree with a folder, and Go's caches in it.
fn sandbox(go: &Tools, folder: &Path) -> Sandbox {
    let mut sandbox = go.sandbox().bind(folder, PLACE);
    for (name, value) in [
        ("CGO_ENABLED", "0"),
        ("GOCACHE", "/scanner/build"),
        ("GOENV", "off"),
        ("GOFLAGS", "-modcacherw"),
        ("GOMODCACHE", "/scanner/modules"),
        ("GOPATH", "/scanner/go"),
        ("GOTELEMETRY", "off"),
        ("GOTMPDIR", "/scanner/tmp"),
        ("GOTOOLCHAIN", "local"),
        // Grype keeps its settings there.
        ("HOME", PLACE),
    ] {
        sandbox = sandbox.env(name, value);
    }
    sandbox
}

/// A scanner finds the distribution, the source of each package, and what our programs and Kubernetes' are made of.
fn check(read: &Read, kernel: &str) -> Result<()> {
    ensure!(
        read.distribution == "debian 13",
        "the distribution is {:?}",
        read.distribution
    );
    for (package, source) in SOURCES.into_iter().chain([(kernel, "linux")]) {
        let found = read.sources.get(package);
        ensure!(
            found.is_some_and(|found| found == source),
            "the source of {package} is {found:?}, expected {source}"
        );
    }
    for library in LIBRARIES {
        ensure!(
            read.libraries.contains_key(library),
            "no {library} in {:?}",
            read.libraries
        );
        ensure!(
            !read.sources.contains_key(library),
            "{library} is a package of Debian's"
        );
    }
    Ok(())
}
