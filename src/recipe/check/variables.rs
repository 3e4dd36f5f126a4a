//! `[variables]`, and the files of a recipe that are filled in with them.
//!
//! A template has `{{ name }}` for the value of a variable, and `{{{{` for two braces of its own. There is nothing else:
//! a file that wants conditions is better made by a program.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Check;
use super::image::RawImage;
use crate::recipe::mistakes::{Mistake, Place, nearest};
use crate::recipe::tree::Node;

/// Begins the name of a variable.
const OPEN: &str = "{{";
/// Ends it.
const CLOSE: &str = "}}";

/// The values by name: the recipe's, and those of the image.
#[derive(Debug, Default)]
pub(super) struct Variables(BTreeMap<String, String>);

/// What is wrong at a part of a template.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    part: Range<usize>,
    found: String,
    help: Option<String>,
}

impl Variables {
    /// The recipe's variables, with their names checked, and `image.name` and `image.version`.
    pub(super) fn check(
        check: &mut Check<'_>,
        given: BTreeMap<String, String>,
        image: &RawImage,
    ) -> Self {
        for name in given.keys() {
            let good = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            let entry = check
                .tree
                .entry("variables")
                .and_then(|table| table.node.entry(name));
            if let (false, Some(entry)) = (good, entry) {
                let place = entry.key.clone();
                check.add(Mistake::at(
                    &place,
                    format!("{name:?} is not the name of a variable"),
                    "expected letters, digits, hyphens and underscores, beginning with a letter",
                ));
            }
        }
        let own = [
            ("image.name", image.name.clone()),
            ("image.version", image.version.clone()),
        ];
        let own = own
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self(given.into_iter().chain(own).collect())
    }

    /// The template with the values in it.
    fn fill(&self, template: &str) -> Result<String, Vec<Wrong>> {
        let (mut out, mut wrong) = (String::new(), Vec::new());
        let mut at = 0;
        while let Some(found) = template[at..].find(OPEN) {
            let open = at + found;
            out += &template[at..open];
            let inside = open + OPEN.len();
            if template[inside..].starts_with(OPEN) {
                out += OPEN;
                at = inside + OPEN.len();
                continue;
            }
            let line = template[inside..].split('\n').next().unwrap_or_default();
            let Some(length) = line.find(CLOSE) else {
                wrong.push(Wrong {
                    part: open..inside + line.len(),
                    found: "`{{` without `}}` on the same line".to_owned(),
                    help: Some("two braces of the file's own are written `{{{{`".to_owned()),
                });
                at = inside;
                continue;
            };
            at = inside + length + CLOSE.len();
            let name = line[..length].trim();
            match self.0.get(name) {
                Some(value) => out += value,
                None => wrong.push(self.unknown(name, open..at)),
            }
        }
        out += &template[at..];
        match wrong.is_empty() {
            true => Ok(out),
            false => Err(wrong),
        }
    }

    fn unknown(&self, name: &str, part: Range<usize>) -> Wrong {
        let near = nearest(name, self.0.keys().map(String::as_str));
        Wrong {
            part,
            found: format!("there is no variable `{name}`"),
            help: near
                .map(|near| format!("did you mean `{near}`?"))
                .or_else(|| Some(format!("there are {}", self.names()))),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        names.join(", ")
    }

    /// Fills in the text that the recipe has at `node`.
    pub(super) fn content(
        &self,
        check: &mut Check<'_>,
        node: &Node,
        template: &str,
    ) -> Option<String> {
        let place = &node.place;
        let written = check
            .mistakes
            .text(place.file)
            .get(place.start..place.end)
            .and_then(|written| written.find(template))
            .map(|offset| place.start + offset);
        self.filled(check, template, |part| match written {
            Some(start) => Place::new(place.file, &(start + part.start..start + part.end)),
            None => place.clone(),
        })
    }

    /// Fills in the text of a file beside the recipe, which was read.
    pub(super) fn source(
        &self,
        check: &mut Check<'_>,
        path: &std::path::Path,
        template: &str,
    ) -> Option<String> {
        if self.fill(template).is_ok() {
            // Only a file with mistakes is among the texts of the report.
            return self.fill(template).ok();
        }
        let file = check.mistakes.file(path.to_owned(), template.to_owned());
        self.filled(check, template, |part| Place::new(file, &part))
    }

    fn filled(
        &self,
        check: &mut Check<'_>,
        template: &str,
        place: impl Fn(Range<usize>) -> Place,
    ) -> Option<String> {
        match self.fill(template) {
            Ok(text) => Some(text),
            Err(wrong) => {
                for Wrong { part, found, help } in wrong {
                    let expected = "expected a name of [variables], or image.name or image.version";
                    let mistake = Mistake::at(&place(part), found, expected);
                    check.add(match help {
                        Some(help) => mistake.help(help),
                        None => mistake,
                    });
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        let pairs = [("zone", "eu-1"), ("empty", ""), ("image.name", "node")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Variables(pairs.into())
    }

    #[test]
    fn names_in_braces_are_replaced_and_nothing_else_is() {
        for (template, filled) in [
            ("", ""),
            ("a {{ zone }} b{{zone}}", "a eu-1 beu-1"),
            ("{{ empty }}{ zone }}}", "{ zone }}}"),
            ("{{{{ .Values }} {{ image.name }}", "{{ .Values }} node"),
            ("ü{{ zone }}ü\n", "üeu-1ü\n"),
        ] {
            assert_eq!(variables().fill(template).unwrap(), filled, "{template}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_found_with_its_part() {
        let template = "a {{ zon }} {{ zone\n}} {{ x.y }}";
        let wrong = variables().fill(template).unwrap_err();
        let parts: Vec<&str> = wrong
            .iter()
            .map(|wrong| &template[wrong.part.clone()])
            .collect();
        assert_eq!(parts, ["{{ zon }}", "{{ zone", "{{ x.y }}"]);
        assert_eq!(wrong[0].help.as_deref(), Some("did you mean `zone`?"));
        assert!(wrong[2].found.contains("`x.y`"), "{wrong:?}");
    }
}
