//! `gs://` addresses.

use crate::gs::Object;
use crate::percent;

/// Reads `gs://BUCKET/NAME`.
pub(super) fn parse(text: &str) -> Result<Object, String> {
    let address = text.split(['?', '#']).next().unwrap_or_default();
    let parts = address
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let (bucket, name) = parts
        .filter(|(bucket, name)| !bucket.is_empty() && !name.is_empty())
        .ok_or("expected gs://BUCKET/NAME")?;
    Ok(Object::new(percent::decode(bucket), percent::decode(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let object = parse("gs://b/a%20b/c?x").unwrap();
        assert_eq!(
            (object.bucket.as_str(), object.name.as_str()),
            ("b", "a b/c")
        );
        for text in ["gs://b", "gs://b/", "gs:///x", "gs:b/x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
