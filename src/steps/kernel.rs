//! Kernel: its package unpacked, and its modules listed.

pub mod catalogue;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::debian::pinned::Deb;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::host::tree;
use crate::install;
use crate::install::tools::Tools;
use crate::layer::{Entry, Layer};

/// Path of the modules in the package and in the root.
const MODULES: &str = "usr/lib/modules";
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
    /// Hash of all inputs.
    pub key: Key,
}

/// Unpacks the kernel's package and lists its modules with the tools tree's depmod.
///
/// # Errors
/// When the package has no kernel, several, or one without modules, or depmod fails.
pub fn unpack(session: &Session, tools: &Tools, debs: &[Deb]) -> Result<Kernel> {
    let step = session.progress.step("kernel");
    let mut key = Key::of("kernel", 1).key("tools", &tools.key);
    for deb in debs {
        key = key.text("package", &deb.package.sha256);
    }
    let key = key.finish();
    let made = session.cache.step("kernel", &key, |folder| {
        install::unpack_only(debs, folder).context("unpacking the kernel")?;
        let release = release(folder)?;
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
    let release = release(&made.path)?;
    let modules = made.path.join(MODULES);
    let mut entries = vec![Entry::directory(format!("/{MODULES}"), 0o755)];
    for item in tree::walk(&modules).context("reading the kernel's modules")? {
        let path = format!("/{MODULES}{}", item.inside);
        if item.meta.is_dir() {
            entries.push(Entry::directory(path, 0o755));
        } else if item.meta.is_file() {
            entries.push(Entry::copy(path, 0o644, item.path));
        }
        // Links there lead to headers, which are not in the image.
    }
    let layer = Layer::with_key(entries, key.clone())?;
    let vmlinuz = made.path.join(format!("boot/vmlinuz-{release}"));
    let size = fs::metadata(&vmlinuz)
        .with_context(|| format!("reading {}", vmlinuz.display()))?
        .len();
    step.done(made.hit, Some(size));
    Ok(Kernel {
        modules: modules.join(&release),
        release,
        vmlinuz,
        layer,
        key,
    })
}

/// The release of the one kernel in an unpacked package.
fn release(folder: &Path) -> Result<String> {
    let boot = folder.join("boot");
    let mut found: Vec<String> = fs::read_dir(&boot)
        .with_context(|| format!("reading {}", boot.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
        .collect();
    found.sort();
    ensure!(
        found.len() == 1,
        "expected one kernel in the kernel's package, found {}: {}",
        found.len(),
        found.join(", ")
    );
    Ok(found.remove(0))
}
