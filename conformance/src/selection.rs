//! Which specs run: all of Conformance, or those of a list, a name a line.

use anyhow::{Result, bail};

/// The part of a name that all specs of the conformance programme have.
const MARK: &str = "[Conformance]";

/// The names in a list; empty lines and those that begin with `#` are none.
#[must_use]
pub fn read(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let names = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.map(str::to_owned).collect()
}

/// The specs of a list, or all; `known` are all names of the suite.
///
/// # Errors
/// If the list is empty or has names that the suite does not have; all of them are named.
pub fn choose(known: &[String], list: Option<&[String]>) -> Result<Vec<String>> {
    let Some(list) = list else {
        return Ok(known.to_vec());
    };
    let unknown: Vec<&str> = list
        .iter()
        .filter(|name| !known.contains(name))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        bail!(
            "the conformance tests of this release have no specs of these names (`--list` shows all):\n  {}",
            unknown.join("\n  ")
        );
    }
    if list.is_empty() {
        bail!("the list names no specs");
    }
    Ok(list.to_vec())
}

/// The regular expressions of Ginkgo's `--focus` for these specs: one for all of the programme, else one for each.
#[must_use]
pub fn focus(known: &[String], chosen: &[String]) -> Vec<String> {
    if chosen.len() == known.len() {
        return vec![escape(MARK)];
    }
    // Ginkgo holds it against the suite's description, a space and the name.
    chosen
        .iter()
        .map(|name| format!(" {}$", escape(name)))
        .collect()
}

/// The expression of all specs of the programme.
#[must_use]
pub fn all() -> String {
    escape(MARK)
}

/// A text as a regular expression of Go's.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// CI's list.
    const FIFTY: &str = include_str!("../fifty.txt");

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_list_is_held_against_the_suite() {
        let known = names(&["a [Conformance]", "b (1.2) [Conformance]"]);
        assert_eq!(choose(&known, None).unwrap(), known);
        let list = read("# comment\n\n  b (1.2) [Conformance]\n");
        assert_eq!(choose(&known, Some(&list)).unwrap(), known[1..]);
        let error = choose(&known, Some(&names(&["c", "d"])))
            .unwrap_err()
            .to_string();
        assert!(error.contains("c\n  d"), "{error}");
        assert!(choose(&known, Some(&[])).is_err());
    }

    #[test]
    fn a_focus_is_of_whole_names() {
        let known = names(&["a [Conformance]", "b (1.2) [Conformance]"]);
        assert_eq!(focus(&known, &known), [r"\[Conformance\]"]);
        assert_eq!(
            focus(&known, &known[1..]),
            [r" b \(1\.2\) \[Conformance\]$"]
        );
    }

    #[test]
    fn the_fifty_are_fifty_of_all_kinds() {
        let fifty = read(FIFTY);
        let different: BTreeSet<&String> = fifty.iter().collect();
        assert_eq!((fifty.len(), different.len()), (50, 50));
        for kind in [
            "[sig-node]",
            "[sig-network]",
            "[sig-network] DNS",
            "[sig-storage]",
            "[sig-apps]",
            "[sig-auth]",
        ] {
            assert!(fifty.iter().any(|name| name.starts_with(kind)), "{kind}");
        }
        assert!(fifty.iter().all(|name| name.ends_with(MARK)));
    }
}
