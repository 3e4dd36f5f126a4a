//! Text to values: JSON and YAML become one kind of tree, every value with its line and column.

pub mod json;
pub mod yaml;
