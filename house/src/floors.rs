//! The floors of a crate: the groups of `mod` lines in its root file, lowest first.
//!
//! A floor is a plain comment that begins with `// Floor: `, followed by `mod` lines. It ends at the first empty line:
//! `cargo fmt` sorts `mod` lines only up to an empty line, so the modules stay on their floors.

/// A group of modules that do not use each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Its name, from the comment.
    pub name: String,
    /// Its modules.
    pub modules: Vec<String>,
}

/// The floors of a root file, and all its `mod` lines.
#[derive(Clone, Debug, Default)]
pub struct Floors {
    /// The floors, lowest first.
    pub floors: Vec<Floor>,
    /// Each declared module and its line, from 1.
    pub declared: Vec<(String, usize)>,
}

impl Floors {
    /// Reads the text of a root file.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut found = Self::default();
        let mut open = false;
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = line.strip_prefix("// Floor: ") {
                open = true;
                found.floors.push(Floor {
                    name: name.trim().to_owned(),
                    modules: Vec::new(),
                });
            } else if let Some(module) = declared(line) {
                found.declared.push((module.to_owned(), number + 1));
                if open && let Some(floor) = found.floors.last_mut() {
                    floor.modules.push(module.to_owned());
                }
            } else if !line.starts_with("//") && !line.starts_with("#[") {
                open = false;
            }
        }
        found
    }

    /// The floor of a module, from 0 at the bottom.
    #[must_use]
    pub fn of(&self, module: &str) -> Option<usize> {
        self.floors
            .iter()
            .position(|floor| floor.modules.iter().any(|name| name == module))
    }

    /// The line that declares a module, from 1.
    #[must_use]
    pub fn line_of(&self, module: &str) -> usize {
        let found = self.declared.iter().find(|(name, _)| name == module);
        found.map_or(1, |(_, line)| *line)
    }
}

/// The module that a line at the left margin declares.
fn declared(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(crate) "))
        .unwrap_or(line);
    let rest = rest.strip_prefix("mod ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_ends_at_an_empty_line() {
        let text = "//! Head.\n\n// Floor: ground\n// More about it.\nmod a;\n/// Doc.\n#[cfg(unix)]\npub mod b;\n\nmod c;\n\n\
                    // Floor: top\npub(crate) mod d {\n    mod inner;\n}\n";
        let floors = Floors::read(text);
        let names: Vec<_> = floors
            .floors
            .iter()
            .map(|floor| floor.name.as_str())
            .collect();
        assert_eq!(names, ["ground", "top"]);
        assert_eq!(floors.floors[0].modules, ["a", "b"]);
        assert_eq!(floors.floors[1].modules, ["d"]);
        assert_eq!(
            (floors.of("b"), floors.of("c"), floors.of("d")),
            (Some(0), None, Some(1))
        );
        assert_eq!(floors.line_of("c"), 10);
    }
}
