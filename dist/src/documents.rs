//! Manual pages and completions, which the program itself prints, and the texts beside them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Files by their paths, with their modes.
pub(crate) type Files = BTreeMap<String, (u32, Vec<u8>)>;

/// Where each shell looks for completions, below a prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/slipway"),
    ("fish", "share/fish/vendor_completions.d/slipway.fish"),
    ("zsh", "share/zsh/site-functions/_slipway"),
];

/// The folder of the texts, below a prefix.
const TEXTS: &str = "share/doc/slipway";
/// The text that names the compiler, which makes the same bytes of the same sources again.
const COMPILER: &str = "compiler.txt";

/// The program's pages and completions.
pub(crate) fn of(program: &Path) -> Result<Files> {
    let mut files = Files::new();
    for (shell, path) in COMPLETIONS {
        let script = ask(program, &["completions", shell])?;
        files.insert(path.to_owned(), (0o644, script));
    }
    let names = ask(program, &["manual", "--list"])?;
    let names = String::from_utf8(names).context("reading the names of the manual pages")?;
    for name in names.lines() {
        let page = ask(program, &["manual", name])?;
        files.insert(format!("share/man/man1/{name}.1"), (0o644, page));
    }
    Ok(files)
}

/// The repository's texts, and what the compiler of the program says of itself, if it is known.
pub(crate) fn texts(repository: &Path, compiler: Option<Vec<u8>>) -> Result<Files> {
    let mut files = Files::new();
    for name in ["README.md", "CHANGELOG.md"] {
        let path = repository.join(name);
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        files.insert(format!("{TEXTS}/{name}"), (0o644, text));
    }
    if let Some(compiler) = compiler {
        files.insert(format!("{TEXTS}/{COMPILER}"), (0o644, compiler));
    }
    Ok(files)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the program that was just compiled, for its own text"
)]
fn ask(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let shown = format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {shown}"))?;
    ensure!(output.status.success(), "{shown}: {}", output.status);
    ensure!(!output.stdout.is_empty(), "{shown}: it printed nothing");
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_compiled_here_has_its_compiler_among_the_texts() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let said = b"rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\n".to_vec();
        let files = texts(repository, Some(said.clone())).unwrap();
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        let expected = [
            "share/doc/slipway/CHANGELOG.md",
            "share/doc/slipway/README.md",
            "share/doc/slipway/compiler.txt",
        ];
        assert_eq!(names, expected);
        assert_eq!(files["share/doc/slipway/compiler.txt"], (0o644, said));
        // What compiled a program of elsewhere is not known.
        let files = texts(repository, None).unwrap();
        assert!(
            files
                .keys()
                .map(String::as_str)
                .eq(expected[..2].iter().copied())
        );
    }
}
