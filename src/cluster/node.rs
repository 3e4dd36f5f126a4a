//! The config that makes a booted image a node of a cluster: the cluster object with what is this node's own, and of the
//! secrets those that its role needs.

use anyhow::{Context, Result, ensure};
use cluster::object::OF_CONTROL_PLANES;
use image::node::Role;
use image::paths::{CLUSTER, HOSTNAME, NODE_SETTINGS};
use serde_json::{Map, Value, json};

use super::object::ClusterFile;
use super::secrets::Secrets;
use crate::vm::agent::data_url;

/// The version of Ignition's specification that the config is of: the oldest that has all it needs.
const VERSION: &str = "3.3.0";
/// Modes of files: keys, and all others.
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// What a node is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The control plane that begins the cluster.
    First,
    /// A control plane that joins it.
    Further,
    /// A node that runs workloads.
    Worker,
}

/// The name and the address of one node; they are not in the cluster object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Its name, which becomes its host name; without it the machine's.
    pub name: Option<String>,
    /// Its address; without it that of the interface with the default route.
    pub address: Option<String>,
}

/// The Ignition config of a node.
///
/// # Errors
/// If the object names no endpoint, which a node that joins needs, or the secrets lack a file.
pub fn config(file: &ClusterFile, secrets: &Secrets, part: Part, own: &Own) -> Result<Value> {
    let mut files = vec![entry(NODE_SETTINGS, &settings(file, part.role()), PUBLIC)];
    let mut object = file.fields();
    set_own(&mut object, own)?;
    match part {
        Part::First | Part::Further => {
            if part == Part::First {
                object.insert("tokens".to_owned(), json!([secrets.token]));
            } else {
                file.endpoint()?;
                // It has the keys that this one would open.
                object.remove("certificate-key");
                object.insert("join".to_owned(), json!({}));
            }
            let folder = &file.config().cluster.certificates_dir;
            for (path, text) in &secrets.pki {
                let mode = if path.ends_with(".key") {
                    SECRET
                } else {
                    PUBLIC
                };
                files.push(entry(&format!("{folder}/{path}"), text, mode));
            }
        }
        Part::Worker => {
            file.endpoint()?;
            object.retain(|field, _| !OF_CONTROL_PLANES.contains(&field.as_str()));
            let join = json!({"token": secrets.token, "ca-hashes": [secrets.pin()?]});
            object.insert("join".to_owned(), join);
        }
    }
    let object = serde_json::to_string_pretty(&object)?;
    files.push(entry(CLUSTER, &format!("{object}\n"), SECRET));
    if let Some(name) = &own.name {
        files.push(entry(HOSTNAME, &format!("{name}\n"), PUBLIC));
    }
    Ok(json!({
        "ignition": {"version": VERSION},
        "storage": {"files": files},
    }))
}

impl Part {
    /// Its role in the node's settings.
    #[must_use]
    pub fn role(self) -> Role {
        match self {
            Self::First | Self::Further => Role::ControlPlane,
            Self::Worker => Role::Worker,
        }
    }
}

/// The node settings: its role, and of a control plane the cluster that its etcd volume belongs to.
fn settings(file: &ClusterFile, role: Role) -> String {
    match role {
        Role::ControlPlane => format!(
            "role = \"control-plane\"\n\n[etcd]\ncluster = \"{}\"\n",
            file.name()
        ),
        Role::Worker => "role = \"worker\"\n".to_owned(),
    }
}

fn set_own(object: &mut Map<String, Value>, own: &Own) -> Result<()> {
    let node = object.entry("node").or_insert_with(|| json!({}));
    let node = node
        .as_object_mut()
        .context("the object's field node is not a table")?;
    for (field, value) in [("name", &own.name), ("address", &own.address)] {
        if let Some(value) = value {
            ensure!(!value.is_empty(), "the node's {field} is empty");
            node.insert(field.to_owned(), json!(value));
        }
    }
    if node.is_empty() {
        object.remove("node");
    }
    Ok(())
}

fn entry(path: &str, text: &str, mode: u32) -> Value {
    json!({
        "path": path,
        "mode": mode,
        "overwrite": true,
        "contents": {"source": data_url(text.as_bytes())},
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use cluster::host::Host;
    use cluster::object::{self, Image};

    use super::*;
    use crate::recipe::node_config;

    const OBJECT: &str =
        "name = \"blue\"\nendpoint = \"api.example.test\"\n[api-server]\nsans = [\"x.test\"]\n";

    fn cluster() -> (ClusterFile, Secrets) {
        let file = ClusterFile::parse(Path::new("blue.toml"), OBJECT).unwrap();
        let secrets = Secrets::make(file.config(), SystemTime::now()).unwrap();
        (file, secrets)
    }

    /// The content of a file of a config.
    fn content(config: &Value, path: &str) -> Option<String> {
        let files = config["storage"]["files"].as_array().unwrap();
        let found = files.iter().find(|file| file["path"] == path)?;
        let text = found["contents"]["source"]
            .as_str()
            .unwrap()
            .strip_prefix("data:,")
            .unwrap();
        let decoded = percent_encoding::percent_decode_str(text);
        Some(decoded.decode_utf8().unwrap().into_owned())
    }

    #[test]
    fn a_worker_gets_the_token_and_the_pin_and_no_key() {
        let (file, secrets) = cluster();
        let own = Own {
            name: Some("w1".to_owned()),
            address: None,
        };
        let config = config(&file, &secrets, Part::Worker, &own).unwrap();
        let text = config.to_string();
        assert!(!text.contains("PRIVATE") && !text.contains("pki"), "{text}");
        let object: Value = serde_json::from_str(&content(&config, CLUSTER).unwrap()).unwrap();
        let pin = secrets.pin().unwrap();
        assert_eq!(
            object,
            json!({
                "name": "blue",
                "endpoint": "api.example.test",
                "node": {"name": "w1"},
                "join": {"token": secrets.token, "ca-hashes": [pin]},
            })
        );
        let own = content(&config, CLUSTER).unwrap();
        let host = Host {
            address: Some([10, 0, 0, 7].into()),
            ..Host::debian("w1")
        };
        object::read(
            &own,
            &Image {
                version: "v1.36.0".to_owned(),
                ..Image::default()
            },
            &host,
            object::Role::Worker,
        )
        .unwrap();
        assert_eq!(content(&config, HOSTNAME).unwrap(), "w1\n");
        assert_eq!(
            content(&config, NODE_SETTINGS).unwrap(),
            "role = \"worker\"\n"
        );
        let verdict = node_config::check(text.as_bytes(), "x", None);
        assert!(verdict.report.entries.is_empty(), "{}", verdict.report);
    }

    #[test]
    fn a_control_plane_gets_its_authorities_and_the_token() {
        let (file, secrets) = cluster();
        let config = config(&file, &secrets, Part::First, &Own::default()).unwrap();
        let object: Value = serde_json::from_str(&content(&config, CLUSTER).unwrap()).unwrap();
        assert_eq!(object["tokens"], json!([secrets.token]));
        assert_eq!(object["api-server"]["sans"], json!(["x.test"]));
        assert_eq!(object.get("node"), None);
        assert_eq!(
            content(&config, "/etc/kubernetes/pki/etcd/ca.key").unwrap(),
            secrets.pki["etcd/ca.key"]
        );
        assert!(
            content(&config, NODE_SETTINGS)
                .unwrap()
                .contains("cluster = \"blue\"")
        );
        assert_eq!(content(&config, HOSTNAME), None);
    }

    #[test]
    fn a_further_control_plane_gets_the_shared_keys_and_no_token() {
        let (file, secrets) = cluster();
        let own = Own {
            name: Some("cp2".to_owned()),
            address: None,
        };
        let config = config(&file, &secrets, Part::Further, &own).unwrap();
        for path in cluster::shared_keys::FILES {
            let there = content(&config, &format!("/etc/kubernetes/pki/{path}"));
            assert_eq!(there.as_ref(), secrets.pki.get(path), "{path}");
        }
        // In a data URL a dot may be escaped.
        let (id, secret) = secrets.token.split_once('.').unwrap();
        for part in [id, secret] {
            assert!(!config.to_string().contains(part), "{part}");
        }
        let host = Host {
            address: Some([10, 0, 0, 8].into()),
            ..Host::debian("cp2")
        };
        let image = Image {
            version: "v1.36.0".to_owned(),
            ..Image::default()
        };
        let text = content(&config, CLUSTER).unwrap();
        let object = object::read(&text, &image, &host, object::Role::ControlPlane).unwrap();
        assert!(
            object
                .further
                .is_some_and(|further| further.fetched.is_none())
        );
        assert!(
            content(&config, NODE_SETTINGS)
                .unwrap()
                .contains("role = \"control-plane\"")
        );
    }

    #[test]
    fn the_key_that_seals_the_shared_keys_goes_to_the_first_control_plane_alone() {
        let key = "0f".repeat(32);
        let text = format!("certificate-key = \"{key}\"\n{OBJECT}");
        let file = ClusterFile::parse(Path::new("blue.toml"), &text).unwrap();
        let secrets = Secrets::make(file.config(), SystemTime::now()).unwrap();
        for (part, expected) in [
            (Part::First, true),
            (Part::Further, false),
            (Part::Worker, false),
        ] {
            let config = config(&file, &secrets, part, &Own::default()).unwrap();
            let found = content(&config, CLUSTER).unwrap().contains(&key);
            assert_eq!(found, expected, "{part:?}");
        }
    }

    #[test]
    fn a_worker_needs_to_know_where_the_cluster_is() {
        let file = ClusterFile::parse(Path::new("blue.toml"), "name = \"blue\"\n").unwrap();
        let secrets = Secrets::make(file.config(), SystemTime::now()).unwrap();
        let error = config(&file, &secrets, Part::Worker, &Own::default()).unwrap_err();
        assert!(
            error.to_string().contains("blue.toml names no endpoint"),
            "{error}"
        );
    }
}
