//! A program of another project that no image and no lock has, such as a server that tests ask: compiled from its Go module by the
//! toolchain of the lock.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::program::go;
use super::toolchain::{Go, Target};
use crate::code;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;

/// What the linker is given: no symbols, and the same bytes each time.
const FLAGS: &str = "-s -w -buildid=";

/// A program, and the modules that it is compiled from.
#[derive(Clone, Copy, Debug)]
pub struct ModuleProgram<'a> {
    /// The full name of its package.
    pub package: &'a str,
    /// `go.mod` of a module of the caller's that requires the package's module and all that this one requires.
    pub go_mod: &'a str,
    /// `go.sum`: the hash of every module.
    pub go_sum: &'a str,
}

/// Compiles a program, unless the cache has it; gives its path. The lock may have no more than the toolchain.
///
/// # Errors
/// If the lock has no toolchain, a module cannot be fetched or has another hash, or the package does not compile.
pub fn module_program(
    session: &Session,
    locked: &LockedRecipe,
    wanted: ModuleProgram<'_>,
) -> Result<PathBuf> {
    let ModuleProgram {
        package,
        go_mod,
        go_sum,
    } = wanted;
    let go = Go::new(go(session, locked)?, session)?;
    let key = Key::of_data("module program", 1)
        .code("code", code::OWN_PROGRAMS)
        .key("go", go.compiler())
        .text("package", package)
        .text("go.mod", go_mod)
        .text("go.sum", go_sum)
        .text("flags", FLAGS)
        .finish();
    let step = session.progress.step(&format!("compile {package}"));
    let made = session.cache.step("module-program", &key, |folder| {
        go.write(std::iter::empty(), go_mod, Some(go_sum))?;
        let target = Target {
            package,
            tests: false,
        };
        go.compile(target, FLAGS, &folder.join("program"), &step)
            .with_context(|| format!("compiling {package}"))
    })?;
    let program = made.path.join("program");
    step.done(made.hit, Some(fs::metadata(&program)?.len()));
    Ok(program)
}
