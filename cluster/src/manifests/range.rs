//! Ranges of versions of Kubernetes: `>=1.34, <1.37`.

use std::fmt;

use crate::release::Version;

/// How a version is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
}

/// The signs, the longer ones first.
const SIGNS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::Above),
    ("<", Comparison::Below),
    ("=", Comparison::Equal),
];

/// A range: all its conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    text: String,
    conditions: Vec<(Comparison, Vec<u32>)>,
}

impl Range {
    /// What a range looks like, for messages.
    pub const FORM: &'static str = "conditions with commas between them, each >=, >, <=, < or = and one to three numbers, as in \">=1.34, <1.37\"";

    /// Reads a range; nothing if the text is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let conditions = text.split(',').map(|part| condition(part.trim()));
        Some(Self {
            text: text.trim().to_owned(),
            conditions: conditions.collect::<Option<_>>()?,
        })
    }

    /// Whether a version is inside. A condition compares as many numbers as it has: `<=1.36` takes 1.36.3, `>1.36` does not.
    /// A version before its release counts as its release.
    #[must_use]
    pub fn contains(&self, version: &Version) -> bool {
        self.conditions.iter().all(|(comparison, numbers)| {
            let found = &version.numbers[..numbers.len()];
            let numbers = numbers.as_slice();
            match comparison {
                Comparison::AtLeast => found >= numbers,
                Comparison::AtMost => found <= numbers,
                Comparison::Above => found > numbers,
                Comparison::Below => found < numbers,
                Comparison::Equal => found == numbers,
            }
        })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn condition(text: &str) -> Option<(Comparison, Vec<u32>)> {
    let (comparison, rest) = SIGNS.iter().find_map(|(sign, comparison)| {
        Some((*comparison, text.strip_prefix(sign)?.trim_start()))
    })?;
    let rest = rest.strip_prefix('v').unwrap_or(rest);
    let number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse().ok())?
    };
    let numbers: Vec<u32> = rest.split('.').map(number).collect::<Option<_>>()?;
    (numbers.len() <= 3).then_some((comparison, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_compares_as_many_numbers_as_it_has() {
        for (range, inside, outside) in [
            (
                ">=1.34, <1.37",
                &["1.34.0", "1.36.9"][..],
                &["1.33.9", "1.37.0"][..],
            ),
            ("<=1.36", &["1.36.3", "1.2.0"], &["1.37.0"]),
            (">1.36", &["1.37.0"], &["1.36.3"]),
            ("=1.36", &["1.36.0", "1.36.3"], &["1.35.3", "1.37.0"]),
            (">= v1.36.3", &["1.36.3", "1.37.0", "2.0.0"], &["1.36.2"]),
            ("<2", &["1.99.9"], &["2.0.0-rc.1"]),
        ] {
            let read = Range::parse(range).unwrap();
            let contains = |version: &&str| read.contains(&Version::parse(version).unwrap());
            assert!(inside.iter().all(contains), "{range}");
            assert!(!outside.iter().any(contains), "{range}");
            assert_eq!(read.to_string(), range);
        }
    }

    #[test]
    fn what_is_no_range_is_not_read() {
        for text in [
            "",
            "1.36",
            "~1.36",
            ">=",
            ">=1.x",
            ">=1.2.3.4",
            ">=1.34,",
            "=> 1.3",
            ">=-1",
        ] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
    }
}
