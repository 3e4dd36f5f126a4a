//! Writes YAML as go-yaml's version 2 writes it: keys in its order, lists at the indentation of their key, quotes only
//! where they are needed, lines of at most 80 columns where a space allows it.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::scalar::{Scalar, is_base_60, resolve};

/// Longer lines are folded at a space.
const WIDTH: usize = 80;

/// The document as YAML, with a line feed at its end.
#[must_use]
pub fn write(value: &Value) -> String {
    let mut writer = Writer::default();
    match value {
        Value::Object(map) if !map.is_empty() => writer.map(map, 0, true),
        Value::Array(items) if !items.is_empty() => writer.list(items, 0),
        other => {
            writer.inline(other, 2);
            writer.line();
        }
    }
    writer.out
}

#[derive(Default)]
struct Writer {
    out: String,
    column: usize,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.out += text;
        self.column += text.chars().count();
    }

    fn line(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    fn indent(&mut self, indent: usize) {
        self.push(&" ".repeat(indent));
    }

    /// The entries at an indentation; `indented` says whether the first line is not begun yet.
    fn map(&mut self, map: &Map<String, Value>, indent: usize, indented: bool) {
        let mut entries: Vec<(&String, &Value)> = map.iter().collect();
        entries.sort_by(|(a, _), (b, _)| order(a, b));
        for (number, (key, value)) in entries.into_iter().enumerate() {
            if indented || number > 0 {
                self.indent(indent);
            }
            self.text(key, indent + 2, true);
            self.push(":");
            self.value(value, indent);
        }
    }

    /// What follows a key: on its line, or below it.
    fn value(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                self.line();
                self.map(map, indent + 2, true);
            }
            Value::Array(items) if !items.is_empty() => {
                self.line();
                self.list(items, indent);
            }
            other => {
                self.push(" ");
                self.inline(other, indent + 2);
                self.line();
            }
        }
    }

    fn list(&mut self, items: &[Value], indent: usize) {
        for item in items {
            self.indent(indent);
            self.push("-");
            match item {
                Value::Object(map) if !map.is_empty() => {
                    self.push(" ");
                    self.map(map, indent + 2, false);
                }
                Value::Array(inner) if !inner.is_empty() => {
                    self.push(" ");
                    let before = self.out.len();
                    self.list(inner, indent + 2);
                    // The first item stands on the line of the hyphen.
                    self.out.replace_range(before..before + indent + 2, "");
                }
                other => {
                    self.push(" ");
                    self.inline(other, indent + 2);
                    self.line();
                }
            }
        }
    }

    /// A scalar, or an empty list or mapping; `indent` is that of its further lines.
    fn inline(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.push("null"),
            Value::Bool(bool) => self.push(&bool.to_string()),
            Value::Number(number) => self.push(&number_text(number)),
            Value::String(text) => self.text(text, indent, false),
            Value::Array(_) => self.push("[]"),
            Value::Object(_) => self.push("{}"),
        }
    }

    fn text(&mut self, text: &str, indent: usize, key: bool) {
        match style(text, key) {
            Style::Plain => self.folded(text, indent, key),
            Style::Single => {
                self.push("'");
                self.folded(&text.replace('\'', "''"), indent, key);
                self.push("'");
            }
            Style::Double => self.double(text, indent, key),
            Style::Literal => self.literal(text, indent),
        }
    }

    /// Text on one line, or on several: a line that is full ends before a word.
    fn folded(&mut self, text: &str, indent: usize, key: bool) {
        let characters: Vec<char> = text.chars().collect();
        for (i, c) in characters.iter().enumerate() {
            let inside = i > 0 && i + 1 < characters.len();
            let between = inside && characters[i - 1] != ' ' && characters[i + 1] != ' ';
            if *c == ' ' && !key && between && self.column > WIDTH {
                self.line();
                self.indent(indent);
            } else {
                self.push(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    fn double(&mut self, text: &str, indent: usize, key: bool) {
        self.push("\"");
        let characters: Vec<char> = text.chars().collect();
        for (i, c) in characters.iter().enumerate() {
            let inside = i > 0 && i + 1 < characters.len();
            if *c == ' ' && !key && inside && characters[i - 1] != ' ' && self.column > WIDTH {
                self.line();
                self.indent(indent);
                if characters[i + 1] == ' ' {
                    self.push("\\");
                }
            } else {
                self.push(&escaped(*c));
            }
        }
        self.push("\"");
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.push("|");
        if text.starts_with([' ', '\n']) {
            self.push("2");
        }
        let kept = text.len() - text.trim_end_matches('\n').len();
        match kept {
            0 => self.push("-"),
            1 if text.len() > 1 => {}
            _ => self.push("+"),
        }
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.line();
            if !line.is_empty() {
                self.indent(indent);
                self.push(line);
            }
        }
    }
}

/// A number as go-yaml writes it: one that is not whole has an exponent, of at least two digits, if that is below -4 or above 5.
fn number_text(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((text.as_str(), "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let is_whole = float.fract() == 0.0 && float.abs() < 9e18;
    if is_whole || (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// The style of a text: plain if it is read as text again, else in the quotes that it allows.
fn style(text: &str, key: bool) -> Style {
    if text.contains('\n') && !key {
        let spaces = text.contains(" \n") || text.ends_with(' ');
        let block = !spaces && text.chars().all(|c| c == '\n' || printable(c));
        return if block { Style::Literal } else { Style::Double };
    }
    let is_read_as_it_is = match resolve(text) {
        Scalar::Text => true,
        Scalar::Merge => !key,
        _ => false,
    };
    if !is_read_as_it_is || is_base_60(text) {
        return Style::Double;
    }
    if !text.chars().all(printable) {
        return Style::Double;
    }
    if plain(text) {
        Style::Plain
    } else {
        Style::Single
    }
}

/// Whether a text of printable characters on one line may stand without quotes in a block.
fn plain(text: &str) -> bool {
    let mut characters = text.chars();
    let (Some(first), second) = (characters.next(), characters.next()) else {
        return false;
    };
    let spaced = second.is_none_or(char::is_whitespace);
    let starts = match first {
        '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
        | '@' | '`' => false,
        '-' | '?' | ':' => !spaced,
        _ => true,
    };
    let markers = text.starts_with("---") || text.starts_with("...");
    let ends = text.starts_with(' ') || text.ends_with(' ') || text.ends_with(':');
    starts && !markers && !ends && !text.contains(": ") && !text.contains(" #")
}

/// Whether go-yaml writes the character as it is.
fn printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn escaped(c: char) -> String {
    match c {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\0' => "\\0".into(),
        '\u{7}' => "\\a".into(),
        '\u{8}' => "\\b".into(),
        '\t' => "\\t".into(),
        '\n' => "\\n".into(),
        '\u{b}' => "\\v".into(),
        '\u{c}' => "\\f".into(),
        '\r' => "\\r".into(),
        '\u{1b}' => "\\e".into(),
        '\u{85}' => "\\N".into(),
        '\u{feff}' => "\\uFEFF".into(),
        c if printable(c) => c.into(),
        c => match u32::from(c) {
            code @ ..=0xff => format!("\\x{code:02X}"),
            code @ ..=0xffff => format!("\\u{code:04X}"),
            code => format!("\\U{code:08X}"),
        },
    }
}

/// go-yaml's order of keys: numbers inside them by their value, other signs before letters.
fn order(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut digits = false;
    for i in 0..a.len().min(b.len()) {
        if a[i] == b[i] {
            digits = a[i].is_ascii_digit();
            continue;
        }
        return match (a[i].is_alphabetic(), b[i].is_alphabetic()) {
            (true, true) => a[i].cmp(&b[i]),
            (false, false) => number_order(&a, &b, i),
            (letter, _) if letter == digits => Ordering::Less,
            _ => Ordering::Greater,
        };
    }
    a.len().cmp(&b.len())
}

/// The order of two keys that differ first at a sign that is no letter.
fn number_order(a: &[char], b: &[char], at: usize) -> Ordering {
    let before = a[..at].iter().rev().take_while(|c| c.is_ascii_digit());
    let zero = a[at] == '0' || b[at] == '0';
    let one = u64::from(zero && before.clone().any(|c| *c != '0'));
    let read = |text: &[char]| {
        let digits = text[at..].iter().map_while(|c| c.to_digit(10));
        digits.fold((one, 0), |(number, count): (u64, usize), digit| {
            let number = number.wrapping_mul(10).wrapping_add(digit.into());
            (number, count + 1)
        })
    };
    read(a).cmp(&read(b)).then(a[at].cmp(&b[at]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_quoted_only_where_it_is_needed() {
        for (text, expected) in [
            ("abc", "abc"),
            ("", "\"\""),
            ("true", "\"true\""),
            ("y", "\"y\""),
            ("3", "\"3\""),
            ("1.5", "\"1.5\""),
            ("10:30", "\"10:30\""),
            ("2026-01-02", "\"2026-01-02\""),
            ("*.example.test", "'*.example.test'"),
            ("::1", "::1"),
            ("a: b", "'a: b'"),
            ("a #b", "'a #b'"),
            ("a#b:c", "a#b:c"),
            ("it's", "it's"),
            ("'a'", "'''a'''"),
            ("--v=3", "--v=3"),
            ("-", "'-'"),
            ("a\tb", "\"a\\tb\""),
            ("x ", "'x '"),
            ("{}", "'{}'"),
            ("@x", "'@x'"),
            ("=", "="),
        ] {
            assert_eq!(
                write(&json!({ "k": text })),
                format!("k: {expected}\n"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn numbers_are_written_as_by_go() {
        for (number, expected) in [
            (json!(5.5), "5.5"),
            (json!(123_456.5), "123456.5"),
            (json!(1_234_567.5), "1.2345675e+06"),
            (json!(0.0001), "0.0001"),
            (json!(0.000_01), "1e-05"),
            (json!(-1e-9), "-1e-09"),
            (json!(1e22), "1e+22"),
            (json!(2_147_483_600), "2147483600"),
        ] {
            assert_eq!(write(&json!({ "k": number })), format!("k: {expected}\n"));
        }
    }

    #[test]
    fn texts_of_several_lines_are_literal() {
        for (text, expected) in [
            ("a\nb\n", "|\n  a\n  b\n"),
            ("a\nb", "|-\n  a\n  b\n"),
            ("a\n\n", "|+\n  a\n\n"),
            (" a\n", "|2\n   a\n"),
            ("a\n\nb\n", "|\n  a\n\n  b\n"),
            ("a \nb", "\"a \\nb\"\n"),
        ] {
            assert_eq!(
                write(&json!({ "k": text })),
                format!("k: {expected}"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn lists_stand_at_the_indentation_of_their_key() {
        let value = json!({"b": [{"z": 1, "x": [1, 2]}, "t", [], {}], "a": {"c": null, "d": true}});
        let expected =
            "a:\n  c: null\n  d: true\nb:\n- x:\n  - 1\n  - 2\n  z: 1\n- t\n- []\n- {}\n";
        assert_eq!(write(&value), expected);
        assert_eq!(write(&json!([[1, 2], [3]])), "- - 1\n  - 2\n- - 3\n");
        assert_eq!(write(&json!({})), "{}\n");
    }

    #[test]
    fn a_long_line_ends_before_a_word() {
        let long = format!("{} two three", "x".repeat(80));
        let expected = format!("k: {}\n  two three\n", "x".repeat(80));
        assert_eq!(write(&json!({ "k": long })), expected);
    }

    #[test]
    fn numbers_in_keys_are_ordered_by_their_value() {
        let mut keys = ["a10", "a2", "a", "b", "a-b", "aB", "ab", "A", "1"];
        keys.sort_by(|a, b| order(a, b));
        assert_eq!(keys, ["1", "A", "a", "a-b", "a2", "a10", "aB", "ab", "b"]);
    }
}
