//! Bootable: the unified kernel image, and the plain kernel and initrd pair.
