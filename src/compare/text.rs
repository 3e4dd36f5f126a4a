//! The comparison as text for people: `-` what only the first image has, `+` what only the second has, `~` what differs.

use std::fmt::{self, Display, Formatter};

use super::files::{FileChange, summed};
use super::{Comparison, Sets};
use crate::host::progress;

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            writeln!(f, "no difference")?;
        }
        for value in &self.values {
            line(
                f,
                "",
                &value.name,
                value.from.as_deref(),
                value.to.as_deref(),
            )?;
        }
        sets(f, "command line", &self.cmdline)?;
        sets(f, "modules of the initramfs", &self.modules)?;
        if !self.packages.is_empty() {
            writeln!(f, "packages")?;
        }
        for package in &self.packages {
            let text = |versions: &[String]| (!versions.is_empty()).then(|| versions.join(", "));
            let (from, to) = (text(&package.from), text(&package.to));
            line(f, "  ", &package.name, from.as_deref(), to.as_deref())?;
        }
        if let Some(files) = self.files.as_deref().filter(|files| !files.is_empty()) {
            writeln!(f, "files")?;
            for change in summed(files) {
                writeln!(f, "  {change}")?;
            }
        }
        let has_other_root = self.values.iter().any(|value| value.name == "root hash");
        if has_other_root && self.files.as_ref().is_some_and(Vec::is_empty) {
            writeln!(
                f,
                "note: the roots have equal files, and their file systems were written otherwise"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

fn line(
    f: &mut Formatter<'_>,
    indent: &str,
    name: &str,
    from: Option<&str>,
    to: Option<&str>,
) -> fmt::Result {
    match (from, to) {
        (Some(from), Some(to)) => writeln!(f, "{indent}~ {name} {from} → {to}"),
        (Some(from), None) => writeln!(f, "{indent}- {name} {from}"),
        (None, Some(to)) => writeln!(f, "{indent}+ {name} {to}"),
        (None, None) => Ok(()),
    }
}

fn sets(f: &mut Formatter<'_>, title: &str, sets: &Sets) -> fmt::Result {
    if *sets != Sets::default() {
        writeln!(f, "{title}")?;
    }
    for (sign, names) in [('-', &sets.removed), ('+', &sets.added)] {
        for name in names {
            writeln!(f, "  {sign} {name}")?;
        }
    }
    Ok(())
}

impl Display for FileChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        let size = |bytes: u64| progress::bytes(bytes);
        match (self.from, self.to) {
            (None, Some(0)) => write!(f, "+ {path}")?,
            (Some(0), None) => write!(f, "- {path}")?,
            (None, Some(to)) => write!(f, "+ {path} {}", size(to))?,
            (Some(from), None) => write!(f, "- {path} {}", size(from))?,
            (from, to) => {
                write!(f, "~ {path} {}", self.what.join(", "))?;
                if let (Some(from), Some(to)) = (from, to)
                    && from != to
                {
                    write!(f, ", {} → {}", size(from), size(to))?;
                }
            }
        }
        if self.count > 1 {
            write!(f, ", {} paths", self.count)?;
        }
        Ok(())
    }
}
