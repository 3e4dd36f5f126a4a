//! Rootfs: the packages of the root, installed.

use anyhow::Result;

use crate::host::session::Session;
use crate::install::{self, Options, Purpose, Rootfs};
use crate::lock::LockedRecipe;
use crate::recipe::SET_ROOT;

/// Installs the root's packages.
///
/// # Errors
/// If a package cannot be fetched or read, or a maintainer script fails; the error names it.
pub fn install(session: &Session, locked: &LockedRecipe) -> Result<Rootfs> {
    let debs = locked.fetch(session, SET_ROOT)?;
    install::install(session, "rootfs", &debs, &options(locked, Purpose::Node))
}

/// The recipe's options for installed packages.
pub(super) fn options(locked: &LockedRecipe, purpose: Purpose) -> Options {
    let debian = &locked.recipe.debian;
    Options {
        purpose,
        epoch: locked.lock.epoch,
        docs: debian.docs,
        locales: debian.locales.clone(),
        package_manager: debian.package_manager,
    }
}
