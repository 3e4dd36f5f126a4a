//! Where the words of a checked recipe are written: what only a lock or a build can judge, as the name of a package, is reported
//! with its place as well.

use std::sync::Arc;

use super::mistakes::{Mistakes, Place};
use super::tree::Node;

/// The texts of a recipe and of those that it extends, with the places of their words.
///
/// It is in no key: a moved line changes nothing of an image.
#[derive(Clone, Debug)]
pub struct Places(Arc<Written>);

#[derive(Debug)]
struct Written {
    texts: Mistakes,
    tree: Node,
}

impl Places {
    /// The places in a merged tree; `texts` has the files that it was read from.
    pub(super) fn new(texts: &Mistakes, tree: &Node) -> Self {
        Self(Arc::new(Written {
            texts: texts.without_any(),
            tree: tree.clone(),
        }))
    }

    /// No mistakes yet, with the texts of the files.
    #[must_use]
    pub fn mistakes(&self) -> Mistakes {
        self.0.texts.clone()
    }

    /// The value at these keys; if it is a default, the nearest table around it that is written.
    pub(crate) fn value(&self, keys: &[&str]) -> Option<Place> {
        let tree = &self.0.tree;
        if let Some(node) = tree.at(keys) {
            return Some(node.place.clone());
        }
        let (_, around) = keys.split_last()?;
        self.key(around)
    }

    /// The last of these keys; if it is not written, the nearest table around it that is.
    pub(crate) fn key(&self, keys: &[&str]) -> Option<Place> {
        let (_, around) = keys.split_last()?;
        self.written_key(keys).or_else(|| self.key(around))
    }

    /// The last of these keys, if it is written.
    pub(crate) fn written_key(&self, keys: &[&str]) -> Option<Place> {
        let (last, around) = keys.split_last()?;
        Some(self.0.tree.at(around)?.entry(last)?.key.clone())
    }

    /// A word in the list at these keys, if it is written there.
    pub(crate) fn word(&self, list: &[&str], word: &str) -> Option<Place> {
        let items = self.0.tree.at(list)?.items();
        let item = items.iter().find(|item| item.text() == Some(word))?;
        Some(item.place.clone())
    }

    /// A word inside the text at these keys, if it is there once; else the text.
    pub(crate) fn inside(&self, keys: &[&str], word: &str) -> Option<Place> {
        let place = self.value(keys)?;
        let text = self.0.texts.text(place.file).get(place.start..place.end);
        let within = text.and_then(|text| only_word(text, word));
        Some(match within {
            Some(at) => Place {
                start: place.start + at,
                end: place.start + at + word.len(),
                ..place
            },
            None => place,
        })
    }
}

/// The byte at which a text has this word, if it has it once.
fn only_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut found = text.match_indices(word).filter(|(at, word)| {
        let (before, after) = (&text[..*at], &text[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    });
    let (at, _) = found.next()?;
    found.next().is_none().then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::tree;

    fn places(text: &str) -> Places {
        let mut mistakes = Mistakes::default();
        let file = mistakes.file("a.toml".into(), text.to_owned());
        let tree = tree::parse(file, &mut mistakes);
        Places::new(&mistakes, &tree)
    }

    #[test]
    fn words_keys_and_values_have_places() {
        let text = "[debian]\npackages = [\"a\", \"jq\"]\n[files.\"/etc/x.conf\"]\ncontent = \"\"\"\none\ntwo\n\"\"\"\n";
        let places = places(text);
        let at = |place: Option<Place>| place.map(|place| &text[place.start..place.end]);
        let packages = ["debian", "packages"];
        assert_eq!(at(places.word(&packages, "jq")), Some("\"jq\""));
        assert_eq!(at(places.word(&packages, "bash")), None);
        assert_eq!(at(places.key(&packages)), Some("packages"));
        // What is not written is a default: its table is shown.
        assert_eq!(at(places.value(&["debian", "components"])), Some("debian"));
        assert_eq!(at(places.value(&["kernel", "package"])), None);
        let content = ["files", "/etc/x.conf", "content"];
        assert_eq!(at(places.inside(&content, "two")), Some("two"));
        let whole = at(places.inside(&content, "three")).unwrap();
        assert!(whole.starts_with("\"\"\""), "{whole}");
    }

    #[test]
    fn a_word_is_found_if_it_is_there_once_and_no_part_of_another() {
        for (text, word, expected) in [
            ("overlay\nbr_netfilter\n", "br_netfilter", Some(8)),
            ("a-b a_b b", "b", Some(8)),
            ("b b", "b", None),
            ("", "b", None),
        ] {
            assert_eq!(only_word(text, word), expected, "{text:?}");
        }
    }
}
