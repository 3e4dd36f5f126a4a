//! The certificate authorities that downloads trust.

use std::path::Path;

use image::paths::CA_BUNDLE;

use crate::world::World;

/// Those of the initramfs, which are the recipe's, and those of the root once it is there, PEM; none if neither has any.
#[must_use]
pub fn ca_bundle(world: &World, sysroot: &Path) -> Option<Vec<u8>> {
    let read = |root: &Path| std::fs::read(root.join(CA_BUNDLE.trim_start_matches('/'))).ok();
    let found = [&world.initrd, sysroot].into_iter().filter_map(read);
    // A file may end without a line's end.
    found.reduce(|one, two| [one.as_slice(), b"\n", &two].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_of_the_initramfs_and_of_the_root_are_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let [initrd, sysroot] = ["initrd", "sysroot"].map(|name| folder.path().join(name));
        let world = World {
            initrd: initrd.clone(),
            ..World::real()
        };
        let bundle = || ca_bundle(&world, &sysroot).map(|pem| String::from_utf8(pem).unwrap());
        assert_eq!(bundle(), None);
        let write = |root: &Path, text: &str| {
            let path = root.join(CA_BUNDLE.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(&sysroot, "root");
        assert_eq!(bundle().as_deref(), Some("root"));
        write(&initrd, "own");
        assert_eq!(bundle().as_deref(), Some("own\nroot"));
    }
}
