//! Two lanes: tests whose machines or clusters have a pace, one after the other, and beside them all others.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::program::Program;

/// Package and source file of the tests that run one after the other: virtual machines, commands that have to answer at once, and
/// clusters with the time limits of real Kubernetes. The longest is first, so that the others are done when the clusters begin, and the cache
/// has what the commands want.
const PACED: &[(&str, &str)] = &[
    ("qemu-tests", "tests/promises/main.rs"),
    ("slipway", "tests/cli.rs"),
    ("conformance", "tests/clusters/main.rs"),
    ("namespace-tests", "tests/clusters/main.rs"),
];
/// The lowest priority, as `nice` counts.
const LOWEST: i32 = 19;
/// What takes less has no line in the table.
const LONG: Duration = Duration::from_secs(5);

/// A test program that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The program's name.
    pub(crate) name: String,
    /// How long it took.
    pub(crate) took: Duration,
    /// It ran beside those that have a pace.
    pub(crate) beside: bool,
    /// Its tests passed.
    pub(crate) good: bool,
}

/// Divides the programs into those that have a pace, in their order, and all others.
///
/// # Errors
/// One that this file names does not exist.
pub(crate) fn of(programs: Vec<Program>) -> Result<(Vec<Program>, Vec<Program>)> {
    let place = |program: &Program| {
        PACED.iter().position(|(package, source)| {
            program.package == *package && program.source.as_os_str() == *source
        })
    };
    let (mut paced, beside): (Vec<_>, Vec<_>) = programs
        .into_iter()
        .partition(|program| place(program).is_some());
    paced.sort_by_key(place);
    ensure!(
        paced.len() == PACED.len(),
        "of {PACED:?} there are only {paced:?}"
    );
    Ok((paced, beside))
}

/// Runs both lanes to their end. What the first prints goes straight to this program's own output; what one of the second
/// printed follows when a program of the first has ended, or at once if it failed.
pub(crate) fn run(paced: &[Program], beside: &[Program]) -> Result<Vec<Ended>> {
    let (said, heard) = mpsc::channel();
    thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<Vec<Ended>> {
            // Of this thread, and so of what it starts.
            rustix::process::setpriority_process(None, LOWEST).context("lowering the priority")?;
            let mut ended = Vec::new();
            for program in beside {
                let (one, output) = quietly(program)?;
                if one.good {
                    said.send(output).context("the first lane ended early")?;
                } else {
                    print(&output)?;
                }
                ended.push(one);
            }
            Ok(ended)
        });
        let mut ended = Vec::new();
        for program in paced {
            println!("{}", header(program));
            let begin = Instant::now();
            let status = program.command().status().with_context(|| program.name())?;
            ended.push(one(program, begin, status, false));
            print_all(&heard)?;
        }
        let others = other.join().expect("it has no panic of its own")?;
        print_all(&heard)?;
        ended.extend(others);
        Ok(ended)
    })
}

fn header(program: &Program) -> String {
    format!(
        "\n     Running {} ({})",
        program.source.display(),
        program.package
    )
}

fn one(program: &Program, begin: Instant, status: ExitStatus, beside: bool) -> Ended {
    if !status.success() {
        println!("{}: {status}", program.name());
    }
    Ended {
        name: program.name(),
        took: begin.elapsed(),
        beside,
        good: status.success(),
    }
}

/// Runs a program of the second lane and returns what it printed, in its order. Through a file: a process that it leaves behind
/// would hold a pipe open.
fn quietly(program: &Program) -> Result<(Ended, Vec<u8>)> {
    let mut file = tempfile::tempfile().context("a file for what a test prints")?;
    let copy = |file: &File| file.try_clone().context("a file for what a test prints");
    let begin = Instant::now();
    let status = program
        .command()
        .stdout(copy(&file)?)
        .stderr(copy(&file)?)
        .status()
        .with_context(|| program.name())?;
    let ended = one(program, begin, status, true);
    let mut output = format!("{}\n", header(program)).into_bytes();
    file.rewind()?;
    file.read_to_end(&mut output)?;
    Ok((ended, output))
}

fn print_all(heard: &Receiver<Vec<u8>>) -> Result<()> {
    heard.try_iter().try_for_each(|output| print(&output))
}

fn print(output: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(output)?;
    Ok(stdout.flush()?)
}

/// The long ones and their sum, in seconds, lane by lane.
pub(crate) fn table(ended: &[Ended]) -> String {
    let row = |name: &str, took: Duration| format!("{name:<40} {:6.0} s\n", took.as_secs_f64());
    let mut text = String::new();
    for (beside, lane) in [(false, "one after the other"), (true, "beside them")] {
        let all = || ended.iter().filter(|one| one.beside == beside);
        text += &row(lane, all().map(|one| one.took).sum());
        for one in all().filter(|one| one.took >= LONG) {
            text += &row(&format!("  {}", one.name), one.took);
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn program(package: &str, source: &str, file: &Path) -> Program {
        Program {
            package: package.into(),
            folder: PathBuf::from("/"),
            source: source.into(),
            file: file.into(),
        }
    }

    #[test]
    fn those_with_a_pace_have_their_own_order_and_must_be_there() {
        let file = Path::new("/bin/true");
        let mut programs = vec![program("api", "src/lib.rs", file)];
        assert!(of(programs.clone()).is_err());
        programs.extend(
            PACED
                .iter()
                .rev()
                .map(|(package, source)| program(package, source, file)),
        );
        let (paced, beside) = of(programs).unwrap();
        let packages: Vec<&str> = paced.iter().map(|one| one.package.as_str()).collect();
        assert_eq!(
            packages,
            PACED
                .iter()
                .map(|(package, _)| *package)
                .collect::<Vec<_>>()
        );
        assert_eq!(beside.len(), 1);
    }

    #[test]
    fn a_program_that_fails_ends_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            program("a", name, &path)
        };
        let nice = folder.path().join("nice");
        let paced = [script("one", "exit 3"), script("two", "true")];
        let beside = [
            script(
                "three",
                &format!("cut -d ' ' -f 19 /proc/self/stat > {}", nice.display()),
            ),
            script("four", "kill -9 $$"),
            script("five", "echo out; echo err >&2"),
        ];
        let ended = run(&paced, &beside).unwrap();
        let good: Vec<(&str, bool, bool)> = ended
            .iter()
            .map(|one| (one.name.as_str(), one.beside, one.good))
            .collect();
        assert_eq!(
            good,
            [
                ("a one", false, false),
                ("a two", false, true),
                ("a three", true, true),
                ("a four", true, false),
                ("a five", true, true),
            ]
        );
        assert_eq!(std::fs::read_to_string(nice).unwrap().trim(), "19");
        let (_, output) = quietly(&beside[2]).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "\n     Running five (a)\nout\nerr\n"
        );
    }
}
