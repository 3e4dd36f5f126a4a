//! Rootfs: locked packages become a configured, cleaned, reproducible tree.
