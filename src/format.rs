//! Formats of files and of texts, as functions of their content alone.

// Floor: sparse files
pub mod sparse;

// Floor: archives, digests, file systems, tables, programs
pub mod certificate;
pub mod cpio;
pub mod digest;
pub mod fat;
pub mod gpt;
pub mod gzip;
pub mod time;
pub mod uki;
pub mod verity;
