//! Mounts: the only place of the init that calls mount.
