//! The tests of this crate with the clock of another day: what holds on the day when a test is written must hold later.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// The variable that says how far ahead the clock is, in seconds.
const AHEAD: &str = "CLOCK_AHEAD";
/// Five years: a list that has aged, a certificate that has expired, a time that was "now" once.
const FIVE_YEARS: u64 = 5 * 365 * 24 * 3600;

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "compiles the clock and runs this program again"
)]
fn all_tests_hold_five_years_later() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/host/sandbox/clock.c");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-DAHEAD={FIVE_YEARS}L"))
        .arg("-o")
        .args([&library, &source])
        .status();
    assert!(compiled.unwrap().success());
    let run = Command::new(env::current_exe().unwrap())
        .args(["--skip", "all_tests_hold_five_years_later"])
        .env("LD_PRELOAD", &library)
        .env(AHEAD, FIVE_YEARS.to_string())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{out}\n{err}");
}

/// The kernel's clock, which gives files their times, against the one that is read here: the test above changes something.
#[test]
fn the_clock_is_as_far_ahead_as_was_asked() {
    let asked = env::var(AHEAD).map_or(0, |ahead| ahead.parse().unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    let written = fs::metadata(file.path()).unwrap().modified().unwrap();
    // A file's time is that of the last tick.
    let ahead = SystemTime::now().duration_since(written).unwrap().as_secs();
    assert!((asked..asked + 60).contains(&ahead), "{ahead} of {asked}");
}
