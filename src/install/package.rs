//! A package of a tree: its control files and its paths.

use anyhow::{Context, Result};

use super::deb::{self, ControlFile};
use crate::debian::pinned::Deb;

/// A package that is or will be unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Its control files, `control` among them.
    pub(crate) control: Vec<ControlFile>,
    /// All its paths in dpkg's form (`/.`, `/usr`, …), in the order of the archive; empty before it is unpacked.
    pub(crate) paths: Vec<String>,
}

impl Unpacked {
    /// Reads the control files of packages.
    pub(super) fn read(debs: &[Deb]) -> Result<Vec<Self>> {
        let read = |deb: &Deb| {
            let about = || {
                let package = &deb.package;
                let (name, version) = (&package.name, &package.version);
                format!(
                    "reading the package {name} {version}, {}",
                    deb.path.display()
                )
            };
            let control = deb::control(&deb.path).with_context(about)?;
            Ok(Self {
                control,
                paths: Vec::new(),
            })
        };
        debs.iter().map(read).collect()
    }

    /// The text of a control file, empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.control
            .iter()
            .find(|file| file.name == name)
            .and_then(|file| std::str::from_utf8(&file.content).ok())
            .unwrap_or_default()
    }

    /// Whether it has a control file with a content, which need not be a text: dpkg runs any program as a script.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut files = self.control.iter();
        files.any(|file| file.name == name && !file.content.is_empty())
    }

    /// A field of the control file, empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        deb::field(self.text("control"), name).unwrap_or_default()
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.field("Package")
    }

    /// Its name and version, for people.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.name(), self.field("Version"))
    }

    /// Its configuration files (deb-conffiles(5)): the path without the first slash, and the flag before it.
    pub(super) fn conffiles(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.text("conffiles").lines().filter_map(|line| {
            let line = line.trim_end();
            let (flag, path) = line.split_at(line.find('/')?);
            let flag = flag.trim_end();
            Some((
                path.trim_start_matches('/'),
                (!flag.is_empty()).then_some(flag),
            ))
        })
    }

    /// A package of these control fields.
    #[cfg(test)]
    pub(super) fn of(control: &str) -> Self {
        Self {
            control: vec![ControlFile {
                name: "control".into(),
                mode: 0o644,
                content: control.into(),
            }],
            paths: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_in_latin_1_is_a_script() {
        let mut package = Unpacked::of("Package: a\n");
        for (name, content) in [
            ("preinst", &b"#!/bin/sh\n# J\xf6rg\n"[..]),
            ("postinst", b""),
        ] {
            package.control.push(ControlFile {
                name: name.into(),
                mode: 0o755,
                content: content.into(),
            });
        }
        let found = ["preinst", "postinst", "prerm"].map(|name| package.has(name));
        assert_eq!(found, [true, false, false]);
    }
}
