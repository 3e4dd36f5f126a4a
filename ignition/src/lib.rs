//! The configuration language, pure: what the tool checks and the init applies.
