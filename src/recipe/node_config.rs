//! Node configs on the workstation: checked and merged with the code of the init.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use ignition::butane::Options;
use ignition::contents::gzip;
use ignition::local_files::NoFiles;
use ignition::{Config, Entry, Kind, Report, config};
use serde_json::{Value, json};

use crate::host::local_files::LocalFiles;

/// The result for one config.
#[derive(Debug)]
pub struct Verdict {
    /// The findings, in the order of the rules.
    pub report: Report,
    /// The config in the format of the newest version, if it has no error.
    pub config: Option<Config>,
}

/// The local files that a Butane config may name: those of a folder, or none.
fn options(files: Option<&LocalFiles>) -> Options<'_> {
    Options {
        files: match files {
            Some(files) => files,
            None => &NoFiles,
        },
        pack: Some(gzip),
    }
}

/// Checks a config by the rules of its version.
#[must_use]
pub fn check(text: &[u8], name: &str, files: Option<&LocalFiles>) -> Verdict {
    match Config::parse_with(text, name, options(files)) {
        Ok((config, report)) => Verdict {
            report,
            config: Some(config),
        },
        Err(report) => Verdict {
            report,
            config: None,
        },
    }
}

/// Reads a config's file and checks it.
///
/// # Errors
/// If the file cannot be read.
pub fn check_file(path: &Path, files: Option<&LocalFiles>) -> Result<Verdict> {
    let (text, name) = read(path)?;
    Ok(check(&text, &name, files))
}

/// A config and its name in findings; `-` is stdin.
fn read(path: &Path) -> Result<(Vec<u8>, String)> {
    if path.to_str() == Some("-") {
        let mut text = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut text);
        read.context("reading stdin")?;
        return Ok((text, "stdin".to_owned()));
    }
    let name = path.display().to_string();
    let text = std::fs::read(path).with_context(|| format!("reading {name}"))?;
    Ok((text, name))
}

/// Translates a Butane config's file; gives the Ignition config, if the file has no error, and the
/// findings. `-` is stdin.
///
/// # Errors
/// If the file cannot be read.
pub fn from_butane(path: &Path, files: Option<&LocalFiles>) -> Result<(Option<Value>, Report)> {
    let (text, name) = read(path)?;
    Ok(match config::from_butane(&text, &name, options(files)) {
        Ok((config, report)) => (Some(config), report),
        Err(report) => (None, report),
    })
}

/// A config as Ignition JSON for an image, with the local files beside it.
///
/// # Errors
/// All mistakes.
pub fn bake(text: &[u8], path: &Path) -> Result<Vec<u8>, Report> {
    let files = LocalFiles::beside(path);
    let name = path.display().to_string();
    config::to_ignition(text, &name, options(Some(&files))).map(|(text, _)| text)
}

/// The findings as JSON.
#[must_use]
pub fn entries(report: &Report) -> Vec<Value> {
    report.entries.iter().map(entry).collect()
}

impl Verdict {
    /// The result as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "accept": self.config.is_some(),
            "entries": entries(&self.report),
            "translated": self.config.as_ref().map(Config::to_json),
        })
    }
}

fn entry(entry: &Entry) -> Value {
    let kind = match entry.kind {
        Kind::Error => "error",
        Kind::Warning => "warning",
    };
    let mut out = json!({ "kind": kind, "path": entry.path, "message": entry.message });
    if let Some(at) = &entry.at {
        out["line"] = at.line.into();
        out["column"] = at.column.into();
    }
    out
}

/// Checks cases of the form `{"name", "version", "raw"}`, one a line, and gives one line for each:
/// `{"name", "version", "accept", "entries", "translated"}`.
///
/// # Errors
/// If a line is not such a case; the message names it.
pub fn check_batch(cases: &str) -> Result<String> {
    batch(cases, |case| {
        let raw = case["raw"].as_str().context("it has no text \"raw\"")?;
        let mut answer = check(raw.as_bytes(), "raw", None).to_json();
        answer["name"] = case["name"].clone();
        answer["version"] = case["version"].clone();
        Ok(answer)
    })
}

/// Merges `child` over `parent`, and checks the result.
///
/// # Errors
/// A [`Report`] of the mistakes of either or of the result.
pub fn merge(parent: &Path, child: &Path, files: Option<&LocalFiles>) -> Result<Value> {
    let mut report = Report::default();
    let mut configs = Vec::new();
    for path in [parent, child] {
        let verdict = check_file(path, files)?;
        report.absorb(verdict.report);
        configs.extend(verdict.config);
    }
    match configs.as_slice() {
        [parent, child] => Ok(parent.merge(child)?.0.to_json()),
        _ => Err(report.into()),
    }
}

/// Merges cases of the form `{"name", "parent", "child"}`, one a line, and gives `{"name", "merged"}` for each. The two
/// are merged whether they are valid or not, as long as they can be parsed.
///
/// # Errors
/// If a line is not such a case; the message names it.
pub fn merge_batch(cases: &str) -> Result<String> {
    batch(cases, |case| {
        let read = |name: &str| -> Result<Config> {
            Ok(Config::read(case[name].to_string().as_bytes(), name)?.0)
        };
        let merged = read("parent")?.over(&read("child")?);
        Ok(json!({ "name": case["name"], "merged": merged.to_json() }))
    })
}

fn batch(cases: &str, answer: impl Fn(&Value) -> Result<Value>) -> Result<String> {
    let mut out = String::new();
    for (i, line) in cases.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let case: Value =
            serde_json::from_str(line).with_context(|| format!("line {} is not JSON", i + 1))?;
        let answer = answer(&case).with_context(|| format!("answering line {}", i + 1))?;
        out.push_str(&answer.to_string());
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_answered_line_by_line() {
        let cases = concat!(
            r#"{"name": "a", "version": "3.0.0", "raw": "{\"ignition\": {\"version\": \"3.0.0\"}, \"x\": 1}"}"#,
            "\n\n",
            r#"{"name": "b", "version": "3.0.0", "raw": "{\"ignition\": {\"version\": \"1.0.0\"}}"}"#,
        );
        let answers = check_batch(cases).unwrap();
        let lines: Vec<Value> = answers
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["name"], "a");
        assert_eq!(lines[0]["accept"], true);
        assert_eq!(lines[0]["entries"][0]["path"], "$.x");
        assert_eq!(
            lines[0]["translated"]["ignition"]["version"],
            "3.7.0-experimental"
        );
        assert_eq!(
            (&lines[1]["accept"], &lines[1]["translated"]),
            (&json!(false), &Value::Null)
        );
        let error = check_batch("{}\n{").unwrap_err();
        assert!(
            format!("{error:#}").contains("answering line 1: it has no text"),
            "{error:#}"
        );
    }

    #[test]
    fn pairs_are_merged_even_when_they_are_not_valid() {
        let version = r#""ignition": {"version": "3.7.0-experimental"}"#;
        let case = format!(
            r#"{{"name": "m", "parent": {{{version}, "storage": {{"files": [{{"path": "rel"}}]}}}}, "child": {{{version}}}}}"#
        );
        let answer: Value = serde_json::from_str(&merge_batch(&case).unwrap()).unwrap();
        assert_eq!(answer["merged"]["storage"]["files"][0]["path"], "rel");
    }
}
