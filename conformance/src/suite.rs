//! The programs of the tests, compiled from the modules of the release that the cluster's image has.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::host::cache::Key;
use slipway::host::session::Session;
use slipway::lock::kubelet::{self, Obtained, Packages, Program};
use slipway::lock::{self, Mode};
use slipway::recipe;

/// The recipe of the tested image, whose lock names the release and the toolchain.
const RECIPE: &str = "recipes/cluster.toml";

/// The tests.
pub const E2E: &str = "k8s.io/kubernetes/test/e2e";
/// What runs them in parallel.
pub const GINKGO: &str = "github.com/onsi/ginkgo/v2/ginkgo";
/// The program of most test images: servers and clients of all kinds.
pub const AGNHOST: &str = "k8s.io/kubernetes/test/images/agnhost";
/// A program with the set-user-id bit that prints its user.
pub const NONEWPRIVS: &str = "k8s.io/kubernetes/test/images/nonewprivs";
/// An API server for the aggregation layer.
pub const SAMPLE_APISERVER: &str = "k8s.io/sample-apiserver";

/// The certificate that agnhost's server for proxied requests reads from its working folder.
pub const PORTER: [&str; 2] = [
    "test/images/agnhost/porter/localhost.crt",
    "test/images/agnhost/porter/localhost.key",
];
/// What the two images of the rolling update serve, for which the tests ask.
pub const NAUTILUS: [&str; 2] = [
    "test/images/nautilus/html/data.json",
    "test/images/nautilus/html/nautilus.jpg",
];
/// The same of the second one.
pub const KITTEN: [&str; 2] = [
    "test/images/kitten/html/data.json",
    "test/images/kitten/html/kitten.jpg",
];

/// The tests of a release, ready to run.
#[derive(Debug)]
pub struct Suite {
    /// Its programs and files.
    pub obtained: Obtained,
    /// kubectl of the same release, a program of several that goes by its name.
    pub kubectl: PathBuf,
}

impl Suite {
    /// Locks the tested recipe, and compiles the tests of its release unless the cache has them: a quarter of an hour.
    ///
    /// # Errors
    /// If a module cannot be fetched or compiled, or the image has no kubectl.
    pub fn obtain(session: &Session) -> Result<Self> {
        let recipe = recipe::load(&workspace()?.join(RECIPE))?;
        let locked = lock::pin(session, recipe, Mode::Make)?;
        let programs = kubelet::obtain(session, &locked)?;
        let kubectl = programs
            .and_then(|mut programs| programs.components.remove("kubectl"))
            .with_context(|| format!("{RECIPE} has no kubectl"))?;
        let files: Vec<&str> = [PORTER, NAUTILUS, KITTEN].concat();
        let wanted = Packages {
            programs: &[GINKGO, AGNHOST, NONEWPRIVS, SAMPLE_APISERVER],
            tests: &[E2E],
            files: &files,
        };
        Ok(Self {
            obtained: kubelet::packages(session, &locked, &wanted)?,
            kubectl: executable(session, &kubectl)?,
        })
    }

    /// A program, by the name of its package.
    ///
    /// # Errors
    /// If it is not among the suite's.
    pub fn program(&self, package: &str) -> Result<&Path> {
        let program = self.obtained.programs.get(package);
        Ok(program.with_context(|| format!("the suite has no program {package}"))?)
    }

    /// A file of the release's sources.
    ///
    /// # Errors
    /// If it is not among the suite's or cannot be read.
    pub fn file(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.obtained.files.get(path);
        let file = file.with_context(|| format!("the suite has no file {path}"))?;
        fs::read(file).with_context(|| format!("reading {path} of the release"))
    }
}

/// A program of the lock as a file that can be executed: the cache's downloads cannot.
fn executable(session: &Session, program: &Program) -> Result<PathBuf> {
    let key = Key::of_data("executable", 1)
        .text("program", &program.sha256)
        .finish();
    let made = session.cache.step("executable", &key, |folder| {
        let copy = folder.join("program");
        fs::copy(&program.path, &copy)
            .with_context(|| format!("copying {}", program.path.display()))?;
        Ok(fs::set_permissions(
            &copy,
            fs::Permissions::from_mode(0o755),
        )?)
    })?;
    Ok(made.path.join("program"))
}

/// The folder of the workspace.
///
/// # Errors
/// If this package's folder has no parent.
pub fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("finding the workspace")
}
