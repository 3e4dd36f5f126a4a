//! The command line of a stage, read as Go's package `flag` reads it: `-name value`, `--name=value`, and only known names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use platform::provider::Provider;
use platform::providers::{TABLE, by_id};

/// A stage, in the order in which they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    FetchOffline,
    Fetch,
    Kargs,
    Disks,
    Mount,
    Files,
    Umount,
}

impl Stage {
    const ALL: [(Self, &'static str); 7] = [
        (Self::FetchOffline, "fetch-offline"),
        (Self::Fetch, "fetch"),
        (Self::Kargs, "kargs"),
        (Self::Disks, "disks"),
        (Self::Mount, "mount"),
        (Self::Files, "files"),
        (Self::Umount, "umount"),
    ];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(stage, _)| stage == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(stage, _)| *stage).ok_or_else(|| {
            let all = Self::ALL.map(|(_, name)| name).join(", ");
            format!("{text:?} is no stage; there are {all}")
        })
    }
}

/// What a stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Where the config stands once it was fetched.
    pub(crate) config_cache: PathBuf,
    /// How long the first config may take.
    pub(crate) fetch_timeout: Duration,
    /// The file that says that the network is needed.
    pub(crate) neednet: PathBuf,
    /// The machine.
    pub(crate) platform: &'static Provider,
    /// The root that is provisioned.
    pub(crate) root: PathBuf,
    /// What to do.
    pub(crate) stage: Stage,
    /// What stages tell later ones.
    pub(crate) state_file: PathBuf,
    /// Whether messages go to the standard output.
    pub(crate) log_to_stdout: bool,
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Which program this is.
    Version,
    /// Which flags there are.
    Help,
    /// A stage.
    Stage(Flags),
}

/// Names, what they are without a value, what they say. Those without a default are switches.
const KNOWN: [(&str, Option<&str>, &str); 9] = [
    (
        "config-cache",
        Some("/run/ignition.json"),
        "where the fetched config is kept",
    ),
    (
        "fetch-timeout",
        Some("2m0s"),
        "how long the first config may take, 0 for ever",
    ),
    (
        "log-to-stdout",
        None,
        "messages to the standard output, else to the standard error",
    ),
    (
        "neednet",
        Some("/run/ignition/neednet"),
        "file that fetch-offline makes when it needs the network",
    ),
    ("platform", Some(""), "the machine"),
    ("root", Some("/"), "the root that is provisioned"),
    ("stage", Some(""), "what to do"),
    (
        "state-file",
        Some("/run/ignition/state"),
        "what stages tell later ones",
    ),
    ("version", None, "which program this is"),
];

/// All flags with their defaults.
pub(crate) fn usage() -> String {
    let mut out = "ignition -platform PLATFORM -stage STAGE".to_owned();
    for (name, default, what) in KNOWN {
        let default = default.filter(|text| !text.is_empty());
        let default = default.map_or_else(String::new, |text| format!(" ({text})"));
        out.push_str(&format!("\n  -{name}: {what}{default}"));
    }
    let stages = Stage::ALL.map(|(_, name)| name).join(", ");
    let platforms: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
    let platforms = platforms.join(", ");
    out.push_str(&format!("\nstages: {stages}\nplatforms: {platforms}"));
    out
}

/// Reads the arguments behind the program's name. The last word on a flag counts.
///
/// # Errors
/// The first thing that is wrong: a name that is not known, a value that is none.
pub(crate) fn parse(args: &[String]) -> Result<Asked, String> {
    let mut values: Vec<String> = KNOWN
        .iter()
        .map(|(_, default, _)| default.unwrap_or("false").to_owned())
        .collect();
    let mut args = args.iter();
    while let Some(word) = args.next() {
        let flag = word.strip_prefix('-').filter(|rest| !rest.is_empty());
        let Some(flag) = flag.map(|rest| rest.strip_prefix('-').unwrap_or(rest)) else {
            return Err(format!("{word:?} is no flag"));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        if matches!(name, "h" | "help") {
            return Ok(Asked::Help);
        }
        let index = KNOWN.iter().position(|(known, ..)| *known == name);
        let index = index.ok_or_else(|| format!("the flag -{name} is not known"))?;
        let switch = KNOWN[index].1.is_none();
        values[index] = match value {
            Some(value) => value,
            None if switch => "true".to_owned(),
            None => args
                .next()
                .cloned()
                .ok_or_else(|| format!("the flag -{name} needs a value"))?,
        };
    }
    let of = |name: &str| {
        let index = KNOWN.iter().position(|(known, ..)| *known == name);
        index.map_or("", |index| values[index].as_str())
    };
    if switch("version", of("version"))? {
        return Ok(Asked::Version);
    }
    for name in ["platform", "stage"] {
        if of(name).is_empty() {
            return Err(format!("-{name} must be given"));
        }
    }
    Ok(Asked::Stage(Flags {
        config_cache: of("config-cache").into(),
        fetch_timeout: duration(of("fetch-timeout"))
            .ok_or_else(|| "-fetch-timeout: expected a time as 2m0s or 90s".to_owned())?,
        neednet: of("neednet").into(),
        platform: by_id(of("platform")).map_err(|why| format!("-platform: {why}"))?,
        // Paths of a config are absolute: without a root they are this system's own.
        root: match of("root") {
            "" => "/".into(),
            root => root.into(),
        },
        stage: of("stage")
            .parse()
            .map_err(|why| format!("-stage: {why}"))?,
        state_file: of("state-file").into(),
        log_to_stdout: switch("log-to-stdout", of("log-to-stdout"))?,
    }))
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("-{name}: {value:?} is neither true nor false")),
    }
}

/// A duration as Go writes it: numbers with their units, as `1h2m0.5s`; `0` alone needs none.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut all = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        rest = &rest[end..];
        all = all.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
    }
    (!text.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Asked, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        parse(&words)
    }

    fn stage(text: &str) -> Flags {
        match read(text).unwrap() {
            Asked::Stage(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ways_of_writing_flags_are_read() {
        let flags = stage(
            "-platform file -stage disks -root /mnt -log-to-stdout -config-cache /c -state-file /s",
        );
        assert_eq!((flags.platform.id, flags.stage), ("file", Stage::Disks));
        assert_eq!(flags.config_cache, PathBuf::from("/c"));
        assert_eq!(flags.fetch_timeout, Duration::from_secs(120));
        assert!(flags.log_to_stdout);
        let same = stage(
            "--root=/mnt --platform=file --stage=disks --log-to-stdout=true --config-cache=/c --state-file /s",
        );
        assert_eq!(same, flags);
        // A value that begins with a hyphen, an empty one, and a last word that counts.
        let flags = stage("-platform qemu -stage fetch -root -x -root= -stage umount");
        assert_eq!(
            (flags.root, flags.stage),
            (PathBuf::from("/"), Stage::Umount)
        );
        assert_eq!(flags.state_file, PathBuf::from("/run/ignition/state"));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (text, why) in [
            (
                "-platform file -stage files -clear-cache",
                "-clear-cache is not known",
            ),
            ("-platform file -stage files extra", "\"extra\" is no flag"),
            ("-platform file -stage files --", "is not known"),
            ("-platform file -stage bake", "fetch-offline"),
            ("-platform mainframe -stage files", "digitalocean"),
            ("-platform file", "-stage must be given"),
            ("-stage files", "-platform must be given"),
            ("-platform file -stage", "needs a value"),
            ("-platform file -stage files -fetch-timeout 5", "2m0s"),
            (
                "-platform file -stage files -log-to-stdout=maybe",
                "neither",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(read("-version"), Ok(Asked::Version));
        assert_eq!(read("--help"), Ok(Asked::Help));
        assert!(usage().contains("-state-file"));
    }

    #[test]
    fn times_are_go_s() {
        for (text, millis) in [
            ("0", Some(0)),
            ("2m0s", Some(120_000)),
            ("1h0.5s", Some(3_600_500)),
            ("250ms", Some(250)),
            ("5", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
        ] {
            assert_eq!(duration(text), millis.map(Duration::from_millis), "{text}");
        }
    }
}
