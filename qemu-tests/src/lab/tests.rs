//! The agent's config beside a promise's own.

use super::*;
use serde_json::json;

#[test]
fn the_agent_is_added_to_a_config() {
    let agent = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/agent" }] },
        "systemd": { "units": [{ "name": "agent" }] },
    });
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/own" }] },
        "passwd": { "users": [] },
    });
    let merged = merged(agent, Some(config));
    assert_eq!(merged["storage"]["files"][0]["path"], "/own");
    assert_eq!(merged["storage"]["files"][1]["path"], "/agent");
    assert_eq!(merged["systemd"]["units"][0]["name"], "agent");
    assert!(merged["passwd"]["users"].is_array());
}

#[test]
fn only_the_shared_nodes_disks_stay() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["node-1", "node-2", "node-3", "cluster"] {
        fs::create_dir_all(scratch.path().join(name).join("tpm")).unwrap();
    }
    remove_nodes(scratch.path(), Some(&scratch.path().join("node-2"))).unwrap();
    let mut left: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["cluster", "node-2"]);
}
