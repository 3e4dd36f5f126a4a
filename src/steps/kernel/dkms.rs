//! Modules that DKMS compiles for the image's kernel: of the packages of `dkms` in `[kernel]`, in a tree of theirs with the kernel's
//! headers and a compiler, without a network. No script of a package runs there: dkms(8) itself adds, builds and installs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::code;
use crate::debian::pinned::{Deb, LockedPackage};
use crate::host::cache::Key;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::host::tree;
use crate::install;
use crate::install::tools::{self, Tools};
use crate::lock::LockedRecipe;
use crate::recipe::{Mistake, Mistakes, SET_DKMS};

/// Where dkms installs modules, below the release's folder: on Debian always here, whatever `dkms.conf` says.
pub(super) const UPDATES: &str = "updates/dkms";
/// The kernels of the tree.
const MODULES: &str = "usr/lib/modules";
/// The sources of DKMS packages.
const SOURCES: &str = "usr/src";
/// dkms's own folder.
const STATE: &str = "var/lib/dkms";
/// A folder of further settings of dkms's.
const SETTINGS: &str = "etc/dkms/framework.conf.d";
/// The modules in a step's folder.
const MADE: &str = "modules";
/// The index of them.
const INDEX: &str = "dkms.json";
/// Lines of a log in an error.
const LINES: usize = 30;
/// dkms's exit status for a module whose `BUILD_DEPENDS` are not installed yet.
const NEEDS_ANOTHER: i32 = 13;
/// dkms's exit status for a module whose `BUILD_EXCLUSIVE_…` excludes the kernel.
const EXCLUDED: i32 = 77;
/// No key can be made at these paths, so that modules stay without signatures; one made here would be random, and known to no machine.
const FRAMEWORK: &str = "\
mok_signing_key=/proc/no.key
mok_certificate=/proc/no.pub
";

/// What is compiled of one package's source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiled {
    /// The package.
    pub package: String,
    /// Its modules, by their paths below the folder of the kernel's release.
    pub modules: Vec<String>,
}

/// All that DKMS compiled.
#[derive(Clone, Debug)]
pub struct Built {
    /// `uname -r` of the kernel that the modules are for.
    pub release: String,
    /// By package.
    pub compiled: Vec<Compiled>,
    /// A folder with the modules, as below that of the kernel's release.
    pub folder: PathBuf,
    /// Hash of all inputs.
    pub key: Key,
}

/// A DKMS package's source in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    package: String,
    /// Its folder below [`SOURCES`].
    folder: String,
}

/// The modules of the recipe's packages; none without any.
///
/// # Errors
/// A package that DKMS has nothing to do with is a mistake of the recipe. A module that cannot be compiled, with its package and the end
/// of its log.
pub fn build(session: &Session, locked: &LockedRecipe) -> Result<Option<Built>> {
    let wanted = &locked.recipe.kernel.dkms;
    if wanted.is_empty() {
        return Ok(None);
    }
    let debs = locked.packages(session, SET_DKMS)?;
    let mut key = Key::of("dkms", code::KERNEL).bytes("epoch", &locked.lock.epoch.to_le_bytes());
    for deb in &debs {
        key = key.text(&deb.package.name, &deb.package.sha256);
    }
    for name in wanted {
        key = key.text("wanted", name);
    }
    let key = key.finish();
    let step = session.progress.step("dkms");
    let made = session.cache.step("dkms", &key, |folder| {
        session.do_deferred()?;
        let sources = sources(&debs, wanted)?;
        refuse_others(locked, &sources)?;
        // Of no use to a build that has the modules.
        let tree = tools::install(session, "dkms tree", &debs)?;
        let release = release(&tree)?;
        step.note("compiling modules");
        let compiled = compile(&tree, &release, &sources, locked.lock.epoch, folder)?;
        fs::write(
            folder.join(INDEX),
            serde_json::to_vec(&(release, compiled))?,
        )?;
        Ok(())
    })?;
    let index = made.path.join(INDEX);
    let about = || format!("reading {}", index.display());
    let (release, compiled) =
        serde_json::from_slice(&fs::read(&index).with_context(about)?).with_context(about)?;
    step.done(made.hit, None);
    Ok(Some(Built {
        release,
        compiled,
        folder: made.path.join(MADE),
        key,
    }))
}

/// The packages that modules come from, each with its pin.
pub fn packages<'a>(
    locked: &'a LockedRecipe,
    compiled: &'a [Compiled],
) -> impl Iterator<Item = (&'a LockedPackage, &'a Compiled)> {
    let pins = locked.lock.sets.get(SET_DKMS).into_iter().flatten();
    pins.filter_map(|pin| {
        let mut all = compiled.iter();
        Some((pin, all.find(|compiled| compiled.package == pin.name)?))
    })
}

/// The sources with a `dkms.conf`, sorted by package.
fn sources(debs: &[Deb], wanted: &[String]) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for deb in install::dkms_users(debs, wanted)? {
        let about = || format!("reading {}", deb.path.display());
        for path in install::deb_paths(&deb.path).with_context(about)? {
            if let Some(folder) = source(&path) {
                found.push(Source {
                    package: deb.package.name.clone(),
                    folder: folder.to_owned(),
                });
            }
        }
    }
    found.sort_by(|a, b| (&a.package, &a.folder).cmp(&(&b.package, &b.folder)));
    Ok(found)
}

/// The folder below [`SOURCES`] of a path that is a `dkms.conf`.
fn source(path: &str) -> Option<&str> {
    let path = path.trim_start_matches("./").strip_prefix(SOURCES)?;
    let folder = path.strip_prefix('/')?.strip_suffix("/dkms.conf")?;
    (!folder.contains('/')).then_some(folder)
}

/// Refuses packages of the recipe that neither have a source for DKMS nor bring one.
fn refuse_others(locked: &LockedRecipe, sources: &[Source]) -> Result<(), Mistakes> {
    let recipe = &locked.recipe;
    let mut mistakes = recipe.places.mistakes();
    for name in &recipe.kernel.dkms {
        if !sources.iter().any(|source| source.package == *name) {
            mistakes.add(Mistake::of(
                recipe.places.word(&["kernel", "dkms"], name),
                format!("`{name}` has no module that DKMS compiles: no /{SOURCES}/NAME-VERSION/dkms.conf"),
                "expected a package of a module's source, as acpi-call-dkms",
            ));
        }
    }
    mistakes.none()
}

/// The release of the one kernel whose headers are in the tree.
fn release(tree: &Tools) -> Result<String> {
    let folder = tree.root.join(MODULES);
    let about = || format!("reading {}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).with_context(about)? {
        let entry = entry.with_context(about)?;
        if fs::symlink_metadata(entry.path().join("build")).is_ok() {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!(
            "expected the headers of one kernel, with /{MODULES}/RELEASE/build, found {}: {}",
            found.len(),
            found.join(", ")
        ),
    }
}

/// Compiles all sources, those first that others need, and keeps the modules in `folder`.
fn compile(
    tree: &Tools,
    release: &str,
    sources: &[Source],
    epoch: u64,
    folder: &Path,
) -> Result<Vec<Compiled>> {
    let work = Work::new(tree, release, epoch, folder)?;
    let mut compiled: Vec<Compiled> = Vec::new();
    let mut open = Vec::new();
    for source in sources {
        open.push((source, work.add(source)?));
    }
    while !open.is_empty() {
        let before = open.len();
        let mut waiting = Vec::new();
        for (source, module) in open {
            let about = || {
                let Source { package, .. } = source;
                format!("compiling {module} of {package} for the kernel {release}")
            };
            if !work.install(&module).with_context(about)? {
                waiting.push((source, module));
                continue;
            }
            let modules = work.new_modules(&compiled)?;
            ensure!(!modules.is_empty(), "{}: it has no module", about());
            match compiled.iter_mut().find(|of| of.package == source.package) {
                Some(of) => of.modules.extend(modules),
                None => compiled.push(Compiled {
                    package: source.package.clone(),
                    modules,
                }),
            }
        }
        ensure!(
            waiting.len() < before,
            "{}: its dkms.conf needs modules (BUILD_DEPENDS) that no package of `dkms` in [kernel] has; add their package",
            waiting
                .iter()
                .map(|(source, _)| source.package.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
        open = waiting;
    }
    work.finish()?;
    compiled.sort_by(|a, b| a.package.cmp(&b.package));
    Ok(compiled)
}

/// dkms with its folders.
struct Work {
    sandbox: Sandbox,
    release: String,
    state: PathBuf,
    modules: PathBuf,
    settings: PathBuf,
}

impl Work {
    fn new(tree: &Tools, release: &str, epoch: u64, folder: &Path) -> Result<Self> {
        let below = |name: &str| folder.join(name);
        let (state, modules, settings) = (below("state"), below(MADE), below("settings"));
        for path in [&state, &modules, &settings] {
            fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
        }
        fs::write(settings.join("slipway.conf"), FRAMEWORK)?;
        let inside = format!("{MODULES}/{release}");
        for name in ["build", "source"] {
            if let Ok(target) = fs::read_link(tree.root.join(&inside).join(name)) {
                symlink(target, modules.join(name))?;
            }
        }
        let bind = |path: &str| Path::new("/").join(path);
        let sandbox = tree
            .sandbox()
            .bind(&state, bind(STATE))
            .bind(&modules, bind(&inside))
            .bind_read_only(&settings, bind(SETTINGS))
            .epoch(epoch)
            .env("KBUILD_BUILD_TIMESTAMP", format!("@{epoch}"))
            .env("KBUILD_BUILD_USER", "slipway")
            .env("KBUILD_BUILD_HOST", "slipway")
            .without_syncs();
        Ok(Self {
            sandbox,
            release: release.to_owned(),
            state,
            modules,
            settings,
        })
    }

    /// Lets dkms know a source; gives the module's name and version, as `NAME/VERSION`.
    fn add(&self, source: &Source) -> Result<String> {
        let Source { package, folder } = source;
        let path = format!("/{SOURCES}/{folder}");
        let command = self.sandbox.command("/usr/sbin/dkms").args(["add", &path]);
        command
            .run()
            .with_context(|| format!("adding {folder} of {package} to DKMS"))?;
        for name in tree::walk(&self.state)? {
            let is_it = name.meta.is_symlink() && fs::read_link(&name.path)? == Path::new(&path);
            if let Some(module) = name.inside.strip_suffix("/source").filter(|_| is_it) {
                return Ok(module.trim_start_matches('/').to_owned());
            }
        }
        bail!("dkms did not add {folder} of {package}")
    }

    /// Compiles a module, unless it needs another one first.
    fn install(&self, module: &str) -> Result<bool> {
        let child = self
            .sandbox
            .command("/usr/sbin/dkms")
            .args(["install", module, "-k", &self.release, "--no-depmod"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = child.wait_with_output().context("waiting for dkms")?;
        match output.status.code() {
            Some(0) => return Ok(true),
            Some(NEEDS_ANOTHER) => return Ok(false),
            Some(EXCLUDED) => bail!(
                "its dkms.conf excludes this kernel (BUILD_EXCLUSIVE_…: a release, an architecture or an option that it was built without); \
                 another `package` in [kernel] may have what it needs"
            ),
            _ => {}
        }
        let log = self.state.join(module).join("build/make.log");
        match fs::read(&log) {
            Ok(log) => bail!(
                "dkms: {}; the last lines of its make.log:\n  {}",
                output.status,
                tail(&log)
            ),
            Err(_) => bail!(
                "dkms: {}; its last lines:\n  {}",
                output.status,
                tail(&[output.stdout, output.stderr].concat())
            ),
        }
    }

    /// The modules that are installed, and that none of these packages has.
    fn new_modules(&self, before: &[Compiled]) -> Result<Vec<String>> {
        let known = |path: &String| before.iter().any(|of| of.modules.contains(path));
        let mut found = Vec::new();
        for item in tree::walk(&self.modules)? {
            let path = item.inside.trim_start_matches('/').to_owned();
            if item.meta.is_file() && path.starts_with(UPDATES) && !known(&path) {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Leaves the modules alone.
    fn finish(self) -> Result<()> {
        for entry in fs::read_dir(&self.modules)? {
            let entry = entry?;
            let first = Path::new(UPDATES).components().next();
            if first != Some(Component::Normal(&entry.file_name())) {
                crate::host::cache::remove(&entry.path())?;
            }
        }
        crate::host::cache::remove(&self.state)?;
        crate::host::cache::remove(&self.settings)
    }
}

/// The last lines of a log.
fn tail(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_settings_at_its_top() {
        for (path, folder) in [
            (
                "./usr/src/acpi-call-1.2.2/dkms.conf",
                Some("acpi-call-1.2.2"),
            ),
            ("usr/src/a-1/dkms.conf", Some("a-1")),
            ("./usr/src/a-1/examples/dkms.conf", None),
            ("./usr/src/a-1/dkms.conf.in", None),
            ("./usr/share/doc/a/dkms.conf", None),
        ] {
            assert_eq!(source(path), folder, "{path}");
        }
    }

    #[test]
    fn the_kernel_is_the_one_with_headers() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tools {
            root: folder.path().to_owned(),
            key: Key::of_data("tree", 1).finish(),
            packages: Key::of_data("tree", 1).finish(),
        };
        let modules = folder.path().join(MODULES);
        fs::create_dir_all(modules.join("6.12.1")).unwrap();
        let error = release(&tree).unwrap_err().to_string();
        assert!(error.contains("found 0"), "{error}");
        symlink(
            "/usr/src/linux-headers-6.12.1",
            modules.join("6.12.1/build"),
        )
        .unwrap();
        assert_eq!(release(&tree).unwrap(), "6.12.1");
        fs::create_dir_all(modules.join("6.12.2/build")).unwrap();
        let error = release(&tree).unwrap_err().to_string();
        assert!(error.contains("found 2: 6.12.1, 6.12.2"), "{error}");
    }

    #[test]
    fn an_error_has_the_end_of_the_log() {
        let log: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let end = tail(log.as_bytes());
        assert!(
            end.starts_with("line 70\n") && end.ends_with("line 99"),
            "{end}"
        );
    }
}
