//! Journals of a first boot, below `state`: what was started and what was there before, so that the boot after a power cut
//! resumes or undoes it.

pub mod disks;
pub mod files;
