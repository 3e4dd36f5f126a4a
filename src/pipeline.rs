//! The build line: one function of named steps.
