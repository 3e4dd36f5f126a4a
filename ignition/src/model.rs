//! The typed config of the newest version, from the crate `ignition-config`.

pub use ignition_config::v3_6::{
    Cex, Clevis, Config, Directory, Disk, File, Filesystem, Group, KernelArguments, Link, Luks,
    NodeGroup, NodeUser, Partition, Raid, Resource, Storage, Tang, Unit, User,
};

use crate::schema::{CONFIG, Item, Shape, Struct};
use crate::tree::{Node, Value};

/// The typed config of a tree in the form of the newest version.
///
/// # Errors
/// Never for a tree that was read by the schema; the text names a place, not a value.
pub fn of(node: &Node) -> Result<Config, String> {
    serde_json::from_value(json(node, &CONFIG))
        .map_err(|error| format!("a config that was read by the schema has not its types: {error}"))
}

fn json(node: &Node, schema: &'static Struct) -> serde_json::Value {
    let mut out = serde_json::Map::new();
    for field in schema.fields {
        let value = match (field.shape, node.get(field.name)) {
            (Shape::Text, None) => "".into(),
            (_, None) => continue,
            (shape, Some(node)) => value(node, shape),
        };
        out.insert(field.name.to_owned(), value);
    }
    serde_json::Value::Object(out)
}

fn value(node: &Node, shape: Shape) -> serde_json::Value {
    match (&node.value, shape) {
        (Value::Text(text), _) => text.as_str().into(),
        (Value::Number(number), _) => (*number).into(),
        (Value::Flag(flag), _) => (*flag).into(),
        (Value::Struct(_), Shape::Struct(schema)) => json(node, schema),
        (Value::List(items), Shape::List(Item::Struct(schema), _)) => {
            items.iter().map(|item| json(item, schema)).collect()
        }
        (Value::List(items), _) => items.iter().filter_map(Node::as_text).collect(),
        (Value::Struct(_), _) => serde_json::Value::Null,
    }
}
