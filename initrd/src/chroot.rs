//! The one door to other programs: they run by a chroot into the verified root.
