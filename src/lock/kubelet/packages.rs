//! Programs and files of a release that no image and no lock has, such as Kubernetes' own tests: compiled by the toolchain of
//! the lock for the release of its kubelet.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::program::go;
use super::release_module::{MODULE, Modules, go_mod, link_flags};
use super::toolchain::{Go, Target};
use crate::code;
use crate::host::cache::{Cache, Key, Made};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;

/// The file of our module that names the packages. Its tag keeps it out of every build: programs cannot be imported.
const SOURCE: &str = "packages/packages.go";

/// What is wanted of a release.
#[derive(Clone, Copy, Debug)]
pub struct Packages<'a> {
    /// Programs, by the full names of their packages.
    pub programs: &'a [&'a str],
    /// Packages whose tests are a program each.
    pub tests: &'a [&'a str],
    /// Files of the module `k8s.io/kubernetes`, by their paths in it.
    pub files: &'a [&'a str],
}

/// The same as files of the host.
#[derive(Clone, Debug)]
pub struct Obtained {
    /// Release, as `v1.36.3`.
    pub release: String,
    /// Each program, by the name of its package.
    pub programs: BTreeMap<String, PathBuf>,
    /// Each file, by its path in the module.
    pub files: BTreeMap<String, PathBuf>,
}

/// Compiles the programs and copies the files of the lock's release, unless the cache has them.
///
/// # Errors
/// If the lock has no kubelet or no toolchain (`go-module` is not among the recipe's sources), a module cannot be fetched, or
/// a package does not compile.
pub fn packages(
    session: &Session,
    locked: &LockedRecipe,
    wanted: &Packages<'_>,
) -> Result<Obtained> {
    let kubelet = locked.lock.kubelet.as_ref();
    let release = &kubelet.context("the lock has no kubelet")?.version;
    let cache = &session.cache;
    let go = Go::new(go(session, locked)?, session)?;
    let source = source(wanted);
    let step = session.progress.step("modules");
    let resolved = resolve(&go, release, &source, cache, &step)?;
    step.done(resolved.hit, None);
    let read = |name: &str| fs::read_to_string(resolved.path.join(name));
    let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
    let modules = Modules {
        go_mod: &go_mod,
        go_sum: &go_sum,
    };
    go.write(
        [(SOURCE.to_owned(), source.as_str())],
        &go_mod,
        Some(&go_sum),
    )?;
    let mut programs = BTreeMap::new();
    for (tests, packages) in [(false, wanted.programs), (true, wanted.tests)] {
        for package in packages {
            let target = Target { package, tests };
            let path = compile(&go, target, release, modules, session)?;
            programs.insert((*package).to_owned(), path);
        }
    }
    Ok(Obtained {
        release: release.clone(),
        programs,
        files: files(&go, release, wanted.files, cache)?,
    })
}

/// The source that makes our module require the packages.
fn source(wanted: &Packages<'_>) -> String {
    let mut text = "//go:build tools\n\npackage packages\n\nimport (\n".to_owned();
    for package in wanted.programs.iter().chain(wanted.tests) {
        text += &format!("\t_ \"{package}\"\n");
    }
    text.push_str(")\n");
    text
}

/// The folder of `go.mod` and `go.sum` of our module with that source.
fn resolve(go: &Go, release: &str, source: &str, cache: &Cache, step: &Step) -> Result<Made> {
    let key = Key::of("package modules", code::PROGRAMS)
        .key("go", go.compiler())
        .text("release", release)
        .text("source", source)
        .finish();
    cache.step("package-modules", &key, |folder| {
        let ours = go_mod(&go.module_file(release)?, release, None)?;
        go.write([(SOURCE.to_owned(), source)], &ours, None)?;
        go.resolve(folder, step)
    })
}

/// One program. Its key has all modules, not only its own.
fn compile(
    go: &Go,
    target: Target<'_>,
    release: &str,
    modules: Modules<'_>,
    session: &Session,
) -> Result<PathBuf> {
    let flags = link_flags(release)?;
    let key = Key::of("package", code::PROGRAMS)
        .key("go", go.compiler())
        .text("package", target.package)
        .bytes("tests", &[u8::from(target.tests)])
        .text("go.mod", modules.go_mod)
        .text("go.sum", modules.go_sum)
        .text("flags", &flags)
        .finish();
    let step = session.progress.step(target.package);
    let made = session.cache.step("package", &key, |folder| {
        go.compile(target, &flags, &folder.join("program"), &step)
            .with_context(|| format!("compiling {} of {release}", target.package))
    })?;
    let program = made.path.join("program");
    step.done(made.hit, Some(fs::metadata(&program)?.len()));
    Ok(program)
}

/// Files of Kubernetes' module.
fn files(
    go: &Go,
    release: &str,
    wanted: &[&str],
    cache: &Cache,
) -> Result<BTreeMap<String, PathBuf>> {
    let key = Key::of("release files", code::PROGRAMS)
        .text("release", release)
        .text("files", &wanted.join("\n"))
        .finish();
    let made = cache.step("release-files", &key, |folder| {
        let sources = go.sources_of(&format!("{MODULE}@{release}"))?;
        for (number, path) in wanted.iter().enumerate() {
            fs::copy(sources.join(path), folder.join(number.to_string()))
                .with_context(|| format!("copying {path} of {MODULE} {release}"))?;
        }
        Ok(())
    })?;
    let files = wanted.iter().enumerate();
    Ok(files
        .map(|(number, path)| ((*path).to_owned(), made.path.join(number.to_string())))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_required_and_none_is_built_with_ours() {
        let wanted = Packages {
            programs: &["k8s.io/sample-apiserver"],
            tests: &["k8s.io/kubernetes/test/e2e"],
            files: &[],
        };
        assert_eq!(
            source(&wanted),
            "//go:build tools\n\npackage packages\n\nimport (\n\t_ \"k8s.io/sample-apiserver\"\n\t_ \
             \"k8s.io/kubernetes/test/e2e\"\n)\n"
        );
    }
}
