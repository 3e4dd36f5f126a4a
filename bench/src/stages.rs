//! Ignition's stages as processes: the programs that are run, and the configs that both are given.

pub(crate) mod cases;
pub(crate) mod programs;
