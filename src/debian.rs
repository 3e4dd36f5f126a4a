//! The Debian archive: mirror, signed index, package choice.
