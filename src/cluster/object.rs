//! The cluster object's file on a workstation: made from a template, and read by the rules that nodes read it by.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cluster::config::Config;
use cluster::host::Host;
use cluster::object::{self, Image, Role};
use serde_json::{Map, Value};

use crate::host::atomic_file;

/// A new object, with comments.
const TEMPLATE: &str = include_str!("template.toml");
/// The version of Kubernetes whose rules count for an object that names none: the newest known one.
const NEWEST: &str = "v1.36.0";
/// The longest name: a label of DNS (RFC 1035).
const LONGEST_NAME: usize = 63;

/// The error of an object that has mistakes: all of them, each with line and column.
#[derive(Clone, Debug)]
pub struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// The file of a cluster object.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    path: PathBuf,
    fields: Map<String, Value>,
    config: Config,
}

impl ClusterFile {
    /// The text of a new object, with comments.
    ///
    /// # Errors
    /// A name that no cluster can have.
    pub fn template(name: &str) -> Result<String> {
        check_name(name)?;
        Ok(TEMPLATE.replace("NAME", name))
    }

    /// Writes a new object.
    ///
    /// # Errors
    /// Its mistakes, a file that is there already.
    pub fn create(path: &Path, text: &str) -> Result<Self> {
        ensure!(!path.exists(), "{} is there already", path.display());
        Self::parse(path, text)?;
        atomic_file::create(path, 0o666, |file| Ok(file.write_all(text.as_bytes())?))?;
        Self::read(path)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// All of its mistakes, each with line and column.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(path, &text)
    }

    /// Reads the text of an object.
    ///
    /// # Errors
    /// All of its mistakes, each with line and column.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let object = object::read(
            text,
            &image(),
            &Host::of_documentation(),
            Role::ControlPlane,
        )
        .map_err(|report| {
            let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
            let lines = lines.join("\n  ");
            Wrong(format!("{} is refused:\n  {lines}", path.display()))
        })?;
        let fields = if text.trim_start().starts_with('{') {
            serde_json::from_str(text)?
        } else {
            toml::from_str(text)?
        };
        Ok(Self {
            path: path.to_owned(),
            fields,
            config: object.config,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.cluster.cluster_name
    }

    /// The object's fields, for a node to get with others of its own.
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        self.fields.clone()
    }

    /// What kubeadm would be given.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The API server's address, which everybody but a first node needs.
    ///
    /// # Errors
    /// If the object names none.
    pub fn endpoint(&self) -> Result<&str> {
        let endpoint = &self.config.cluster.control_plane_endpoint;
        ensure!(
            !endpoint.is_empty(),
            "{} names no endpoint, by which the API server is reached; add one, as endpoint = \"api.example.test:6443\"",
            self.path.display()
        );
        Ok(endpoint)
    }
}

fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty()
        || name.len() > LONGEST_NAME
        || !name.chars().all(fits)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        bail!(
            "{name:?} is not a name for a cluster; expected at most {LONGEST_NAME} of a-z, 0-9 and -, as production-1"
        );
    }
    Ok(())
}

/// What an image brings is known to nodes only.
fn image() -> Image {
    Image {
        version: NEWEST.to_owned(),
        ..Image::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_object_is_right_and_takes_the_place_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blue.toml");
        let text = ClusterFile::template("blue").unwrap();
        let file = ClusterFile::create(&path, &text).unwrap();
        assert_eq!(file.name(), "blue");
        let error = file.endpoint().unwrap_err().to_string();
        assert!(error.contains("names no endpoint"), "{error}");
        let error = ClusterFile::create(&path, &text).unwrap_err().to_string();
        assert!(error.ends_with("blue.toml is there already"), "{error}");
        let error = ClusterFile::template("Blue_1").unwrap_err();
        assert!(
            error.to_string().contains("\"Blue_1\" is not a name"),
            "{error}"
        );
    }

    #[test]
    fn each_comment_of_the_template_is_a_field() {
        let uncommented: String = TEMPLATE
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|rest| is_toml(rest))
                    .unwrap_or(line)
            })
            .map(|line| format!("{line}\n"))
            .collect();
        let file =
            ClusterFile::parse(Path::new("x.toml"), &uncommented.replace("NAME", "x")).unwrap();
        assert_eq!(file.endpoint().unwrap(), "api.example.test:6443");
        assert_eq!(
            file.config.cluster.api_server.cert_sans,
            ["api.internal.test"]
        );
    }

    fn is_toml(line: &str) -> bool {
        line.starts_with('[')
            || line
                .split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
    }

    #[test]
    fn mistakes_have_their_places() {
        let refused = |text: &str| {
            let error = ClusterFile::parse(Path::new("x.toml"), text).unwrap_err();
            error.to_string()
        };
        let error = refused("name = \"x\"\nendpiont = \"a\"\ncni = \"x\"\n");
        for expected in [
            "did you mean \"endpoint\"? (line 2, column 12)",
            "(line 3, column 7)",
        ] {
            assert!(error.contains(expected), "{error}");
        }
        let error = refused("name = \"x\"\n[networks]\npods = \"x\"\n");
        assert!(error.contains("(line 3, column 8)"), "{error}");
    }
}
