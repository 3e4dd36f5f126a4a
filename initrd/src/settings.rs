//! Node settings: `node.toml` of the config over the image's defaults.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use image::node::NodeSettings;
use image::paths;
use toml::{Table, Value};

use image::fault::Fault;

/// The three names by which the etcd disk may be found: the file's one replaces whichever the image has.
const ETCD_NAMES: [&str; 4] = ["serial", "id", "label", "partlabel"];

/// Reads the settings of a node: the file below `sysroot` over `defaults`, field by field.
///
/// # Errors
/// A [`Fault`] with the mistake and its position.
pub(crate) fn read(sysroot: &Path, defaults: &NodeSettings) -> Result<NodeSettings> {
    let path = sysroot.join(paths::NODE_SETTINGS.trim_start_matches('/'));
    match fs::read(&path) {
        Ok(text) => over(defaults, &text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(defaults.clone()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// The settings of `text`, the content of a settings file, over `defaults`.
///
/// # Errors
/// A [`Fault`] with the mistake and its position.
pub(crate) fn over(defaults: &NodeSettings, text: &[u8]) -> Result<NodeSettings> {
    let wrong = |found: String| {
        Fault::new(format!("{} is wrong", paths::NODE_SETTINGS))
            .expected("node settings: role, and [etcd] with one of serial, id, label and partlabel")
            .found(found.trim().replace('\n', " | "))
            .fix("correct the file in the node's config")
    };
    let text = std::str::from_utf8(text).map_err(|e| wrong(e.to_string()))?;
    let refused = |error: toml::de::Error| wrong(without_values(&error, text));
    let given: Table = toml::from_str(text).map_err(refused)?;
    // Parsed alone first, so that its mistakes, unknown keys among them, have line and column.
    toml::from_str::<NodeSettings>(text).map_err(refused)?;
    let mut merged = Table::try_from(defaults).context("reading the image's node settings")?;
    merge(&mut merged, given);
    let settings: NodeSettings = merged.try_into().map_err(refused)?;
    if let Some(etcd) = &settings.etcd {
        etcd.find().map_err(wrong)?;
    }
    Ok(settings)
}

/// Refuses a control plane whose settings do not say which volume is etcd's and which cluster its data belongs to.
///
/// # Errors
/// A [`Fault`] with what is missing.
pub(crate) fn complete(settings: &NodeSettings) -> Result<()> {
    settings.control_plane()?;
    Ok(())
}

/// A mistake with its place, but without the line that it stands in and without a value of a wrong type: it may be a
/// secret that got there by mistake. A word that is none of those that may stand there is shown.
fn without_values(error: &toml::de::Error, text: &str) -> String {
    let mut message = error.message().to_owned();
    if let Some((before, rest)) = message.split_once(" string \"")
        && let Some((_, after)) = rest.rsplit_once("\", expected ")
    {
        message = format!("{before} a string, expected {after}");
    }
    let Some(at) = error.span().map(|span| span.start.min(text.len())) else {
        return message;
    };
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    format!("line {line}, column {column}: {message}")
}

fn merge(into: &mut Table, from: Table) {
    if ETCD_NAMES.iter().any(|name| from.contains_key(*name)) {
        into.retain(|key, _| !ETCD_NAMES.contains(&key));
    }
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use image::node::{EtcdFind, EtcdFormat, EtcdSettings, Role};

    use super::*;

    fn defaults() -> NodeSettings {
        NodeSettings {
            role: Role::ControlPlane,
            etcd: Some(EtcdSettings {
                serial: Some("etcd".into()),
                id: None,
                label: None,
                partlabel: None,
                format: EtcdFormat::IfBlank,
                cluster: Some("demo".into()),
                member: None,
                adopt: None,
                minimum_size: 5,
            }),
        }
    }

    #[test]
    fn the_file_replaces_field_by_field() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), &defaults()).unwrap(), defaults());
        let etcd = |text: &str| over(&defaults(), text.as_bytes()).unwrap().etcd.unwrap();
        let cluster = etcd("[etcd]\ncluster = \"prod\"\n");
        assert_eq!(cluster.cluster.as_deref(), Some("prod"));
        assert_eq!(cluster.find().unwrap(), EtcdFind::Serial("etcd".into()));
        assert_eq!(cluster.format, EtcdFormat::IfBlank);
        let label = etcd("[etcd]\nlabel = \"data\"\n");
        assert_eq!(label.find().unwrap(), EtcdFind::Label("data".into()));
        let id = etcd("[etcd]\nid = \"google-etcd\"\n");
        assert_eq!(id.find().unwrap(), EtcdFind::Id("google-etcd".into()));
        let worker = over(&defaults(), b"role = \"worker\"").unwrap();
        assert_eq!(worker.role, Role::Worker);
    }

    #[test]
    fn a_control_plane_names_its_cluster_and_its_volume() {
        complete(&NodeSettings::default()).unwrap();
        complete(&defaults()).unwrap();
        for (text, missing) in [
            ("role = \"control-plane\"", "without [etcd]"),
            (
                "role = \"control-plane\"\netcd.serial = \"x\"",
                "without a name of the cluster",
            ),
        ] {
            let settings = over(&NodeSettings::default(), text.as_bytes()).unwrap();
            let error = complete(&settings).unwrap_err();
            let fault = error.downcast_ref::<Fault>().unwrap();
            assert!(fault.found.as_deref().unwrap().contains(missing), "{fault}");
        }
    }

    #[test]
    fn mistakes_are_faults_with_their_place() {
        for (text, expected) in [
            ("rolle = \"worker\"", "rolle"),
            ("role = \"boss\"", "boss"),
            ("role = ", "line 1"),
            ("[etcd]\nminimum-size = 1\nklaster = 2", "line 3, column 1"),
            ("[etcd]\nserial = \"a\"\nlabel = \"b\"\n", "exactly one"),
            (
                "[etcd]\nadopt = \"sdb\"\n",
                "neither \"blank\" nor the UUID",
            ),
        ] {
            let error = over(&defaults(), text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn values_that_are_wrong_by_mistake_are_not_shown() {
        for text in [
            "token = \"SECRET\"",
            "[etcd]\nminimum-size = \"SECRET\\\", expected SECRET\"",
            "[etcd]\nserial = [\"SECRET\"]",
            "role = \"worker\" SECRET",
            "role = \"SECRET",
        ] {
            let error = over(&defaults(), text.as_bytes()).unwrap_err();
            let shown = format!("{error:#} {error:?}");
            assert!(!shown.contains("SECRET"), "{shown}");
            assert!(shown.contains("line "), "{shown}");
        }
    }
}
