//! World: every outside fact that a boot reads, as one struct, so that tests pass another.
