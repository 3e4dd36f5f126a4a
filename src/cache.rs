//! The cache: downloads by hash, steps by the hash of their inputs; safe under two builds at once and after a kill.
