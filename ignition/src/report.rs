//! Findings about a config: severity, path, and position in the text.

use std::fmt;
use std::sync::Arc;

/// A position in a source text. Lines and columns count from one, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The name of the text: a file's name, a URL without its secrets, `fw_cfg`.
    pub source: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source, self.line, self.column)
    }
}

/// Whether an entry forbids the use of the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The config cannot be used.
    Error,
    /// The config can be used, but probably does not express its author's intent.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Error or warning.
    pub kind: Kind,
    /// JSON path, as `$.storage.files.0.path`.
    pub path: String,
    /// One sentence, without any value that may be secret.
    pub message: String,
    /// The position of the text nearest to the finding.
    pub at: Option<Position>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Error => "error",
            Kind::Warning => "warning",
        };
        match &self.at {
            Some(at) => write!(f, "{at}: {kind}: {}: {}", self.path, self.message),
            None => write!(f, "{kind}: {}: {}", self.path, self.message),
        }
    }
}

/// All findings about one config, in the order of the rules that made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The findings.
    pub entries: Vec<Entry>,
}

impl Report {
    /// Adds an error.
    pub fn error(&mut self, path: &str, at: Option<&Position>, message: impl Into<String>) {
        self.add(Kind::Error, path, at, message.into());
    }

    /// Adds a warning.
    pub fn warn(&mut self, path: &str, at: Option<&Position>, message: impl Into<String>) {
        self.add(Kind::Warning, path, at, message.into());
    }

    fn add(&mut self, kind: Kind, path: &str, at: Option<&Position>, message: String) {
        self.entries.push(Entry {
            kind,
            path: path.to_owned(),
            message,
            at: at.cloned(),
        });
    }

    /// Whether any finding is an error.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == Kind::Error)
    }

    /// Takes over the findings of another report, keeping each one once.
    pub fn absorb(&mut self, other: Report) {
        for entry in other.entries {
            if !self.entries.contains(&entry) {
                self.entries.push(entry);
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{entry}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
