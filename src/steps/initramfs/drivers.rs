//! Which modules every initramfs holds, whatever its platforms are; those of a platform stand in its row of the table in the
//! crate `platform`. Names are the kernel's; what a kernel has built in costs nothing, what it does not have at all is an
//! error of the recipe.

use image::modules::{EFIVARS, LOOP, OPTIONAL, ROOT, SOFT_WATCHDOG};

/// What every image holds and cannot do without.
pub const REQUIRED: &[&str] = ROOT;

/// What every image holds if its kernel has it.
#[must_use]
pub fn optional() -> Vec<&'static str> {
    [OPTIONAL, &[EFIVARS, LOOP, SOFT_WATCHDOG]].concat()
}
