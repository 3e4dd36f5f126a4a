//! Formats of files and of texts, as functions of their content alone.

// Floor: the kind of a file
pub mod kind;

// Floor: sparse files
pub mod sparse;

// Floor: compression
pub mod lz4;

// Floor: the number of threads
pub mod threads;

// Floor: code for a BIOS
mod bios;

// Floor: files that others may change
pub mod hashed_file;

// Floor: archives, digests, file systems, tables, programs
pub mod certificate;
pub mod cpio;
pub mod digest;
pub mod erofs;
pub mod fat;
pub mod gpt;
pub mod gzip;
pub mod time;
pub mod uki;
pub mod verity;

// Floor: what is in an archive
pub mod initrd;
