//! Base64 as vendors and MIME write it: with line breaks anywhere.

/// Decodes base64, with or without line breaks.
pub(crate) fn decode(data: &[u8], name: &str) -> Result<Vec<u8>, String> {
    let text: String = data
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(*byte))
        .collect();
    ignition::encoding::decode_base64(&text).map_err(|why| format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_comes_with_and_without_line_breaks() {
        for text in ["e30=", "e3\r\n0=\n", "  e30=  "] {
            assert_eq!(decode(text.as_bytes(), "x").unwrap(), b"{}");
        }
        assert!(decode(b"e30", "x").unwrap_err().starts_with("x: "));
    }
}
