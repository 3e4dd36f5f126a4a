//! The certificate authorities that downloads trust.

use std::path::Path;

use crate::world::World;

/// Debian's bundle, below a root.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// The bundle of the initramfs, else that of the root, PEM; none if neither has one.
#[must_use]
pub fn ca_bundle(world: &World, sysroot: &Path) -> Option<Vec<u8>> {
    let read = |root: &Path| std::fs::read(root.join(BUNDLE)).ok();
    read(&world.initrd).or_else(|| read(sysroot))
}
