//! What is wrong with a configuration: each mistake with its field and its position.

use std::collections::BTreeMap;
use std::fmt;

/// A position in the configuration: line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// A mistake, or something to warn of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The field's path (`bootstrapTokens.0.groups`), or the file as a whole if it is empty.
    pub field: String,
    /// Its position, if the field, or one around it, is in the configuration.
    pub at: Option<Position>,
    /// The message. It holds no value that is secret.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.message)?;
        match self.at {
            Some(Position { line, column }) => write!(f, " (line {line}, column {column})"),
            None => Ok(()),
        }
    }
}

/// All mistakes of one configuration, and what it was warned of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why the configuration is refused, in the order of its fields' kinds.
    pub mistakes: Vec<Mistake>,
    /// What kubeadm takes with a warning: unknown fields, duplicate keys, other kinds.
    pub warnings: Vec<Mistake>,
    positions: BTreeMap<String, Position>,
}

impl Report {
    /// Remembers the position of a field. A later document's field of the same path does not replace it.
    pub(crate) fn place(&mut self, field: &str, at: Position) {
        self.positions.entry(field.to_owned()).or_insert(at);
    }

    /// Adds a mistake in a field; its position is the field's, or that of the nearest field around it.
    pub(crate) fn refuse(&mut self, field: &str, message: impl Into<String>) {
        self.mistakes.push(Mistake {
            field: field.to_owned(),
            at: self.position(field),
            message: message.into(),
        });
    }

    /// Adds a mistake in an item of a list: the field is the list, as kubeadm names it, the position the item's.
    pub(crate) fn refuse_item(&mut self, field: &str, number: usize, message: impl Into<String>) {
        self.mistakes.push(Mistake {
            field: field.to_owned(),
            at: self.position(&format!("{field}.{number}")),
            message: message.into(),
        });
    }

    /// Adds a mistake whose position is known.
    pub(crate) fn refuse_at(&mut self, field: &str, at: Position, message: impl Into<String>) {
        self.mistakes.push(Mistake {
            field: field.to_owned(),
            at: Some(at),
            message: message.into(),
        });
    }

    /// Adds a warning whose position is known.
    pub(crate) fn warn_at(&mut self, field: &str, at: Position, message: impl Into<String>) {
        self.warnings.push(Mistake {
            field: field.to_owned(),
            at: Some(at),
            message: message.into(),
        });
    }

    fn position(&self, field: &str) -> Option<Position> {
        let mut path = field;
        loop {
            if let Some(at) = self.positions.get(path) {
                return Some(*at);
            }
            path = path.rsplit_once('.')?.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_the_position_of_the_nearest_field_around_it() {
        let mut report = Report::default();
        report.place("networking", Position { line: 3, column: 1 });
        report.refuse("networking.podSubnet", "not a subnet");
        report.refuse("etcd", "not there");
        let shown: Vec<String> = report.mistakes.iter().map(Mistake::to_string).collect();
        let expected = "networking.podSubnet: not a subnet (line 3, column 1)";
        assert_eq!(shown, [expected, "etcd: not there"]);
    }
}
