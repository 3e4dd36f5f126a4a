//! Where the words of a checked recipe are written: what only a lock or a build can judge, as the name of a package, is reported
//! with its place as well.

use std::ops::Range;
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

    /// A word of a list of names that a table of another list has: the table's number from 0, and the list's key in it.
    pub(crate) fn word_of_item(
        &self,
        list: &[&str],
        (number, key): (usize, &str),
        word: &str,
    ) -> Option<Place> {
        let table = self.0.tree.at(list)?.items().get(number)?;
        let items = table.at(&[key])?.items();
        let item = items.iter().find(|item| item.text() == Some(word))?;
        Some(item.place.clone())
    }

    /// An item of the list at these keys, by its number from 0.
    pub(crate) fn item(&self, list: &[&str], number: usize) -> Option<Place> {
        let item = self.0.tree.at(list)?.items().get(number)?;
        Some(item.place.clone())
    }

    /// A part of the text at these keys, by its bytes in the text's value; the whole text if that is written with escapes.
    pub(crate) fn inside(&self, keys: &[&str], value: &str, part: &Range<usize>) -> Option<Place> {
        let place = self.value(keys)?;
        let written = self.0.texts.text(place.file).get(place.start..place.end);
        let Some(at) = written.and_then(|written| written.find(value)) else {
            return Some(place);
        };
        Some(Place {
            start: place.start + at + part.start,
            end: place.start + at + part.end,
            ..place
        })
    }
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
        assert_eq!(
            at(places.inside(&content, "one\ntwo\n", &(4..7))),
            Some("two")
        );
        let whole = at(places.inside(&content, "one\ttwo\n", &(4..7))).unwrap();
        assert!(whole.starts_with("\"\"\""), "{whole}");
    }
}
