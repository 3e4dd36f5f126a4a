//! The structure of the workspace, read from its sources: floors, circles, arrows between crates, sizes.
//!
//! It depends on no other crate of the workspace, so that its test runs seconds after a change. The rules are those of
//! `docs/architecture.md`: [`rules`] reports violations, [`table`] and [`picture`] show the actual structure.

// Floor: a target's modules
mod test_code;
pub mod tree;

// Floor: reading
pub mod floors;
pub mod source;
pub mod workspace;

// Floor: who uses whom
pub mod graph;

// Floor: numbers
pub mod metrics;

// Floor: rules
pub mod rules;

// Floor: places in the picture
mod layout;

// Floor: showing
pub mod picture;
pub mod table;
