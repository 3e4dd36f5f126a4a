//! Mistakes of a recipe: all are collected and shown, each with line, column and the expected value.

use std::fmt;
use std::io::IsTerminal as _;
use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

/// What a value of the command line is called in place of a file.
pub(super) const SETTING: &str = "--set";

/// A byte range in one of the recipe's files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The file's number in [`Mistakes`].
    pub file: usize,
    /// First byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Place {
    pub(crate) fn new(file: usize, span: &Range<usize>) -> Self {
        Self {
            file,
            start: span.start,
            end: span.end,
        }
    }

    /// The beginning of a file, for a missing key.
    pub(super) const fn top(file: usize) -> Self {
        Self {
            file,
            start: 0,
            end: 0,
        }
    }
}

/// One mistake.
#[derive(Clone, Debug)]
pub(crate) struct Mistake {
    place: Option<Place>,
    found: String,
    expected: String,
    help: Option<String>,
    also: Option<(Place, String)>,
}

impl Mistake {
    /// A mistake at a position, with the found and the expected value.
    pub(crate) fn at(place: &Place, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::of(Some(place.clone()), found, expected)
    }

    /// A mistake without a position.
    pub(crate) fn nowhere(found: impl Into<String>) -> Self {
        Self::of(None, found, "")
    }

    /// A mistake with a position, if the recipe has one: what it judges may be a default.
    pub(crate) fn of(
        place: Option<Place>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            place,
            found: found.into(),
            expected: expected.into(),
            help: None,
            also: None,
        }
    }

    /// Adds the remedy.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the valid word that is nearest to the found one, if one is near.
    pub(crate) fn nearest<'a>(
        mut self,
        word: &str,
        valid: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        if self.help.is_none() {
            self.help = nearest(word, valid).map(|near| format!("did you mean `{near}`?"));
        }
        self
    }

    /// Adds the remedy unless there is one already.
    pub(crate) fn or_help(mut self, help: String) -> Self {
        self.help.get_or_insert(help);
        self
    }

    /// The same without the users and passwords of addresses in its texts.
    fn masked(mut self) -> Self {
        for text in [&mut self.found, &mut self.expected] {
            *text = fetch::masked(text);
        }
        self.help = self.help.as_deref().map(fetch::masked);
        self.also = self.also.map(|(place, why)| (place, fetch::masked(&why)));
        self
    }

    /// Adds a second, related position.
    pub(crate) fn also(mut self, place: &Place, why: impl Into<String>) -> Self {
        self.also = Some((place.clone(), why.into()));
        self
    }
}

/// All mistakes of a recipe and its parents, with the texts of the files.
#[derive(Clone, Debug, Default)]
pub struct Mistakes {
    files: Vec<(PathBuf, String)>,
    /// Their texts as reports show them: without the users and passwords of addresses, byte for byte at the same places.
    shown: Vec<String>,
    list: Vec<Mistake>,
}

impl Mistakes {
    /// Adds a file; gives its number for [`Place`].
    pub(crate) fn file(&mut self, path: PathBuf, text: String) -> usize {
        self.shown.push(fetch::masked(&text));
        self.files.push((path, text));
        self.files.len() - 1
    }

    /// The files alone.
    pub(super) fn without_any(&self) -> Self {
        Self {
            files: self.files.clone(),
            shown: self.shown.clone(),
            list: Vec::new(),
        }
    }

    pub(super) fn path(&self, file: usize) -> &std::path::Path {
        &self.files[file].0
    }

    pub(super) fn text(&self, file: usize) -> &str {
        &self.files[file].1
    }

    /// The files that are recipes.
    pub(super) fn recipes(&self) -> impl Iterator<Item = &PathBuf> {
        self.files().filter(|file| file.as_os_str() != SETTING)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().map(|(path, _)| path)
    }

    pub(crate) fn add(&mut self, mistake: Mistake) {
        self.list.push(mistake.masked());
    }

    /// Nothing, or all mistakes as an error.
    ///
    /// # Errors
    /// If there are any.
    pub(crate) fn none(self) -> Result<(), Self> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(self),
        }
    }

    /// The number of mistakes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no mistakes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The complete report: every mistake with its file, line, column and text.
    #[must_use]
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let mut list: Vec<&Mistake> = self.list.iter().collect();
        list.sort_by(|a, b| a.place.cmp(&b.place));
        let mut out: Vec<String> = list
            .into_iter()
            .map(|mistake| renderer.render(&[self.group(mistake)]))
            .collect();
        if self.list.len() > 1 {
            out.push(format!("{} mistakes", self.list.len()));
        }
        out.join("\n\n")
    }

    /// Path, line and column (in characters) of a position, lines and columns from 1.
    fn coordinates(&self, place: &Place) -> (String, usize, usize) {
        let (path, text) = &self.files[place.file];
        let before = text.get(..place.start).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let lines = before.matches('\n').count();
        let column = line.chars().count() + 1;
        (path.display().to_string(), lines + 1, column)
    }

    /// A position as `path:line:column`.
    pub(super) fn position(&self, place: &Place) -> String {
        let (path, line, column) = self.coordinates(place);
        format!("{path}:{line}:{column}")
    }

    /// Every mistake as an object for programs: `file`, `line` and `column` from 1 (in characters), `found`, `expected`,
    /// `suggestion`; `null` where there is none.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let object = |mistake: &Mistake| {
            let place = mistake.place.as_ref();
            let place = place.map(|place| self.coordinates(place));
            let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            json!({
                "file": place.as_ref().map(|(file, ..)| file),
                "line": place.as_ref().map(|(_, line, _)| line),
                "column": place.as_ref().map(|(.., column)| column),
                "found": mistake.found,
                "expected": given(&mistake.expected),
                "suggestion": mistake.help,
            })
        };
        let mut list: Vec<&Mistake> = self.list.iter().collect();
        list.sort_by(|a, b| a.place.cmp(&b.place));
        list.into_iter().map(object).collect()
    }

    fn group<'a>(&'a self, mistake: &'a Mistake) -> Group<'a> {
        let title = Level::ERROR.primary_title(&mistake.found);
        let mut group = Group::with_title(title);
        if let Some(place) = &mistake.place {
            let mut annotation = AnnotationKind::Primary.span(place.start..place.end);
            if !mistake.expected.is_empty() {
                annotation = annotation.label(&mistake.expected);
            }
            let mut snippet = self.snippet(place).annotation(annotation);
            if let Some((other, why)) = mistake.also.as_ref().filter(|a| a.0.file == place.file) {
                snippet = snippet.annotation(
                    AnnotationKind::Context
                        .span(other.start..other.end)
                        .label(why),
                );
            }
            group = group.element(snippet);
            if let Some((other, why)) = mistake.also.as_ref().filter(|a| a.0.file != place.file) {
                let annotation = AnnotationKind::Context
                    .span(other.start..other.end)
                    .label(why);
                group = group.element(self.snippet(other).annotation(annotation));
            }
        }
        if let Some(help) = &mistake.help {
            group = group.element(Level::HELP.message(help));
        }
        group
    }

    fn snippet(&self, place: &Place) -> Snippet<'_, annotate_snippets::Annotation<'_>> {
        let (path, text) = (&self.files[place.file].0, &self.shown[place.file]);
        Snippet::source(text.as_str()).path(path.to_string_lossy())
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(std::io::stderr().is_terminal()))
    }
}

impl std::error::Error for Mistakes {}

/// The valid word that is nearest to `word`, if one is near enough to be the intended one.
pub(crate) fn nearest<'a>(word: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    valid
        .into_iter()
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        // Of equally near ones always the same, whatever their order.
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_near_words_are_offered() {
        let valid = ["packages", "mirror", "snapshots"];
        assert_eq!(nearest("pakages", valid), Some("packages"));
        assert_eq!(nearest("Mirror", valid), Some("mirror"));
        assert_eq!(nearest("kernel", valid), None);
    }
}
