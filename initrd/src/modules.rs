//! Modules: by alias, in dependency order, only what this machine has.
