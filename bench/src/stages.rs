//! Ignition's stages as processes: the two programs, and the configs.

pub(crate) mod cases;
pub(crate) mod programs;
