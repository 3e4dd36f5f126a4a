//! Paragraphs of `Name: value` lines, Debian's form for every index (deb822(5)); nothing is copied.

/// A line that is neither a field nor a continuation of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line's number, from 1.
    pub line: usize,
    /// The line's text.
    pub text: String,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "line {} is not a `Name: value` field: {:?}",
            self.line, self.text
        )
    }
}

impl std::error::Error for Malformed {}

/// Reads paragraph after paragraph.
#[derive(Debug)]
pub struct Reader<'a> {
    text: &'a str,
    /// Start of the next line.
    at: usize,
    line: usize,
}

impl<'a> Reader<'a> {
    /// A reader of the whole text.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            line: 0,
        }
    }

    /// Passes each field of the next paragraph to `field` as name and value. A value is trimmed, keeps its continuation
    /// lines, and skips lines that begin with `#`. Gives `false` at the end.
    ///
    /// # Errors
    /// At the first line that is neither a field nor a continuation of one.
    pub fn paragraph(
        &mut self,
        mut field: impl FnMut(&'a str, &'a str),
    ) -> Result<bool, Malformed> {
        let mut any = false;
        // Name of the current field, with the start of its value and the end so far.
        let mut open: Option<(&'a str, usize, usize)> = None;
        while self.at < self.text.len() {
            let start = self.at;
            let rest = &self.text[start..];
            let line = rest.find('\n').map_or(rest, |end| &rest[..end]);
            self.at = start + line.len() + 1;
            self.line += 1;
            let first = line.as_bytes().first();
            if line.trim_ascii_end().is_empty() {
                if any {
                    break;
                }
                continue;
            }
            match first {
                Some(b'#') => continue,
                Some(b' ' | b'\t') => {
                    let Some((_, _, end)) = &mut open else {
                        return Err(self.malformed(line));
                    };
                    *end = start + line.len();
                    continue;
                }
                _ => {}
            }
            let colon = line.find(':').filter(|&colon| colon > 0);
            let Some(colon) = colon else {
                return Err(self.malformed(line));
            };
            if let Some((name, from, to)) = open.take() {
                field(name, self.text[from..to].trim_ascii());
            }
            any = true;
            open = Some((&line[..colon], start + colon + 1, start + line.len()));
        }
        if let Some((name, from, to)) = open {
            field(name, self.text[from..to].trim_ascii());
        }
        Ok(any)
    }

    fn malformed(&self, line: &str) -> Malformed {
        Malformed {
            line: self.line,
            text: line.chars().take(80).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = Vec<(&'a str, &'a str)>;

    fn read(text: &str) -> Result<Vec<Fields<'_>>, Malformed> {
        let mut reader = Reader::new(text);
        let mut all = Vec::new();
        loop {
            let mut fields = Vec::new();
            if !reader.paragraph(|name, value| fields.push((name, value)))? {
                return Ok(all);
            }
            all.push(fields);
        }
    }

    /// A text, and the fields of each of its paragraphs.
    type Case<'a> = (&'a str, &'a [&'a [(&'a str, &'a str)]]);

    #[test]
    fn paragraphs_are_read() {
        let table: &[Case<'_>] = &[
            ("", &[]),
            ("\n\n \n", &[]),
            ("A: 1", &[&[("A", "1")]]),
            ("A: 1\n", &[&[("A", "1")]]),
            ("A:1\nB:  2  \n", &[&[("A", "1"), ("B", "2")]]),
            ("A: 1\n\n\nA: 2\n", &[&[("A", "1")], &[("A", "2")]]),
            ("A: 1\n \t\nA: 2\n", &[&[("A", "1")], &[("A", "2")]]),
            ("A:\n one\n two\nB: x", &[&[("A", "one\n two"), ("B", "x")]]),
            ("A: http://x:80/\n", &[&[("A", "http://x:80/")]]),
            ("# note\nA: 1\n# note\nB: 2\n", &[&[("A", "1"), ("B", "2")]]),
            (
                "A: 1\r\nB: 2\r\n\r\nC: 3",
                &[&[("A", "1"), ("B", "2")], &[("C", "3")]],
            ),
            ("A:\nB: ä", &[&[("A", ""), ("B", "ä")]]),
        ];
        for (text, expected) in table {
            let found = read(text).unwrap();
            assert_eq!(found, *expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_field_is_named_by_its_line() {
        for (text, line) in [
            ("A: 1\nnonsense\n", 2),
            (" lost\n", 1),
            ("\n: x", 2),
            ("A: 1\n\n x", 3),
        ] {
            assert_eq!(read(text).unwrap_err().line, line, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn written_paragraphs_read_back(
            paragraphs in proptest::collection::vec(
                proptest::collection::vec(("[A-Z][A-Za-z-]{0,9}", "[!-~]([ -~]{0,20}[!-~])?(\n [!-~]{1,9}){0,2}"), 1..5), 0..5)
        ) {
            let text: String = paragraphs
                .iter()
                .map(|fields| fields.iter().map(|(n, v)| format!("{n}: {v}\n")).collect::<String>() + "\n")
                .collect();
            let found = read(&text).unwrap();
            let expected: Vec<Vec<(&str, &str)>> = paragraphs
                .iter()
                .map(|fields| fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect())
                .collect();
            proptest::prop_assert_eq!(found, expected);
        }

        #[test]
        fn nothing_makes_the_reader_panic(text in "[ -~\n\t\r:#ä]{0,80}") {
            drop(read(&text));
        }
    }
}
