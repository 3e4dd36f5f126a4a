//! A program of the user's own on this host, in no namespace: a credential helper, which the user's configuration names.

use std::io::{ErrorKind, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::busy;

/// What is read of each of its outputs, in bytes.
const LIMIT: u64 = 64 << 10;
/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output, of at most 64 KiB.
    pub output: Vec<u8>,
    /// Its standard error, of at most 64 KiB.
    pub error: Vec<u8>,
}

/// Starts a program of the search path with one argument and this input, in this program's environment, and waits for its end.
///
/// # Errors
/// If it is not on the search path, does not start, or does not end within the time: it is killed then.
#[expect(
    clippy::disallowed_methods,
    reason = "part of the door: it is the user's program, and reads the user's keyring"
)]
pub fn ask(program: &str, argument: &str, input: &[u8], limit: Duration) -> Result<Answer> {
    let end = Instant::now() + limit;
    let start = || {
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    };
    let mut child = match busy::start_when_closed(start) {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("it is not on the PATH"),
        Err(error) => return Err(error).context("it does not start"),
    };
    if let Some(mut to) = child.stdin.take() {
        let input = input.to_owned();
        // A program that does not read its input closes the pipe, and is judged by its answer.
        thread::spawn(move || drop(to.write_all(&input)));
    }
    let output = read(child.stdout.take());
    let error = read(child.stderr.take());
    let status = wait(&mut child, end)?;
    // What it started may hold its outputs open.
    let rest = |end: Instant| end.saturating_duration_since(Instant::now()).max(PAUSE);
    Ok(Answer {
        status,
        output: output.recv_timeout(rest(end)).unwrap_or_default(),
        error: error.recv_timeout(rest(end)).unwrap_or_default(),
    })
}

fn wait(child: &mut Child, end: Instant) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!("it did not end in time, and was killed");
        }
        thread::sleep(PAUSE);
    }
}

fn read(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (give, take) = mpsc::channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(from) = from {
            // What was read before an error counts.
            drop(from.take(LIMIT).read_to_end(&mut all));
        }
        // Without a receiver the time is over.
        drop(give.send(all));
    });
    take
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_answers_to_its_input() {
        let answer = ask("cat", "-", b"r.example", Duration::from_secs(10)).unwrap();
        assert!(answer.status.success());
        assert_eq!(answer.output, b"r.example");
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        let began = Instant::now();
        let why = ask("sleep", "60", b"", Duration::from_millis(200)).unwrap_err();
        assert!(why.to_string().contains("did not end in time"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(10));
        let why = ask("slipway-no-such-program", "get", b"", PAUSE).unwrap_err();
        assert!(why.to_string().contains("not on the PATH"), "{why}");
    }
}
