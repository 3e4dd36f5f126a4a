//! The text of a cluster object or of an addon's settings, TOML or JSON, as a tree with positions.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::report::{Mistake, Position, Report};
use crate::yaml::{self, Content, Node};

/// Reads TOML, or JSON if the text begins with a brace. Nothing if it is neither: the report says why.
pub(crate) fn read(text: &str, report: &mut Report) -> Option<Node> {
    if text.trim_start().starts_with('{') {
        let found = report.warnings.len();
        let root = yaml::document(text, 0, report);
        // A key that is there twice.
        let twice = report.warnings.split_off(found);
        report
            .mistakes
            .extend(twice.into_iter().map(|warning| Mistake {
                message: warning.message.replace(": the last one counts", ""),
                ..warning
            }));
        return root;
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = position(text, &error.span().unwrap_or_default());
        report.refuse_at("", at, format!("not valid TOML: {}", error.message()));
    }
    let content = Content::Map(entries(text, table.get_ref()));
    let at = Position { line: 1, column: 1 };
    errors.is_empty().then_some(Node { at, content })
}

fn entries(text: &str, table: &DeTable<'_>) -> Vec<(String, Node)> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| {
            let mut node = node(text, value);
            // A table's own span may be that of its first field.
            if matches!(node.content, Content::Map(_)) {
                node.at = position(text, &key.span());
            }
            (key.get_ref().to_string(), node)
        })
        .collect();
    entries.sort_by_key(|(_, node)| (node.at.line, node.at.column));
    entries
}

fn node(text: &str, value: &Spanned<DeValue<'_>>) -> Node {
    let content = match value.get_ref() {
        DeValue::String(text) => Content::Text(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            let int = i128::from_str_radix(&digits, number.radix());
            int.map_or_else(|_| Content::Text(digits), Content::Int)
        }
        DeValue::Float(number) => number
            .as_str()
            .replace('_', "")
            .parse()
            .map_or(Content::Null, Content::Float),
        DeValue::Boolean(yes) => Content::Bool(*yes),
        DeValue::Datetime(date) => Content::Text(date.to_string()),
        DeValue::Array(items) => Content::List(items.iter().map(|item| node(text, item)).collect()),
        DeValue::Table(table) => Content::Map(entries(text, table)),
    };
    let at = position(text, &value.span());
    Node { at, content }
}

/// The position of a span: line and column of its begin.
fn position(text: &str, span: &Range<usize>) -> Position {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    Position { line, column }
}
