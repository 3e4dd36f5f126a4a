//! The objects of a farm as YAML or JSON: for each recipe ConfigMaps with its files, and a Job.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::input::{Input, LARGEST};
use super::job::Settings;

/// The longest name of a Job, whose pods have it as a label.
const LONGEST: usize = 63;
/// How the objects are applied. By default kubectl writes each object into an annotation of it too, of which the API server takes
/// 262,144 bytes; the server's own way of applying has no such copy.
const HEADER: &str = "\
# Apply this by `kubectl apply --server-side -f FILE`: without --server-side a lock of 256 KiB does not fit.
";
/// The longest part of a file's name in its key, of which the API takes 253 characters.
const LONGEST_KEY: usize = 200;
/// Digits of a name's hash.
const DIGITS: usize = 10;

/// All objects as YAML, deterministic: equal recipes, locks and settings give equal bytes, and other ones another Job, since what a Job
/// does cannot be changed once it is made.
///
/// # Errors
/// If two recipes write the same output.
pub fn render(inputs: &[Input], settings: &Settings) -> Result<String> {
    let texts: Vec<String> = all(inputs, settings)?
        .iter()
        .map(cluster::yaml::write)
        .collect();
    Ok(format!("{HEADER}{}", texts.join("---\n")))
}

/// The same objects as one of the kind `List`, which kubectl applies as well.
///
/// # Errors
/// As [`render`].
pub fn list(inputs: &[Input], settings: &Settings) -> Result<Value> {
    Ok(json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": all(inputs, settings)?,
    }))
}

/// The objects of all recipes, in their order.
fn all(inputs: &[Input], settings: &Settings) -> Result<Vec<Value>> {
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
    let mut found = Vec::new();
    for input in inputs {
        found.extend(objects(input, settings)?);
    }
    Ok(found)
}

/// The files of a recipe that one ConfigMap has.
struct Part {
    data: Value,
    binary: Value,
    items: Vec<Value>,
    size: usize,
}

/// The ConfigMaps of a recipe, as few in the order of the paths as have room for all files, and its Job.
fn objects(input: &Input, settings: &Settings) -> Result<Vec<Value>> {
    let first = input.outputs.first().context("a recipe without an image")?;
    let parts = parts(input);
    let labels = json!({
        "app.kubernetes.io/name": "slipway-farm",
        "app.kubernetes.io/managed-by": "slipway",
        "slipway.dev/image": short(&plain(first, false), LONGEST),
    });
    let spec = |name: &str| {
        let inputs = parts.iter().enumerate();
        let inputs = inputs.map(|(at, part)| (name_of_map(name, at), part.items.as_slice()));
        settings.spec(&input.recipe, &inputs.collect::<Vec<_>>(), &labels)
    };
    let hash = {
        let data: Vec<_> = parts
            .iter()
            .map(|part| (&part.data, &part.binary))
            .collect();
        let text = serde_json::to_vec(&(data, spec("")))?;
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
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(&name),
        "spec": spec(&name),
    });
    let mut all = Vec::new();
    for (at, part) in parts.into_iter().enumerate() {
        let mut map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(&name_of_map(&name, at)),
            "immutable": true,
            "data": part.data,
        });
        if part
            .binary
            .as_object()
            .is_some_and(|binary| !binary.is_empty())
        {
            map["binaryData"] = part.binary;
        }
        all.push(map);
    }
    all.push(job);
    Ok(all)
}

/// The name of a Job's ConfigMap by its number.
fn name_of_map(job: &str, at: usize) -> String {
    format!("{job}-{at}")
}

/// Divides the files among ConfigMaps.
fn parts(input: &Input) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (at, (path, file)) in input.files.iter().enumerate() {
        // Keys have no slashes; the number keeps two of one name apart.
        let name = path.rsplit('/').next().unwrap_or_default();
        let key = format!("{at:03}-{}", short(&plain(name, false), LONGEST_KEY));
        let size = file.content.len();
        let has_room = |part: &Part| part.size + size <= LARGEST;
        if !parts.last().is_some_and(has_room) {
            parts.push(Part {
                data: json!({}),
                binary: json!({}),
                items: Vec::new(),
                size: 0,
            });
        }
        let Some(part) = parts.last_mut() else {
            continue;
        };
        part.size += size;
        match std::str::from_utf8(&file.content) {
            Ok(text) => part.data[&key] = text.into(),
            Err(_) => part.binary[&key] = STANDARD.encode(&file.content).into(),
        }
        // A file of the image is executable if its source is.
        let mode = if file.executable { 0o755 } else { 0o644 };
        let item = json!({ "key": key, "path": path, "mode": mode });
        part.items.push(item);
    }
    parts
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
