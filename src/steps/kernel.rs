//! Kernel: its package unpacked, and its modules listed.

pub mod catalogue;
pub mod dkms;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::code;
use crate::debian::pinned::Deb;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::host::tree;
use crate::install;
use crate::install::tools::Tools;
use crate::layer::{Entry, Layer, Writer};
use crate::lock::LockedRecipe;
use crate::recipe::{Mistake, Recipe, SET_KERNEL};

/// Path of the modules in the package and in the root.
const MODULES: &str = "usr/lib/modules";
/// The kernel beside its modules.
const VMLINUZ: &str = "vmlinuz";
/// What a package may have beside its modules, and the root has not, as nothing of `/boot` but [`CONFIG`].
const NO_MODULES: [&str; 2] = [VMLINUZ, "System.map"];
/// The kernel's configuration beside its modules, where Fedora has it and kubeadm looks for it: a kernel that tells its configuration in
/// `/proc/config.gz` is rare, and kubeadm refuses a node that tells it nowhere.
const CONFIG: &str = "config";
/// Where packages have their licences: the name of this file in a folder of each.
const DOCS: &str = "usr/share/doc";
const COPYRIGHT: &str = "copyright";
/// Path of the package inside depmod's namespace.
const INSIDE: &str = "/work";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// The kernel, a PE program.
    pub vmlinuz: PathBuf,
    /// The folder `…/lib/modules/<release>` with modules and depmod's files.
    pub modules: PathBuf,
    /// Modules and depmod's files for the root.
    pub layer: Layer,
    /// Those that DKMS compiled, by package.
    pub compiled: Vec<dkms::Compiled>,
    /// Hash of all inputs.
    pub key: Key,
}

/// A package that does not have one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NotOneKernel(Vec<String>);

impl fmt::Display for NotOneKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, all) = (self.0.len(), self.0.join(", "));
        write!(
            f,
            "expected one kernel in the kernel's package, found {count}"
        )?;
        match count {
            0 => Ok(()),
            _ => write!(f, ": {all}"),
        }
    }
}

impl std::error::Error for NotOneKernel {}

/// The recipe's kernel, unpacked.
///
/// # Errors
/// As [`unpack`]; a package without a kernel is a mistake of the recipe.
pub fn install(session: &Session, locked: &LockedRecipe, tools: &Tools) -> Result<Kernel> {
    let debs = locked.packages(session, SET_KERNEL)?;
    let built = dkms::build(session, locked)?;
    unpack_with(session, tools, &debs, built.as_ref()).map_err(|error| match error.downcast_ref() {
        Some(NotOneKernel(_)) => no_kernel(&locked.recipe, &error),
        None => error,
    })
}

fn no_kernel(recipe: &Recipe, error: &anyhow::Error) -> anyhow::Error {
    let mut mistakes = recipe.places.mistakes();
    let place = recipe.places.value(&["kernel", "package"]);
    let found = format!("`{}` is not a kernel: {error:#}", recipe.kernel.package);
    let mistake = Mistake::of(place, found, "expected a package linux-image-…");
    mistakes.add(mistake);
    mistakes.into()
}

/// Unpacks the kernel's package and lists its modules with the tools tree's depmod.
///
/// # Errors
/// When the package has no kernel, several, or one without modules, or depmod fails.
pub fn unpack(session: &Session, tools: &Tools, debs: &[Deb]) -> Result<Kernel> {
    unpack_with(session, tools, debs, None)
}

/// [`unpack`], with modules that DKMS compiled for this kernel.
fn unpack_with(
    session: &Session,
    tools: &Tools,
    debs: &[Deb],
    built: Option<&dkms::Built>,
) -> Result<Kernel> {
    let step = session.progress.step("kernel");
    let mut key = Key::of("kernel", code::KERNEL).key("tools", &tools.key);
    for deb in debs {
        key = key.text("package", &deb.package.sha256);
    }
    if let Some(built) = built {
        key = key.key("dkms", &built.key);
    }
    let key = key.finish();
    let made = session.cache.step("kernel", &key, |folder| {
        session.do_deferred()?;
        install::unpack_only(debs, folder).context("unpacking the kernel")?;
        let (release, _) = one_kernel(folder)?;
        if let Some(built) = built {
            add_modules(built, &release, &folder.join(MODULES).join(&release))?;
        }
        // depmod reads lib/modules; the package has usr/lib/modules, as every root with a merged /usr.
        let lib = folder.join("lib");
        if !lib.exists() {
            symlink("usr/lib", &lib).context("linking lib to usr/lib")?;
        }
        tools
            .sandbox()
            .bind(folder, Path::new(INSIDE))
            .command("/usr/sbin/depmod")
            .args(["-b", INSIDE, &release])
            .run()
            .context("listing the kernel's modules")?;
        let listed = folder.join(MODULES).join(&release).join("modules.dep");
        ensure!(listed.exists(), "depmod wrote no {}", listed.display());
        Ok(())
    })?;
    let (release, vmlinuz) = one_kernel(&made.path)?;
    let modules = made.path.join(MODULES);
    let mut entries = vec![Entry::directory(format!("/{MODULES}"), 0o755)];
    for item in tree::walk(&modules).context("reading the kernel's modules")? {
        let name = item.inside.strip_prefix(&format!("/{release}/"));
        if name.is_some_and(|name| NO_MODULES.contains(&name)) {
            continue;
        }
        let path = format!("/{MODULES}{}", item.inside);
        if item.meta.is_dir() {
            entries.push(Entry::directory(path, 0o755));
        } else if item.meta.is_file() {
            entries.push(Entry::copy(path, 0o644, item.path));
        }
        // Links there lead to headers, which are not in the image.
    }
    if let Some(config) = config_of_boot(&made.path, &release) {
        let path = format!("/{MODULES}/{release}/{CONFIG}");
        entries.push(Entry::copy(path, 0o644, config));
    }
    entries.extend(licences(&made.path)?);
    // A recipe may bring further modules, and with them depmod's files.
    let layer = Layer::with_key(entries, key.clone())?.of(Writer::Package);
    let size = fs::metadata(&vmlinuz)
        .with_context(|| format!("reading {}", vmlinuz.display()))?
        .len();
    step.done(made.hit, Some(size));
    Ok(Kernel {
        modules: modules.join(&release),
        release,
        vmlinuz,
        layer,
        compiled: built.map_or_else(Vec::new, |built| built.compiled.clone()),
        key,
    })
}

/// Copies modules of DKMS to those of the kernel that they are for.
fn add_modules(built: &dkms::Built, release: &str, modules: &Path) -> Result<()> {
    ensure!(
        built.release == release,
        "the kernel is {release}, and the headers that `dkms` in [kernel] compiles with are of {}; expected those of the same version: \
         `slipway lock --renew` chooses both anew",
        built.release
    );
    for path in built.compiled.iter().flat_map(|of| &of.modules) {
        let target = modules.join(path);
        let about = || format!("copying the module {}", target.display());
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).with_context(about)?;
        }
        fs::copy(built.folder.join(path), &target).with_context(about)?;
    }
    Ok(())
}

/// The release of the one kernel in unpacked packages, and its file: `/boot/vmlinuz-RELEASE`, or beside its modules as in Debian's later
/// kernels.
fn one_kernel(folder: &Path) -> Result<(String, PathBuf)> {
    let mut found = Vec::new();
    for (name, path) in entries(&folder.join("boot"))? {
        if let Some(release) = name.strip_prefix("vmlinuz-") {
            found.push((release.to_owned(), path));
        }
    }
    for (release, path) in entries(&folder.join(MODULES))? {
        let path = path.join(VMLINUZ);
        if path.is_file() {
            found.push((release, path));
        }
    }
    found.sort();
    if found.len() != 1 {
        let names = found.into_iter().map(|(release, _)| release);
        bail!(NotOneKernel(names.collect()));
    }
    Ok(found.remove(0))
}

/// The kernel's configuration in `/boot`, unless the package has it beside the modules.
fn config_of_boot(folder: &Path, release: &str) -> Option<PathBuf> {
    let beside = folder.join(MODULES).join(release).join(CONFIG);
    let config = folder.join("boot").join(format!("config-{release}"));
    (!beside.is_file() && config.is_file()).then_some(config)
}

/// The licences of the unpacked packages, which the root has as it has those of its own.
fn licences(folder: &Path) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    for (name, path) in entries(&folder.join(DOCS))? {
        let file = path.join(COPYRIGHT);
        let is_there = path.is_dir() && !path.is_symlink() && !file.is_symlink() && file.is_file();
        if is_there {
            let inside = format!("/{DOCS}/{name}");
            found.push(Entry::copy(format!("{inside}/{COPYRIGHT}"), 0o644, file));
            found.push(Entry::directory(inside, 0o755));
        }
    }
    if !found.is_empty() {
        found.push(Entry::directory(format!("/{DOCS}"), 0o755));
    }
    Ok(found)
}

/// Names and paths of what is in a folder; nothing if it is not there.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let about = || format!("reading {}", folder.display());
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.with_context(about)?,
    };
    let mut found = Vec::new();
    for entry in files {
        let entry = entry.with_context(about)?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_boot_goes_beside_the_modules_unless_one_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let boot = folder.path().join("boot");
        let modules = folder.path().join(MODULES).join("6.12.1");
        for folder in [&boot, &modules] {
            fs::create_dir_all(folder).unwrap();
        }
        let found = || config_of_boot(folder.path(), "6.12.1");
        fs::write(boot.join("config-6.12.2"), "").unwrap();
        assert_eq!(found(), None);
        let config = boot.join("config-6.12.1");
        fs::write(&config, "").unwrap();
        assert_eq!(found(), Some(config));
        fs::write(modules.join(CONFIG), "").unwrap();
        assert_eq!(found(), None);
    }

    #[test]
    fn the_licences_of_a_kernel_go_with_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(licences(folder.path()).unwrap(), []);
        let docs = folder.path().join(DOCS);
        for path in [
            "linux-image-1/copyright",
            "linux-image-1/NEWS",
            "other/NEWS",
        ] {
            let path = docs.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        // Out of the package.
        symlink("/etc", docs.join("link")).unwrap();
        fs::create_dir(docs.join("bad")).unwrap();
        symlink("/etc/passwd", docs.join("bad").join(COPYRIGHT)).unwrap();
        let mut paths: Vec<String> = licences(folder.path())
            .unwrap()
            .into_iter()
            .map(|entry| entry.path)
            .collect();
        paths.sort();
        let expected = [
            "/usr/share/doc",
            "/usr/share/doc/linux-image-1",
            "/usr/share/doc/linux-image-1/copyright",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_package_has_one_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let found = || {
            let found = one_kernel(folder.path()).map_err(|error| error.to_string());
            found.map(|(release, _)| release)
        };
        // As a package of programs, which has no folder boot.
        assert!(found().unwrap_err().ends_with("found 0"));
        let boot = folder.path().join("boot");
        fs::create_dir(&boot).unwrap();
        fs::write(boot.join("config-6.12.1"), "").unwrap();
        assert!(found().unwrap_err().ends_with("found 0"));
        fs::write(boot.join("vmlinuz-6.12.1"), "").unwrap();
        assert_eq!(found().unwrap(), "6.12.1");
        fs::write(boot.join("vmlinuz-6.12.2"), "").unwrap();
        assert!(found().unwrap_err().ends_with("found 2: 6.12.1, 6.12.2"));
        fs::remove_dir_all(boot).unwrap();
        let modules = folder.path().join(MODULES).join("7.3.4");
        fs::create_dir_all(&modules).unwrap();
        assert!(found().unwrap_err().ends_with("found 0"));
        fs::write(modules.join(VMLINUZ), "").unwrap();
        assert_eq!(
            one_kernel(folder.path()).unwrap(),
            ("7.3.4".to_owned(), modules.join(VMLINUZ))
        );
    }
}
