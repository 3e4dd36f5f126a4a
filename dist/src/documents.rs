//! Manual pages and completions, which the program itself prints.

use std::collections::BTreeMap;
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
