//! Two lanes: tests whose machines or clusters have a pace, one after the other, and beside them all others. When both have ended,
//! what needs the machine to itself.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::program::Program;

/// Package and source file of the promises.
const PROMISES: (&str, &str) = ("qemu-tests", "tests/promises/main.rs");
/// The promise of a whole control plane in an emulated machine, with the time limits of real Kubernetes.
const CLUSTER: &str = "cluster::a_cluster_object_makes_a_ready_control_plane";
/// Package and source file of the tests that run one after the other: virtual machines, commands that have to answer at once, and
/// clusters with the time limits of real Kubernetes. The longest is first, so that the others are done when the clusters begin, and the cache
/// has what the commands want.
const PACED: &[(&str, &str)] = &[
    PROMISES,
    ("slipway", "tests/cli.rs"),
    ("conformance", "tests/clusters/main.rs"),
    ("namespace-tests", "tests/clusters/main.rs"),
];
/// The lowest priority, as `nice` counts.
const LOWEST: i32 = 19;
/// What takes less has no line in the table.
const LONG: Duration = Duration::from_secs(5);
/// How often what a program printed is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// Lines of a program that failed which are shown once more at the end.
const LAST_LINES: usize = 150;
/// Bytes of them at most.
const LAST_BYTES: usize = 16 << 10;

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
    /// What it printed, both outputs in their order.
    output: Vec<u8>,
}

/// The programs in the order in which they run.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// One after the other.
    pub(crate) paced: Vec<Program>,
    /// Beside those, one after the other too.
    pub(crate) beside: Vec<Program>,
    /// When all of those have ended.
    pub(crate) alone: Vec<Program>,
}

impl Lanes {
    /// Divides the programs.
    ///
    /// # Errors
    /// One that this file names does not exist.
    pub(crate) fn of(programs: Vec<Program>) -> Result<Self> {
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
        let mut alone = paced[0].clone();
        paced[0].words = &["--skip", CLUSTER];
        // A promise that has another name now is refused.
        alone.words = &["--exact", CLUSTER];
        Ok(Self {
            paced,
            beside,
            alone: vec![alone],
        })
    }

    /// Runs all to their end. What the first lane prints goes to this program's own output as it comes; what one of the second
    /// printed follows when a program of the first has ended, or at once if it failed.
    pub(crate) fn run(&self) -> Result<Vec<Ended>> {
        let (said, heard) = mpsc::channel();
        let mut ended = thread::scope(|scope| {
            let other = scope.spawn(move || -> Result<Vec<Ended>> {
                // Of this thread, and so of what it starts.
                rustix::process::setpriority_process(None, LOWEST)
                    .context("lowering the priority")?;
                let mut ended = Vec::new();
                for program in &self.beside {
                    let one = run_one(program, true, &mut |_| Ok(()))?;
                    let output = [header(program).as_bytes(), &one.output].concat();
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
            for program in &self.paced {
                ended.push(run_aloud(program)?);
                print_all(&heard)?;
            }
            let others = other.join().expect("it has no panic of its own")?;
            print_all(&heard)?;
            ended.extend(others);
            anyhow::Ok(ended)
        })?;
        for program in &self.alone {
            ended.push(run_aloud(program)?);
        }
        Ok(ended)
    }
}

/// Runs a program of the first lane.
fn run_aloud(program: &Program) -> Result<Ended> {
    print(header(program).as_bytes())?;
    run_one(program, false, &mut print)
}

fn header(program: &Program) -> String {
    format!("\n     Running {}\n", program.name())
}

/// Runs a program to its end and hands on what it prints as it comes. Through a file: a process that it leaves behind would hold
/// a pipe open.
fn run_one(
    program: &Program,
    beside: bool,
    hand_on: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Ended> {
    let file = tempfile::tempfile().context("a file for what a test prints")?;
    let copy = || file.try_clone().context("a file for what a test prints");
    let begin = Instant::now();
    let mut command = program.command();
    command.stdout(copy()?).stderr(copy()?);
    let mut child = command.spawn().with_context(|| program.name())?;
    let (status, mut output) = follow(&mut child, &file, hand_on)?;
    if !status.success() {
        let last = format!("{}: {status}\n", program.name());
        hand_on(last.as_bytes())?;
        output.extend(last.into_bytes());
    }
    Ok(Ended {
        name: program.name(),
        took: begin.elapsed(),
        beside,
        good: status.success(),
        output,
    })
}

/// Reads the file until the process has ended, and then the rest of it.
fn follow(
    child: &mut Child,
    file: &File,
    hand_on: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<(ExitStatus, Vec<u8>)> {
    let (mut output, mut buffer) = (Vec::new(), [0; 64 << 10]);
    loop {
        // Before the file is read: what the process prints last is in it then.
        let status = child.try_wait().context("waiting for a test")?;
        loop {
            // The processes' own position in the file stays.
            let read = file.read_at(&mut buffer, output.len() as u64)?;
            if read == 0 {
                break;
            }
            hand_on(&buffer[..read])?;
            output.extend(&buffer[..read]);
        }
        match status {
            Some(status) => return Ok((status, output)),
            None => thread::sleep(LOOK),
        }
    }
}

/// The last words of each program that failed: a log is often shown by its end alone.
pub(crate) fn last_words(ended: &[Ended]) -> String {
    let mut text = String::new();
    for one in ended.iter().filter(|one| !one.good) {
        let said = String::from_utf8_lossy(&one.output);
        let mut last: Vec<&str> = said.lines().rev().take(LAST_LINES).collect();
        let mut bytes = 0;
        last.retain(|line| {
            bytes += line.len() + 1;
            bytes <= LAST_BYTES
        });
        last.reverse();
        text += &format!("\n== {} failed and ended so:\n", one.name);
        for line in last {
            text += &format!("{line}\n");
        }
    }
    text
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
            words: &[],
        }
    }

    #[test]
    fn those_with_a_pace_have_their_own_order_and_must_be_there() {
        let file = Path::new("/bin/true");
        let mut programs = vec![program("api", "src/lib.rs", file)];
        assert!(Lanes::of(programs.clone()).is_err());
        programs.extend(
            PACED
                .iter()
                .rev()
                .map(|(package, source)| program(package, source, file)),
        );
        let lanes = Lanes::of(programs).unwrap();
        let packages: Vec<&str> = lanes.paced.iter().map(|one| one.package.as_str()).collect();
        assert_eq!(
            packages,
            PACED
                .iter()
                .map(|(package, _)| *package)
                .collect::<Vec<_>>()
        );
        assert_eq!(lanes.beside.len(), 1);
        // The promise that is left out there has the machine to itself at the end.
        assert_eq!(lanes.paced[0].words, ["--skip", CLUSTER]);
        let names: Vec<String> = lanes.alone.iter().map(Program::name).collect();
        let (package, source) = PROMISES;
        assert_eq!(names, [format!("{package} {source} --exact {CLUSTER}")]);
    }

    #[test]
    fn what_a_program_prints_is_handed_on_as_it_comes_and_its_end_shown_again() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (file, go) = (folder.path().join("slow"), folder.path().join("go"));
        // It ends when its first line has been seen.
        let text = format!(
            "#!/bin/sh\necho first\nuntil test -e {}; do sleep 0.05; done\nseq 1000 >&2\nsleep 30 &\nexit 1\n",
            go.display()
        );
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let begin = Instant::now();
        let mut seen: Vec<u8> = Vec::new();
        let ended = run_one(&program("a", "slow", &file), false, &mut |some| {
            seen.extend(some);
            if seen == b"first\n" {
                std::fs::write(&go, "")?;
            }
            Ok(())
        })
        .unwrap();
        // What it left behind holds nothing up.
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert_eq!(seen, ended.output);
        let last = last_words(&[ended]);
        let lines: Vec<&str> = last.lines().collect();
        assert_eq!(lines[1], "== a slow failed and ended so:");
        // The line of its status is one of them.
        assert_eq!(lines[2], "852");
        assert_eq!(lines.len(), 2 + LAST_LINES);
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
        let (nice, done) = (folder.path().join("nice"), folder.path().join("done"));
        let paced = vec![script("one", "echo why; exit 3"), script("two", "true")];
        let beside = vec![
            script(
                "three",
                &format!("cut -d ' ' -f 19 /proc/self/stat > {}", nice.display()),
            ),
            script("four", "kill -9 $$"),
            script(
                "five",
                &format!("sleep 1; echo out; echo err >&2; touch {}", done.display()),
            ),
        ];
        let alone = vec![script("six", &format!("test -e {}", done.display()))];
        let lanes = Lanes {
            paced,
            beside,
            alone,
        };
        let ended = lanes.run().unwrap();
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
                ("a six", false, true),
            ]
        );
        assert_eq!(std::fs::read_to_string(nice).unwrap().trim(), "19");
        assert_eq!(ended[4].output, b"out\nerr\n");
        let last = last_words(&ended);
        assert_eq!(
            last,
            "\n== a one failed and ended so:\nwhy\na one: exit status: 3\n\
             \n== a four failed and ended so:\na four: signal: 9 (SIGKILL)\n"
        );
    }
}
