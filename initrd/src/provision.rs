//! Provision: the config applied to the root.
