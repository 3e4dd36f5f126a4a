//! Detects the language of a config's text: Butane YAML or Ignition JSON.

use crate::read::json::{self, Json};
use crate::read::yaml;
use crate::report::Report;

/// A text by its language, parsed as far as detection needs.
pub(super) enum Text {
    /// YAML with `variant` at its top.
    Butane(Json),
    /// JSON with any content.
    Ignition(Json),
}

/// The language of a text. Butane is YAML with `variant` at its top. JSON is YAML too; with `variant` it is Butane,
/// whatever else it has.
///
/// # Errors
/// If the text is neither; a text whose first character is `{` gets the errors of JSON.
pub(super) fn detect(text: &[u8], source: &str) -> Result<Text, Report> {
    let has_variant = |json: &Json| json.value.get("variant").is_some();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if text.trim_ascii_start().starts_with(b"{") {
        let json = json::parse(text, source)?;
        return match has_variant(&json) {
            true => yaml::parse(text, source).map(Text::Butane),
            false => Ok(Text::Ignition(json)),
        };
    }
    match yaml::parse(text, source) {
        Ok(yaml) if has_variant(&yaml) => return Ok(Text::Butane(yaml)),
        Err(report) if names_variant(text) => return Err(report),
        _ => {}
    }
    let mut json = json::parse(text, source).map(Text::Ignition);
    if let Err(report) = &mut json {
        for entry in &mut report.entries {
            entry.message += "; expected Ignition JSON, or Butane YAML with `variant` at its top";
        }
    }
    json
}

/// Whether a line begins with `variant:`, so that the text is meant to be Butane.
fn names_variant(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        let rest = line.strip_prefix(b"variant");
        rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_told_apart() {
        let butane = |text: &str| matches!(detect(text.as_bytes(), "t"), Ok(Text::Butane(_)));
        let ignition = |text: &str| matches!(detect(text.as_bytes(), "t"), Ok(Text::Ignition(_)));
        assert!(butane("variant: fcos"));
        assert!(butane("# c\n---\nversion: 1\nvariant: x\n"));
        assert!(butane("{\"variant\": \"fcos\"}"));
        assert!(butane("\u{feff} {\"variant\": \"fcos\"}"));
        assert!(ignition("{\"ignition\": {\"variant\": 1}}"));
        assert!(ignition(" \n{}"));
        assert!(ignition("[]"));
    }
}
