//! The test programs that Cargo compiles.

#![allow(
    clippy::disallowed_methods,
    reason = "Cargo, and the programs that it compiled"
)]

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// A compiled test program of one package.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Program {
    /// The package's name.
    pub(crate) package: String,
    /// The package's folder, in which its tests run.
    pub(crate) folder: PathBuf,
    /// Its first source file, from that folder.
    pub(crate) source: PathBuf,
    /// The program.
    pub(crate) file: PathBuf,
    /// Its arguments.
    pub(crate) words: &'static [&'static str],
}

impl Program {
    /// What people read: package, source file and arguments.
    pub(crate) fn name(&self) -> String {
        let (package, source) = (&self.package, self.source.display());
        self.words
            .iter()
            .fold(format!("{package} {source}"), |name, word| {
                name + " " + word
            })
    }

    /// The program as Cargo starts it, with the variables that the tests read when they run.
    pub(crate) fn command(&self) -> Command {
        let mut command = without_our_own(Command::new(&self.file));
        command
            .args(self.words)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        command
    }
}

/// Without what Cargo sets for this program: it would be that of another package.
fn without_our_own(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Compiles all tests as `cargo test --workspace --release` does and returns their programs, sorted by package. What Cargo
/// says goes to this program's own stderr.
pub(crate) fn compile() -> Result<Vec<Program>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = without_our_own(Command::new(&cargo))
        .args(["test", "--workspace", "--release", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", cargo.display()))?;
    ensure!(output.status.success(), "the tests do not compile");
    let said = String::from_utf8(output.stdout).context("what Cargo says")?;
    let programs = programs(&said)?;
    ensure!(!programs.is_empty(), "Cargo names no test program");
    Ok(programs)
}

/// The test programs in Cargo's messages, one JSON object a line (the Cargo book, "External tools").
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).with_context(|| format!("Cargo says {line:?}"))?;
        let (Some("compiler-artifact"), Some(true), Some(file)) = (
            message["reason"].as_str(),
            message["profile"]["test"].as_bool(),
            message["executable"].as_str(),
        ) else {
            continue;
        };
        let word = |value: &Value| {
            value
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("of {file} Cargo says {line:?}"))
        };
        let manifest = PathBuf::from(word(&message["manifest_path"])?);
        let folder = manifest
            .parent()
            .context("a manifest is in a folder")?
            .to_path_buf();
        let source = PathBuf::from(word(&message["target"]["src_path"])?);
        found.push(Program {
            package: package(&word(&message["package_id"])?)?.to_owned(),
            source: source
                .strip_prefix(&folder)
                .unwrap_or(&source)
                .to_path_buf(),
            file: Path::new(file).to_path_buf(),
            folder,
            words: &[],
        });
    }
    found.sort();
    Ok(found)
}

/// The name in a package's id: `path+file:///src/slipway/api#0.1.0`, or `…#slipway@0.1.0` where the folder has another name
/// (the Cargo book, "Package ID specifications").
fn package(id: &str) -> Result<&str> {
    let Some((place, version)) = id.rsplit_once('#') else {
        bail!("{id:?} is no package's id");
    };
    let name = match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or_default(),
    };
    ensure!(!name.is_empty(), "{id:?} names no package");
    Ok(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/main#slipway@0.1.0","manifest_path":"/s/main/Cargo.toml","target":{"kind":["test"],"name":"cli","src_path":"/s/main/tests/cli.rs"},"profile":{"test":true},"executable":"/t/cli-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/main/api#0.1.0","manifest_path":"/s/main/api/Cargo.toml","target":{"kind":["lib"],"name":"api","src_path":"/s/main/api/src/lib.rs"},"profile":{"test":true},"executable":"/t/api-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/main#slipway@0.1.0","manifest_path":"/s/main/Cargo.toml","target":{"kind":["bin"],"name":"slipway","src_path":"/s/main/src/main.rs"},"profile":{"test":false},"executable":"/t/slipway"}"#,
            "\n",
            r#"{"reason":"build-script-executed","package_id":"path+file:///s/main#slipway@0.1.0"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let names: Vec<String> = programs(messages)
            .unwrap()
            .iter()
            .map(Program::name)
            .collect();
        assert_eq!(names, ["api src/lib.rs", "slipway tests/cli.rs"]);
        assert!(programs("warning: x").is_err());
    }
}
