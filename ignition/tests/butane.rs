//! Comparison with Butane's own results for the configs of `butane/cases`: verdict, position of every finding, and the
//! Ignition config. `butane/oracle` made `butane/expected.jsonl`, with Butane 0.29.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "butane/variants.rs"]
mod variants;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ignition::butane::Options;
use ignition::config::from_butane;
use ignition::contents::gzip;
use ignition::local_files::{EntryKind, Files, TreeEntry};
use ignition::{Config, Report};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/butane")
}

/// The local files of the cases.
struct Local;

impl Files for Local {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(folder().join("files").join(path)).map_err(|error| error.to_string())
    }

    fn tree(&self, path: &str) -> Result<Vec<TreeEntry>, String> {
        let top = folder().join("files").join(path);
        if !top.is_dir() {
            return Err("no folder".into());
        }
        let mut out = Vec::new();
        walk(&top, "", &mut out);
        Ok(out)
    }
}

fn walk(top: &Path, below: &str, out: &mut Vec<TreeEntry>) {
    use std::os::unix::fs::PermissionsExt as _;
    let full = top.join(below);
    let status = full.symlink_metadata().unwrap();
    let path = below.to_owned();
    if status.is_dir() {
        let kind = EntryKind::Directory;
        out.push(TreeEntry { path, kind });
        let names = std::fs::read_dir(&full).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in names {
            let slash = if below.is_empty() { "" } else { "/" };
            walk(top, &format!("{below}{slash}{name}"), out);
        }
        return;
    }
    let kind = match status.is_symlink() {
        true => EntryKind::Link(
            std::fs::read_link(&full)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned(),
        ),
        false => {
            let executable = status.permissions().mode() & 0o111 != 0;
            EntryKind::File(std::fs::read(&full).unwrap(), executable)
        }
    };
    out.push(TreeEntry { path, kind });
}

const OPTIONS: Options<'static> = Options {
    files: &Local,
    pack: Some(gzip),
};

/// Kind, path, line and column of each finding.
type Findings = BTreeSet<(String, String, u64, u64)>;

/// Butane gives the position of a block scalar's indicator, we that of its text: neither is compared.
fn without_blocks(findings: Findings, text: &str) -> Findings {
    let line = |number: u64| {
        text.lines()
            .nth(usize::try_from(number).unwrap().wrapping_sub(1))
    };
    let block = |number: u64| line(number).is_some_and(|line| line.ends_with('|'));
    let one = |(kind, path, line, column): (String, String, u64, u64)| match block(line)
        || (line > 1 && block(line - 1))
    {
        true => (kind, path, 0, 0),
        false => (kind, path, line, column),
    };
    findings.into_iter().map(one).collect()
}

fn findings(report: &Report) -> Findings {
    let one = |entry: &ignition::Entry| {
        let kind = match entry.kind {
            ignition::Kind::Error => "error",
            ignition::Kind::Warning => "warning",
        };
        let at = entry
            .at
            .as_ref()
            .map_or((0, 0), |at| (at.line.into(), at.column.into()));
        (kind.to_owned(), entry.path.clone(), at.0, at.1)
    };
    report.entries.iter().map(one).collect()
}

fn expected(case: &Value) -> Findings {
    let one = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        let number = |name: &str| entry[name].as_u64().unwrap_or(0);
        (text("kind"), text("path"), number("line"), number("column"))
    };
    case["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect()
}

/// Packed contents are compared unpacked: two compressors need not produce the same bytes.
fn unpacked(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(unpacked),
        Value::Object(fields) => {
            if fields.get("compression") == Some(&"gzip".into())
                && let Some(url) = fields.get_mut("source")
                && let Ok(data) = ignition::data_url::decode(url.as_str().unwrap())
                && let Ok(data) = ignition::contents::gunzip(&data, 1 << 20)
            {
                *url = String::from_utf8(data).unwrap().into();
            }
            fields.values_mut().for_each(unpacked);
        }
        _ => {}
    }
}

/// Cases with an intended difference.
fn agreed(name: &str) -> bool {
    matches!(
        name,
        // Butane reports merge keys as unused, and uses them.
        "yaml-features"
        // Butane reports the mistakes of an embedded config at paths of the embedded one.
        | "config-references-wrong"
    )
}

#[test]
fn answers_are_butanes() {
    let lines = std::fs::read_to_string(folder().join("expected.jsonl")).unwrap();
    let cases: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        cases.len(),
        std::fs::read_dir(folder().join("cases")).unwrap().count()
    );
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let text = std::fs::read(folder().join(format!("cases/{name}.bu"))).unwrap();
        let (accept, report, output) = match from_butane(&text, name, OPTIONS) {
            Ok((output, report)) => (true, report, output),
            Err(report) => (false, report, Value::Null),
        };
        let shown = String::from_utf8_lossy(&text);
        let found = without_blocks(findings(&report), &shown);
        let wanted = without_blocks(expected(case), &shown);
        // Butane stops earlier: all its findings about a config that it refuses are found here too, and more.
        let same = match accept {
            true => found == wanted,
            false => found.is_superset(&wanted),
        };
        if accept != case["accept"].as_bool().unwrap() || !(same || agreed(name)) {
            let missing: Vec<_> = wanted.difference(&found).collect();
            wrong.push(format!(
                "{name}: {accept}, missing {missing:?}, found\n{report}"
            ));
            continue;
        }
        let (mut output, mut wanted) = (output, case["output"].clone());
        unpacked(&mut output);
        unpacked(&mut wanted);
        if output != wanted {
            wrong.push(format!("{name}:\n{output}\n  expected\n{wanted}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn what_comes_out_is_valid_and_says_the_same() {
    for entry in std::fs::read_dir(folder().join("cases")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        let Ok((output, _)) = from_butane(&text, "case", OPTIONS) else {
            continue;
        };
        let direct = Config::parse_with(&text, "case", OPTIONS).unwrap().0;
        let again = Config::parse(output.to_string().as_bytes(), "again")
            .unwrap()
            .0;
        assert_eq!(direct.to_json(), again.to_json(), "{}", path.display());
    }
}
