//! The command line of a stage, in the syntax of Go's package `flag` (<https://pkg.go.dev/flag>), which Ignition uses:
//! `-name value`, `--name=value`, and only known names.

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
            format!("{text:?} is not a stage; expected one of {all}")
        })
    }
}

/// The flags of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The file that holds the fetched config.
    pub(crate) config_cache: PathBuf,
    /// Limit for the config in the fetch stages; zero for none.
    pub(crate) fetch_timeout: Duration,
    /// The file by which the stage requests the network.
    pub(crate) neednet: PathBuf,
    /// The platform.
    pub(crate) platform: &'static Provider,
    /// The root that the stage provisions.
    pub(crate) root: PathBuf,
    /// The stage.
    pub(crate) stage: Stage,
    /// The state file.
    pub(crate) state_file: PathBuf,
    /// Whether log messages go to stdout, else to stderr.
    pub(crate) log_to_stdout: bool,
}

/// A command line, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// Print the version.
    Version,
    /// Print the usage.
    Help,
    /// Run a stage.
    Stage(Flags),
}

/// Name, default and description of each flag. Those without a default are switches.
const KNOWN: [(&str, Option<&str>, &str); 9] = [
    (
        "config-cache",
        Some("/run/ignition.json"),
        "file for the fetched config",
    ),
    (
        "fetch-timeout",
        Some("2m0s"),
        "limit for the config in the fetch stages, 0 for none",
    ),
    ("log-to-stdout", None, "log to stdout instead of stderr"),
    (
        "neednet",
        Some("/run/ignition/neednet"),
        "file that fetch-offline makes if the config needs the network",
    ),
    ("platform", Some(""), "the platform, see below"),
    ("root", Some("/"), "the root to provision"),
    ("stage", Some(""), "the stage to run, see below"),
    (
        "state-file",
        Some("/run/ignition/state"),
        "file for facts that later stages need",
    ),
    ("version", None, "print the version"),
];

/// The usage: all flags with their defaults, stages and platforms.
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

/// Reads the arguments after the program's name. Only the first mistake is an error, as with Go's package: the
/// arguments after an unknown flag may be its value.
pub(crate) fn parse(args: &[String]) -> Result<Invocation, String> {
    let Some(values) = values(args)? else {
        return Ok(Invocation::Help);
    };
    let of = |name: &str| index(name).map_or("", |index| values[index].as_str());
    if switch("version", of("version"))? {
        return Ok(Invocation::Version);
    }
    for name in ["platform", "stage"] {
        if of(name).is_empty() {
            return Err(format!("-{name} is required"));
        }
    }
    Ok(Invocation::Stage(Flags {
        config_cache: of("config-cache").into(),
        fetch_timeout: duration(of("fetch-timeout"))
            .ok_or_else(|| "-fetch-timeout: expected a duration such as 2m0s or 90s".to_owned())?,
        neednet: of("neednet").into(),
        platform: by_id(of("platform")).map_err(|why| format!("-platform: {why}"))?,
        // Paths of a config are absolute: an empty root means the running system's.
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

fn index(name: &str) -> Option<usize> {
    KNOWN.iter().position(|(known, ..)| *known == name)
}

/// The values of the flags in the order of [`KNOWN`]; none if help is requested. The last of a repeated flag wins.
fn values(args: &[String]) -> Result<Option<Vec<String>>, String> {
    let defaults = KNOWN.iter().map(|(_, default, _)| *default);
    let mut values: Vec<String> = defaults
        .map(|default| default.unwrap_or("false").to_owned())
        .collect();
    let mut args = args.iter();
    while let Some(word) = args.next() {
        let flag = word.strip_prefix('-').filter(|rest| !rest.is_empty());
        let Some(flag) = flag.map(|rest| rest.strip_prefix('-').unwrap_or(rest)) else {
            return Err(format!(
                "unexpected argument {word:?}; a flag begins with -"
            ));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        if matches!(name, "h" | "help") {
            return Ok(None);
        }
        let index = index(name).ok_or_else(|| format!("unknown flag -{name}"))?;
        let is_switch = KNOWN[index].1.is_none();
        values[index] = match value {
            Some(value) => value,
            None if is_switch => "true".to_owned(),
            None => args
                .next()
                .cloned()
                .ok_or_else(|| format!("flag -{name}: the value is missing"))?,
        };
    }
    Ok(Some(values))
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("-{name}: expected true or false, found {value:?}")),
    }
}

/// A duration as `time.ParseDuration` of Go reads it: numbers with units, as `1h2m0.5s`; `0` needs no unit.
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

    fn read(text: &str) -> Result<Invocation, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        parse(&words)
    }

    fn stage(text: &str) -> Flags {
        match read(text).unwrap() {
            Invocation::Stage(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_forms_of_flags_are_read() {
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
        // A value that begins with a hyphen, an empty value, and the last of a repeated flag.
        let flags = stage("-platform qemu -stage fetch -root -x -root= -stage umount");
        assert_eq!(
            (flags.root, flags.stage),
            (PathBuf::from("/"), Stage::Umount)
        );
        assert_eq!(flags.state_file, PathBuf::from("/run/ignition/state"));
    }

    #[test]
    fn unknown_flags_and_values_are_refused_by_name() {
        for (text, why) in [
            (
                "-platform file -stage files -clear-cache",
                "unknown flag -clear-cache",
            ),
            (
                "-platform file -stage files extra",
                "unexpected argument \"extra\"",
            ),
            ("-platform file -stage files --", "unknown flag"),
            ("-platform file -stage bake", "fetch-offline"),
            ("-platform mainframe -stage files", "digitalocean"),
            ("-platform file", "-stage is required"),
            ("-stage files", "-platform is required"),
            ("-platform file -stage", "the value is missing"),
            ("-platform file -stage files -fetch-timeout 5", "2m0s"),
            (
                "-platform file -stage files -log-to-stdout=maybe",
                "expected true or false",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(read("-version"), Ok(Invocation::Version));
        assert_eq!(read("--help"), Ok(Invocation::Help));
        assert!(usage().contains("-state-file"));
    }

    #[test]
    fn durations_are_read_as_by_go() {
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
