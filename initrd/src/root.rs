//! Root: the verified root file system, found by its hash, opened through dm-verity.
