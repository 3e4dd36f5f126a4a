//! Initramfs: the init, the modules of the chosen platforms, and the manifest, as one cpio archive.
