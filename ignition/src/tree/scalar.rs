//! YAML scalars as go-yaml reads them for a boolean or a number: octal numbers with a plain leading zero, `yes` and `off`.

use crate::read::json::Value;

/// The boolean of a scalar in a boolean field.
#[must_use]
pub fn flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "on" => Some(true),
        "false" | "False" | "FALSE" | "n" | "N" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// The value of a scalar without quotes in a number field: `0644` and `0o644` are octal, `0x` and `0b` are hexadecimal
/// and binary, `_` may group digits. A text that begins like a number and is invalid keeps its type, for the message.
#[must_use]
pub fn number(plain: &str) -> Value {
    match integer(plain) {
        Some(number) => Value::Number(number.to_string()),
        None if plain.parse::<i64>().is_ok() => Value::Number(format!("{plain} as octal")),
        None if plain.starts_with(|c: char| c.is_ascii_digit()) && plain.len() < 24 => {
            Value::Number(plain.to_owned())
        }
        None => Value::Text(plain.to_owned()),
    }
}

fn integer(plain: &str) -> Option<i64> {
    let digits = plain.replace('_', "");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let based = |prefix: [&str; 2], radix| {
        let rest = digits
            .strip_prefix(prefix[0])
            .or(digits.strip_prefix(prefix[1]))?;
        Some((rest, radix))
    };
    let octal = || digits.strip_prefix('0').filter(|rest| !rest.is_empty());
    let (digits, radix) = based(["0x", "0X"], 16)
        .or(based(["0b", "0B"], 2))
        .or(based(["0o", "0O"], 8))
        .or(octal().map(|rest| (rest, 8)))
        .unwrap_or((digits, 10));
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(digits, radix).ok()?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_what_their_field_is() {
        for (text, wanted) in [
            ("0644", Some(420)),
            ("0o644", Some(420)),
            ("0x1F", Some(31)),
            ("0b101", Some(5)),
            ("1_000", Some(1000)),
            ("-12", Some(-12)),
            ("+7", Some(7)),
            ("0", Some(0)),
            ("-0x10", Some(-16)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("0888", None),
            ("08", None),
            ("0x", None),
            ("0x-1", None),
            ("--1", None),
            ("1.5", None),
            ("1e3", None),
            ("", None),
            ("_", None),
            ("-", None),
            ("x", None),
        ] {
            assert_eq!(integer(text), wanted, "{text}");
        }
        assert_eq!(number("0888"), Value::Number("0888 as octal".into()));
        assert_eq!(number("1.5"), Value::Number("1.5".into()));
        assert_eq!(number("word"), Value::Text("word".into()));
        for (text, wanted) in [
            ("yes", Some(true)),
            ("off", Some(false)),
            ("True", Some(true)),
            ("tRue", None),
        ] {
            assert_eq!(flag(text), wanted);
        }
    }
}
