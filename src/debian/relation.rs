//! Relations between packages in the syntax of control files: `a (>= 1) | b:any, c`.

use std::cmp::Ordering;
use std::fmt;

use debversion::Version;

/// The comparison with a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `<<`
    Earlier,
    /// `<=`
    EarlierOrEqual,
    /// `=`
    Equal,
    /// `>=`
    LaterOrEqual,
    /// `>>`
    Later,
}

/// One package of a relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The package's name, or a name that another package provides.
    pub name: &'a str,
    /// The architecture after the colon.
    pub architecture: Option<&'a str>,
    /// The condition on its version.
    pub version: Option<(Operator, &'a str)>,
}

impl Relation<'_> {
    /// Whether a version satisfies the relation. A version that does not parse satisfies none.
    #[must_use]
    pub fn accepts(&self, version: &str) -> bool {
        let Some((operator, wanted)) = self.version else {
            return true;
        };
        let Some(ordering) = compare(version, wanted) else {
            return false;
        };
        match operator {
            Operator::Earlier => ordering == Ordering::Less,
            Operator::EarlierOrEqual => ordering != Ordering::Greater,
            Operator::Equal => ordering == Ordering::Equal,
            Operator::LaterOrEqual => ordering != Ordering::Less,
            Operator::Later => ordering == Ordering::Greater,
        }
    }
}

impl fmt::Display for Relation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if let Some(architecture) = self.architecture {
            write!(f, ":{architecture}")?;
        }
        match self.version {
            None => Ok(()),
            Some((Operator::Earlier, version)) => write!(f, " (<< {version})"),
            Some((Operator::EarlierOrEqual, version)) => write!(f, " (<= {version})"),
            Some((Operator::Equal, version)) => write!(f, " (= {version})"),
            Some((Operator::LaterOrEqual, version)) => write!(f, " (>= {version})"),
            Some((Operator::Later, version)) => write!(f, " (>> {version})"),
        }
    }
}

/// Compares two versions in Debian's order (deb-version(7)); `None` if one does not parse.
#[must_use]
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    if a == b {
        return Some(Ordering::Equal);
    }
    let a: Version = a.parse().ok()?;
    let b: Version = b.parse().ok()?;
    Some(a.cmp(&b))
}

/// Reads a field of relations: groups of alternatives; each group needs one of its alternatives. Architecture lists and
/// build profiles do not occur in binary packages and are skipped.
pub fn groups(field: &str) -> impl Iterator<Item = Vec<Relation<'_>>> {
    field
        .split(',')
        .map(|group| group.split('|').filter_map(relation).collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
}

fn relation(text: &str) -> Option<Relation<'_>> {
    let text = text.trim_ascii();
    let end = text
        .find(|c: char| c.is_ascii_whitespace() || matches!(c, '(' | '[' | '<'))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return None;
    }
    let (name, architecture) = match name.split_once(':') {
        Some((name, architecture)) => (name, Some(architecture)),
        None => (name, None),
    };
    let version = rest
        .split_once('(')
        .and_then(|(_, inner)| inner.split_once(')'))
        .and_then(|(inner, _)| operator(inner.trim_ascii()));
    Some(Relation {
        name,
        architecture,
        version,
    })
}

fn operator(text: &str) -> Option<(Operator, &str)> {
    const OPERATORS: &[(&str, Operator)] = &[
        ("<<", Operator::Earlier),
        ("<=", Operator::EarlierOrEqual),
        (">=", Operator::LaterOrEqual),
        (">>", Operator::Later),
        ("=", Operator::Equal),
        // Obsolete operators, which mean "or equal" (deb-control(5)).
        ("<", Operator::EarlierOrEqual),
        (">", Operator::LaterOrEqual),
    ];
    OPERATORS
        .iter()
        .find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?.trim_ascii())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_read_and_print() {
        let table = [
            ("libc6", "libc6"),
            (
                "libc6 (>= 2.38), adduser|base-passwd",
                "libc6 (>= 2.38), adduser | base-passwd",
            ),
            (
                "python3:any (<<3.14)  , x(= 1:2-3)",
                "python3:any (<< 3.14), x (= 1:2-3)",
            ),
            (
                "a [amd64] <!nocheck>, b (> 1), c (< 2),",
                "a, b (>= 1), c (<= 2)",
            ),
            ("", ""),
            (" , ,", ""),
        ];
        for (text, expected) in table {
            let shown: Vec<String> = groups(text)
                .map(|group| {
                    group
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(" | ")
                })
                .collect();
            assert_eq!(shown.join(", "), expected, "{text:?}");
        }
    }

    #[test]
    fn versions_are_compared_as_debian_does() {
        let table = [
            ("x (>= 1.0)", "1.0-1", true),
            ("x (= 1.0)", "1.0-0", true),
            ("x (>> 1.0~rc1)", "1.0", true),
            ("x (<< 1.0)", "1.0~~", true),
            ("x (<< 2)", "1:1", false),
            ("x (<= 1.10)", "1.9", true),
            ("x (>= 6.12.107)", "6.12.117-1", true),
            ("x (= 2)", "nonsense of a version", false),
            ("x", "nonsense of a version", true),
        ];
        for (text, version, expected) in table {
            let relation = groups(text).next().unwrap().remove(0);
            assert_eq!(
                relation.accepts(version),
                expected,
                "{text} against {version}"
            );
        }
    }
}
