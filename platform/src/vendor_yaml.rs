//! The top of a YAML or JSON mapping: its scalars and its lists of scalars. What NoCloud's `meta-data` and a vendor's
//! cloud-config say of the machine stands there; everything deeper is passed over.

use std::collections::BTreeMap;

/// The keys on top, each with its scalar or the scalars of its list.
pub(crate) fn read(text: &str) -> BTreeMap<String, Vec<String>> {
    if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(text) {
        return object
            .into_iter()
            .map(|(key, value)| (key, scalars(value)))
            .collect();
    }
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') || trimmed == "---" {
            continue;
        }
        if let Some(item) = trimmed.strip_prefix("- ") {
            // A list may stand at the key's own depth. An item that is a mapping is no scalar.
            if let (Some(key), Some(value)) = (&current, scalar(item)) {
                out.entry(key.clone()).or_default().push(value);
            }
            continue;
        }
        if line.starts_with([' ', '\t']) {
            continue;
        }
        current = None;
        let Some((key, value)) = trimmed.split_once(':') else {
            continue;
        };
        let key = key.trim().trim_matches(['\'', '"']).to_owned();
        match value.trim() {
            "" => current = Some(key),
            _ => {
                if let Some(value) = scalar(value) {
                    out.insert(key, vec![value]);
                }
            }
        }
    }
    out
}

fn scalars(value: serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::String(text) => vec![text],
        serde_json::Value::Number(number) => vec![number.to_string()],
        serde_json::Value::Array(items) => items.into_iter().flat_map(scalars).collect(),
        _ => Vec::new(),
    }
}

/// A plain or quoted scalar; none for anything else.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    for quote in ['\'', '"'] {
        if let Some(rest) = text.strip_prefix(quote) {
            let (inner, after) = rest.split_once(quote)?;
            let ended = after.trim().is_empty() || after.trim().starts_with('#');
            return (ended && !inner.contains('\\')).then(|| inner.to_owned());
        }
    }
    if text.starts_with(['[', '{', '&', '*', '|', '>', '!']) {
        return None;
    }
    let text = text.split(" #").next().unwrap_or_default().trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_is_read_from_yaml_and_json() {
        let yaml = "---\n#cloud-config\ninstance-id: 'i-1'  # mine\nlocal-hostname: \"web-1\"\n\
            network:\n  version: 2\nssh_authorized_keys:\n  - ssh-ed25519 AAAA me\n  - {a: b}\n\
            keys:\n- one\n- 'two'\nanchor: *x\nempty:\n";
        let read_yaml = read(yaml);
        let one = |key: &str| read_yaml.get(key).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(one("instance-id"), ["i-1"]);
        assert_eq!(one("local-hostname"), ["web-1"]);
        assert_eq!(one("ssh_authorized_keys"), ["ssh-ed25519 AAAA me"]);
        assert_eq!(one("keys"), ["one", "two"]);
        assert!(one("anchor").is_empty() && one("version").is_empty() && one("empty").is_empty());
        let json = read(r#"{"instance-id": 7, "keys": ["a", "b"], "deep": {"a": 1}}"#);
        assert_eq!(json["instance-id"], ["7"]);
        assert_eq!(json["keys"], ["a", "b"]);
        assert!(json["deep"].is_empty());
    }
}
