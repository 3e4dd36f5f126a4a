//! JSON with the line and column of every value, as strict and as lenient as Go's decoder.
//!
//! Duplicate keys are kept in order, lone surrogates and broken UTF-8 become U+FFFD, numbers stay text.
//! [`crate::read::yaml`] builds the same tree, so that all later steps have one input type.

use std::sync::Arc;

use crate::report::{Position, Report};

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json {
    /// Position of the value's first character.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written.
    Number(String),
    /// A string.
    Text(String),
    /// A YAML scalar without quotes: the schema decides whether it is a number, a boolean, null or a string. JSON has
    /// none.
    Plain(String),
    /// An array.
    List(Vec<Json>),
    /// An object: (key, the key's position, value), duplicates included.
    Object(Vec<(String, Position, Json)>),
}

impl Value {
    /// The value of the first of these keys in an object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Self::Object(entries) => {
                let found = entries.iter().find(|(name, _, _)| name == key);
                found.map(|(_, _, value)| value)
            }
            _ => None,
        }
    }

    /// The type of this value, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) | Self::Plain(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Deeper nesting is refused, so that the parser's stack cannot overflow.
const DEEPEST: u32 = 256;

/// Reads one JSON text; `source` is its name in messages.
///
/// # Errors
/// A report with the position of the syntax error.
pub fn parse(text: &[u8], source: &str) -> Result<Json, Report> {
    let text = String::from_utf8_lossy(text);
    let mut reader = Reader {
        rest: text.chars().peekable(),
        source: source.into(),
        line: 1,
        column: 1,
    };
    let fail = |reader: &Reader<'_>, message: String| {
        let mut report = Report::default();
        report.error("$", Some(&reader.here()), message);
        report
    };
    reader.space();
    let value = reader.value(0).map_err(|m| fail(&reader, m))?;
    reader.space();
    match reader.rest.peek() {
        None => Ok(value),
        Some(_) => Err(fail(&reader, "text after the end of the JSON value".into())),
    }
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    source: Arc<str>,
    line: u32,
    column: u32,
}

impl Reader<'_> {
    fn here(&self) -> Position {
        Position {
            source: self.source.clone(),
            line: self.line,
            column: self.column,
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn space(&mut self) {
        while matches!(self.rest.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.next();
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        match self.rest.peek() {
            Some(&c) if c == wanted => {
                self.next();
                Ok(())
            }
            Some(_) => Err(format!("expected {wanted:?} here")),
            None => Err(format!("the text ends where {wanted:?} was expected")),
        }
    }

    fn value(&mut self, depth: u32) -> Result<Json, String> {
        if depth > DEEPEST {
            return Err(format!("nested more than {DEEPEST} deep"));
        }
        let at = self.here();
        let value = match self.rest.peek() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => Value::Text(self.text()?),
            Some('t') => self.word("true", Value::Bool(true))?,
            Some('f') => self.word("false", Value::Bool(false))?,
            Some('n') => self.word("null", Value::Null)?,
            Some('-' | '0'..='9') => self.number()?,
            Some(_) => return Err("expected a JSON value here".into()),
            None => return Err("the text ends where a value was expected".into()),
        };
        Ok(Json { at, value })
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, String> {
        for c in word.chars() {
            if self.rest.peek() != Some(&c) {
                return Err(format!("expected {word} here"));
            }
            self.next();
        }
        Ok(value)
    }

    fn digits(&mut self, out: &mut String) -> Result<(), String> {
        let before = out.len();
        while let Some(&c @ '0'..='9') = self.rest.peek() {
            out.push(c);
            self.next();
        }
        if out.len() == before {
            Err("expected a digit here".into())
        } else {
            Ok(())
        }
    }

    fn number(&mut self) -> Result<Value, String> {
        let mut out = String::new();
        if self.rest.peek() == Some(&'-') {
            out.push('-');
            self.next();
        }
        if self.rest.peek() == Some(&'0') {
            out.push('0');
            self.next();
        } else {
            self.digits(&mut out)?;
        }
        if self.rest.peek() == Some(&'.') {
            out.push('.');
            self.next();
            self.digits(&mut out)?;
        }
        if let Some(&c @ ('e' | 'E')) = self.rest.peek() {
            out.push(c);
            self.next();
            if let Some(&c @ ('+' | '-')) = self.rest.peek() {
                out.push(c);
                self.next();
            }
            self.digits(&mut out)?;
        }
        Ok(Value::Number(out))
    }

    fn text(&mut self) -> Result<String, String> {
        self.expect('"')?;
        let mut out = String::new();
        loop {
            match self.rest.peek() {
                None => return Err("the text ends inside a string".into()),
                Some('"') => {
                    self.next();
                    return Ok(out);
                }
                Some('\\') => {
                    self.next();
                    self.escape(&mut out)?;
                }
                Some(c) if u32::from(*c) < 0x20 => {
                    return Err("a control character inside a string must be escaped".into());
                }
                Some(_) => out.extend(self.next()),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), String> {
        let plain = match self.rest.peek() {
            Some(&c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.next();
                return self.unicode(out);
            }
            Some(_) => return Err("unknown escape in a string".into()),
            None => return Err("the text ends inside a string".into()),
        };
        self.next();
        out.push(plain);
        Ok(())
    }

    /// After `\u`: one code unit, or a pair of surrogates; a lone one becomes U+FFFD.
    fn unicode(&mut self, out: &mut String) -> Result<(), String> {
        let mut unit = self.hex4()?;
        loop {
            if !(0xd800..0xdc00).contains(&unit) {
                out.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
                return Ok(());
            }
            let mut ahead = self.rest.clone();
            if ahead.next() != Some('\\') || ahead.next() != Some('u') {
                out.push(char::REPLACEMENT_CHARACTER);
                return Ok(());
            }
            self.next();
            self.next();
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                let both = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                out.push(char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER));
                return Ok(());
            }
            out.push(char::REPLACEMENT_CHARACTER);
            unit = low;
        }
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self
                .rest
                .peek()
                .and_then(|c| c.to_digit(16))
                .ok_or("expected four hexadecimal digits after \\u")?;
            self.next();
            unit = unit * 16 + digit;
        }
        Ok(unit)
    }

    fn list(&mut self, depth: u32) -> Result<Value, String> {
        self.expect('[')?;
        let mut out = Vec::new();
        self.space();
        if self.rest.peek() == Some(&']') {
            self.next();
            return Ok(Value::List(out));
        }
        loop {
            self.space();
            out.push(self.value(depth + 1)?);
            self.space();
            if self.rest.peek() == Some(&',') {
                self.next();
            } else {
                self.expect(']')?;
                return Ok(Value::List(out));
            }
        }
    }

    fn object(&mut self, depth: u32) -> Result<Value, String> {
        self.expect('{')?;
        let mut out = Vec::new();
        self.space();
        if self.rest.peek() == Some(&'}') {
            self.next();
            return Ok(Value::Object(out));
        }
        loop {
            self.space();
            let at = self.here();
            let key = self.text()?;
            self.space();
            self.expect(':')?;
            self.space();
            out.push((key, at, self.value(depth + 1)?));
            self.space();
            if self.rest.peek() == Some(&',') {
                self.next();
            } else {
                self.expect('}')?;
                return Ok(Value::Object(out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_values_are_told() {
        let json = parse(b"{\n  \"a\": [1, \"x\\u00e9\\ud83d\\ude00\\ud800\"]}", "t").unwrap();
        let Value::Object(entries) = json.value else {
            panic!()
        };
        assert_eq!((entries[0].1.line, entries[0].1.column), (2, 3));
        let Value::List(items) = &entries[0].2.value else {
            panic!()
        };
        assert_eq!(items[0].value, Value::Number("1".into()));
        assert_eq!(items[1].value, Value::Text("xé😀\u{fffd}".into()));
        assert_eq!((items[1].at.line, items[1].at.column), (2, 12));
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        for (text, line, column) in [
            ("", 1, 1),
            ("{", 1, 2),
            ("{\"a\":1,}", 1, 8),
            ("[01]", 1, 3),
            ("\"\n\"", 1, 2),
            ("{} x", 1, 4),
            ("nul", 1, 4),
            ("\n 1.", 2, 4),
        ] {
            let report = parse(text.as_bytes(), "t").unwrap_err();
            let at = report.entries[0].at.clone().unwrap();
            assert_eq!((at.line, at.column), (line, column), "{text:?}: {report}");
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        assert!(parse("[".repeat(100_000).as_bytes(), "t").is_err());
    }
}
