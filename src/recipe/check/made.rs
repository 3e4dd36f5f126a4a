//! Files that the words of a recipe come to, as those of `[sysctl]`: they are laid as if they stood in `[files]`.

use super::files::{FileEntry, FileKind};
use super::{Check, Place};
use crate::recipe::mistakes::Mistake;

/// A file that a table or a key of the recipe comes to.
pub(super) struct Made {
    entry: FileEntry,
    place: Place,
    /// The word of the recipe, for messages.
    word: &'static str,
}

impl Made {
    /// A file of root's with this text below a line that says who wrote it.
    pub(super) fn text(
        check: &Check<'_>,
        path: &str,
        word: &'static str,
        place: &Place,
        text: &str,
    ) -> Self {
        let text = format!("# {word} of the recipe. Made by the build.\n{text}");
        Self::new(
            check,
            path,
            word,
            place,
            (FileKind::Content(text.into_bytes()), 0o644),
        )
    }

    /// A link.
    pub(super) fn link(
        check: &Check<'_>,
        path: &str,
        word: &'static str,
        place: &Place,
        target: &str,
    ) -> Self {
        let kind = FileKind::Link(target.to_owned());
        Self::new(check, path, word, place, (kind, 0o777))
    }

    fn new(
        check: &Check<'_>,
        path: &str,
        word: &'static str,
        place: &Place,
        (kind, mode): (FileKind, u32),
    ) -> Self {
        Self {
            entry: FileEntry {
                path: path.to_owned(),
                kind,
                mode,
                user: "root".to_owned(),
                group: "root".to_owned(),
                origin: check.mistakes.position(place),
            },
            place: place.clone(),
            word,
        }
    }
}

/// The recipe's files and the made ones, sorted by path, with their places. A path that both have is a mistake: one of them would be lost.
pub(super) fn with_made(
    check: &mut Check<'_>,
    mut files: Vec<(FileEntry, Place)>,
    made: Vec<Made>,
) -> (Vec<FileEntry>, Vec<Place>) {
    for Made { entry, place, word } in made {
        let path = &entry.path;
        if let Some((_, own)) = files.iter().find(|(file, _)| file.path == *path) {
            let found = format!("{path} is what {word} writes");
            let mistake = Mistake::at(own, found, format!("expected one of the file and {word}"));
            check.add(mistake.also(&place, "given here"));
        } else {
            files.push((entry, place));
        }
    }
    files.sort_by(|(one, _), (other, _)| one.path.cmp(&other.path));
    files.into_iter().unzip()
}
