//! Block devices: sysfs, partition tables, and the names that survive a reboot.
