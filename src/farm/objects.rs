//! The objects of a farm as YAML: for each recipe a ConfigMap with its files, and a Job.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::input::Input;
use super::job::Settings;

/// The longest name of a Job, whose pods have it as a label.
const LONGEST: usize = 63;
/// Digits of a name's hash.
const DIGITS: usize = 10;

/// All objects, deterministic: equal recipes, locks and settings give equal bytes, and other ones another Job, since what a Job does
/// cannot be changed once it is made.
///
/// # Errors
/// If two recipes write the same output.
pub fn render(inputs: &[Input], settings: &Settings) -> Result<String> {
    let mut writers: BTreeMap<&str, &str> = BTreeMap::new();
    for input in inputs {
        for output in &input.outputs {
            let before = writers.insert(output, &input.recipe);
            ensure!(
                before.is_none(),
                "{} and {} both write {output}: side by side each would take the other's place",
                before.unwrap_or_default(),
                input.recipe
            );
        }
    }
    let mut out = String::new();
    for input in inputs {
        for object in objects(input, settings)? {
            out += "---\n";
            out += &cluster::yaml::write(&object);
        }
    }
    Ok(out)
}

fn objects(input: &Input, settings: &Settings) -> Result<[Value; 2]> {
    let first = input.outputs.first().context("a recipe without an image")?;
    let (mut data, mut binary, mut items) = (json!({}), json!({}), Vec::new());
    for (at, (path, file)) in input.files.iter().enumerate() {
        // Keys have no slashes; the number keeps two of one name apart.
        let name = path.rsplit('/').next().unwrap_or_default();
        let key = format!("{at:03}-{}", plain(name, false));
        match std::str::from_utf8(&file.content) {
            Ok(text) => data[&key] = text.into(),
            Err(_) => binary[&key] = STANDARD.encode(&file.content).into(),
        }
        // A file of the image is executable if its source is.
        let mode = if file.executable { 0o755 } else { 0o644 };
        items.push(json!({ "key": key, "path": path, "mode": mode }));
    }
    let labels = json!({
        "app.kubernetes.io/name": "slipway-farm",
        "app.kubernetes.io/managed-by": "slipway",
        "slipway.dev/image": short(&plain(first, false), LONGEST),
    });
    let hash = {
        let spec = settings.spec(&input.recipe, "", &items, &labels);
        let text = serde_json::to_vec(&(&data, &binary, spec))?;
        HEXLOWER.encode(&Sha256::digest(text))
    };
    let hash = hash.get(..DIGITS).unwrap_or_default();
    let start = format!("slipway-{}", plain(first, true));
    let name = format!("{}-{hash}", short(&start, LONGEST - DIGITS - 1));
    let metadata = |name: &str| {
        let mut metadata = json!({ "name": name, "labels": labels });
        if let Some(namespace) = &settings.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        metadata
    };
    let mut map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(&name),
        "immutable": true,
        "data": data,
    });
    if binary.as_object().is_some_and(|binary| !binary.is_empty()) {
        map["binaryData"] = binary;
    }
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(&name),
        "spec": settings.spec(&input.recipe, &name, &items, &labels),
    });
    Ok([map, job])
}

/// A text as part of a name: letters, digits and `-`, in lower case for a name of an object; `_` and `.` too for other names.
fn plain(text: &str, is_name: bool) -> String {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() => c,
        '-' => c,
        '_' | '.' if !is_name => c,
        _ => '-',
    };
    let text: String = text.chars().map(plain).collect();
    match is_name {
        true => text.to_ascii_lowercase(),
        false => text,
    }
}

/// The beginning of a text of ASCII; a name ends with a letter or a digit.
fn short(text: &str, most: usize) -> &str {
    let text = text.get(..most).unwrap_or(text);
    text.trim_end_matches(['-', '_', '.'])
}

#[cfg(test)]
mod tests;
