//! NoCloud's `network-config` as OpenStack's network data, which every other part knows: version 1, as Proxmox VE writes it,
//! and version 2 (netplan's), as users of KubeVirt and of VMware do.
//!
//! Devices by Ethernet address or name, bonds, VLANs, fixed addresses, DHCP, routers' advertisements, gateways, routes and name
//! servers are understood; bridges are mistakes, and search domains are left out.
//! <https://docs.cloud-init.io/en/latest/reference/network-config-format-v1.html>,
//! <https://docs.cloud-init.io/en/latest/reference/network-config-format-v2.html>

mod bond;
mod data;
#[cfg(test)]
mod tests;
mod version_1;
mod version_2;

use ignition::read::json::{self, Json};
use ignition::read::yaml;
use serde_json::{Map, Value};

use crate::network::Described;
use crate::vendor_yaml;
use data::{Data, text_of};

/// Reads a `network-config`; none if it gives no link an address, is empty or disabled, or has mistakes. `notes` gets these, all at once: the
/// user did not write the file, and the machine may boot without it.
pub(crate) fn read(text: &[u8], name: &str, notes: &mut Vec<String>) -> Option<Described> {
    of_document(vendor_yaml::parse(text, name, notes)?, name, notes)
}

/// As [`read`], of a document that is parsed already.
pub(crate) fn of_document(
    document: Json,
    name: &str,
    notes: &mut Vec<String>,
) -> Option<Described> {
    let document = plain(document);
    // The installers' form has all below one key.
    let document = match document.get("network") {
        Some(inner) if document.get("version").is_none() => inner,
        _ => &document,
    };
    // cloud-init counts these two as a machine without the file.
    if is_empty(document) || text_of(document, "config") == "disabled" {
        return None;
    }
    let mut data = Data::default();
    match text_of(document, "version") {
        "1" => version_1::read(document, &mut data),
        "2" => version_2::read(document, &mut data),
        other => data.wrong("version", other, "1 or 2"),
    }
    notes.extend(data.left_out.iter().map(|line| format!("{name}: {line}")));
    let described = match data.wrong.is_empty() {
        true => Described::read(data.into_text(), name),
        false => Err(data
            .wrong
            .iter()
            .map(|line| format!("{name}: {line}"))
            .collect()),
    };
    described
        .map_err(|lines: Vec<String>| {
            notes.extend(lines);
            notes.push(format!("ignoring {name}"));
        })
        .ok()
        .flatten()
}

/// Whether a document is null, or a mapping without keys.
fn is_empty(document: &Value) -> bool {
    document.is_null() || document.as_object().is_some_and(Map::is_empty)
}

/// The document with each scalar as its text.
fn plain(node: Json) -> Value {
    match node.value {
        json::Value::Null => Value::Null,
        json::Value::Plain(text) if yaml::is_null(&text) => Value::Null,
        json::Value::Bool(value) => Value::String(value.to_string()),
        json::Value::Number(text) | json::Value::Text(text) | json::Value::Plain(text) => {
            Value::String(text)
        }
        json::Value::List(items) => items.into_iter().map(plain).collect(),
        json::Value::Object(entries) => {
            let entries = entries.into_iter();
            Value::Object(entries.map(|(key, _, value)| (key, plain(value))).collect())
        }
    }
}
