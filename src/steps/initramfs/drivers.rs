//! The modules of every initramfs, independent of its platforms; those of a platform are in its row of the table in the
//! crate `platform`. Names are the kernel's; a built-in module adds nothing, a module that the kernel lacks is an
//! error of the recipe.

use image::modules::{EFIVARS, LOOP, OPTIONAL, ROOT, SOFT_WATCHDOG};

/// Required modules of every image.
pub const REQUIRED: &[&str] = ROOT;

/// Modules of every image, as far as its kernel has them.
#[must_use]
pub fn optional() -> Vec<&'static str> {
    [OPTIONAL, &[EFIVARS, LOOP, SOFT_WATCHDOG]].concat()
}
