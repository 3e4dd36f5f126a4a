//! Recipe: what the user asked for, read from TOML and checked.
