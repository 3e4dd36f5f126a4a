//! `guestinfo.metadata`: host name, keys and network of a machine as cloud-init's VMware source reads them, and as Cluster API
//! for vSphere writes them: YAML or JSON, whose `network` is a `network-config`.
//!
//! <https://docs.cloud-init.io/en/latest/reference/datasources/vmware.html>

use ignition::read::json::{Json, Value};

use crate::config_drive::describe;
use crate::metadata::{Metadata, SshKey};
use crate::network::Described;
use crate::nocloud_network;
use crate::vendor_yaml;

/// The variable, and the one with its encoding.
pub(super) const METADATA: &str = "guestinfo.metadata";
pub(super) const ENCODING: &str = "guestinfo.metadata.encoding";

/// Reads the decoded text. What cannot be read is noted and counts as absent: the user's config is elsewhere.
/// `decode` takes an encoding off, for a network that is a text.
pub(super) fn read(
    text: &[u8],
    decode: impl Fn(&[u8], &str) -> Result<Vec<u8>, String>,
    notes: &mut Vec<String>,
) -> Metadata {
    let document = vendor_yaml::parse(text, METADATA, notes);
    let node = |key: &str| document.as_ref()?.value.get(key).cloned();
    let described = node("network").and_then(|network| {
        let encoding = node("network.encoding").map(|encoding| scalar(&encoding.value).to_owned());
        network_of(network, &encoding.unwrap_or_default(), decode, notes)
    });
    let said = vendor_yaml::top(document);
    let one = |key: &str| said.get(key)?.first().cloned();
    let keys = ["public-keys-data", "public_keys_data"];
    let keys = keys.iter().filter_map(|key| said.get(*key)).flatten();
    let mut out = Metadata {
        instance_id: one("instance-id"),
        hostname: one("local-hostname").or_else(|| one("hostname")),
        ssh_keys: keys
            .flat_map(|lines| lines.lines())
            .map(SshKey::for_anybody)
            .collect(),
        ..Metadata::default()
    };
    describe(&mut out, described);
    out
}

/// The network, which is below its key or, in an encoding, a text of its own.
fn network_of(
    network: Json,
    encoding: &str,
    decode: impl Fn(&[u8], &str) -> Result<Vec<u8>, String>,
    notes: &mut Vec<String>,
) -> Option<Described> {
    let name = format!("the network of {METADATA}");
    match &network.value {
        Value::Object(_) => nocloud_network::of_document(network, &name, notes),
        value => match decode(scalar(value).as_bytes(), encoding) {
            Ok(text) => nocloud_network::read(&text, &name, notes),
            Err(why) => {
                notes.push(format!("ignoring {name}: {why}"));
                None
            }
        },
    }
}

fn scalar(value: &Value) -> &str {
    match value {
        Value::Text(text) | Value::Plain(text) => text,
        _ => "",
    }
}
