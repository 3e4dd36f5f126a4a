//! What a scalar without quotes is: go-yaml's version 2 reads YAML 1.1.

/// The value of a scalar without quotes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// A date: text, but quoted when it is written.
    Date,
    /// `<<`: text, but quoted when it is written.
    Merge,
    Text,
}

/// The value of a scalar without quotes.
pub(super) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        "<<" => Scalar::Merge,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => number_or_text(text),
    }
}

fn number_or_text(text: &str) -> Scalar {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Scalar::Text;
    }
    if is_date(text) {
        return Scalar::Date;
    }
    let plain = text.replace('_', "");
    if let Some(int) = int(&plain) {
        return Scalar::Int(int);
    }
    // What is too large for a number is text.
    let float = is_float(&plain).then(|| plain.parse().ok());
    match float.flatten().filter(|float: &f64| float.is_finite()) {
        Some(float) => Scalar::Float(float),
        None => Scalar::Text,
    }
}

/// As Go's `strconv.ParseInt` with base 0: decimal, `0x`, `0o`, `0b`, and octal after a zero.
fn int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.get(..2) {
        Some("0x") => (&lower[2..], 16),
        Some("0o") => (&lower[2..], 8),
        Some("0b") => (&lower[2..], 2),
        Some(two) if two.starts_with('0') => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return None;
    }
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if negative { -value } else { value };
    (value >= i128::from(i64::MIN)).then_some(value)
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let exponent =
        exponent.is_none_or(|text| digits(text.strip_prefix(['-', '+']).unwrap_or(text)));
    let mantissa = match mantissa.split_once('.') {
        None => digits(mantissa),
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
    };
    mantissa && exponent
}

/// Whether this begins as a date: `2006-01-02`, with or without a time.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit())
    };
    let day = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (day, time) = rest.split_at(day);
    let time = time.is_empty() || (time.starts_with(['T', 't', ' ']) && time.contains(':'));
    year.len() == 4 && digits(year, 4) && digits(month, 2) && digits(day, 2) && time
}

/// Whether YAML 1.1 reads this as a number of base 60 (`1:30`), which go-yaml quotes for other readers.
pub(super) fn is_base_60(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    let starts = first.starts_with(|c: char| c.is_ascii_digit());
    let inside = first.bytes().all(|c| c.is_ascii_digit() || c == b'_');
    let rest: Vec<&str> = parts.collect();
    let Some((last, middle)) = rest.split_last() else {
        return false;
    };
    let last = match last.split_once('.') {
        Some((digits, fraction)) if fraction.bytes().all(|c| c.is_ascii_digit() || c == b'_') => {
            digits
        }
        Some(_) => return false,
        None => last,
    };
    starts && inside && middle.iter().all(|part| is_sixtieth(part)) && is_sixtieth(last)
}

fn is_sixtieth(text: &str) -> bool {
    match text.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => (b'0'..=b'5').contains(ten) && one.is_ascii_digit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_those_of_yaml_1_1() {
        for (text, expected) in [
            ("yes", Scalar::Bool(true)),
            ("off", Scalar::Bool(false)),
            ("0x1F", Scalar::Int(31)),
            ("010", Scalar::Int(8)),
            ("1_000", Scalar::Int(1000)),
            ("-5", Scalar::Int(-5)),
            ("08", Scalar::Float(8.0)),
            ("1.5e3", Scalar::Float(1500.0)),
            ("18446744073709551615", Scalar::Int(i128::from(u64::MAX))),
            ("10.96.0.10", Scalar::Text),
            ("v1.34", Scalar::Text),
            ("2026-11-22", Scalar::Date),
            ("2026-11-22T10:00:00Z", Scalar::Date),
            ("1-2-3", Scalar::Text),
            ("0", Scalar::Int(0)),
            ("-", Scalar::Text),
            ("24h", Scalar::Text),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
        assert!(is_base_60("10:30") && is_base_60("1:00:59.5"));
        assert!(!is_base_60("10:99") && !is_base_60("10.0.0.1:6443") && !is_base_60("fd00::1"));
    }
}
