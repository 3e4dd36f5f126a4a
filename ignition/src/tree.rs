//! A config as a tree in the spelling of the schema, on which translation, merging and validation work.

mod from_text;
mod node;
pub mod scalar;
mod to_json;

pub use from_text::{read, read_butane};
pub use node::{Node, Value};
pub use to_json::{to_json, to_sparse_json};
