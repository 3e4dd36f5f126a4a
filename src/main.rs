//! The program `slipway`.

mod cli;

fn main() {}
