//! Formats of the files that a build writes, as functions of their content alone.

// Floor: sparse files
pub mod sparse;

// Floor: archives, file systems, tables, programs
pub mod cpio;
pub mod fat;
pub mod gpt;
pub mod uki;
pub mod verity;
