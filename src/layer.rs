//! Layer: files that are laid over a root file system, and the one sorted tar stream that they become.
