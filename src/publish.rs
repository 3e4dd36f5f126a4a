//! Publish: the output folder of a build: disk, artifacts, SBOM, hashes and report.

// Floor: single files
pub mod removed;
pub mod sbom;
pub mod sums;

// Floor: what is published
pub mod image;

// Floor: what is shown of it
pub mod page;

// Floor: the folder
pub mod output;
