//! A program that runs: its output, its end, and killing it with all that it started.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::block::entries;
use crate::kernel_call::Signs;
use crate::world::World;

/// How long the output of a program that has ended is waited for, where a program that it started holds it open.
const OUTPUT: Duration = Duration::from_secs(2);
/// How long the end of a killed program is waited for. One that waits for a device ends when that answers.
const KILLED: Duration = Duration::from_secs(5);
/// The first pause between two looks at a program that is about to end; each is twice as long as the one before.
const SOON: Duration = Duration::from_millis(1);
/// The longest, for a program that has closed its output and goes on.
const LATER: Duration = Duration::from_millis(128);

/// A program, the first of its process group.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    pub(super) outputs: Outputs,
    /// Its end, and when that was seen.
    ended: Option<(ExitStatus, Duration)>,
}

/// What changes while a program that works on a disk gets on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Work {
    signs: Signs,
    /// Time of the processors that it and what it started have used, in the kernel's ticks.
    processor: u64,
}

/// What a program has written so far: standard output and standard error.
#[derive(Debug)]
pub(super) struct Outputs {
    texts: [Arc<Mutex<Vec<u8>>>; 2],
    closed: Receiver<()>,
    open: usize,
}

impl Outputs {
    /// Reads both pipes to their ends on threads of their own.
    fn of(child: &mut Child) -> Self {
        let (send, closed) = channel();
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let mut texts = <[Arc<Mutex<Vec<u8>>>; 2]>::default();
        let mut open = 0;
        for (pipe, text) in pipes.into_iter().zip(&mut texts) {
            let (Some(mut pipe), text, send) = (pipe, Arc::clone(text), send.clone()) else {
                continue;
            };
            open += 1;
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                // A broken pipe ends the output too.
                while let Ok(count @ 1..) = pipe.read(&mut piece) {
                    if let Ok(mut text) = text.lock() {
                        text.extend_from_slice(&piece[..count]);
                    }
                }
                // Nobody listens any more if the program was killed.
                send.send(()).unwrap_or_default();
            });
        }
        Self {
            texts,
            closed,
            open,
        }
    }

    /// The output with this number: 0 is the standard output.
    pub(super) fn text(&self, number: usize) -> String {
        let text = self.texts[number].lock();
        text.map_or_else(
            |_| String::new(),
            |text| String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// Waits until both are closed, at most `time`; whether they are.
    fn wait(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while self.open > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.closed.recv_timeout(left) {
                Ok(()) => self.open -= 1,
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => self.open = 0,
            }
        }
        true
    }
}

impl Running {
    pub(super) fn new(mut child: Child) -> Self {
        Self {
            outputs: Outputs::of(&mut child),
            child,
            ended: None,
        }
    }

    /// Waits for `time` at most; the status once it has ended and its output is complete. `now` is since when it runs.
    pub(super) fn look(&mut self, time: Duration, now: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + time;
        let complete = self.outputs.wait(match self.ended {
            Some(_) => time.min(OUTPUT),
            None => time,
        });
        // Closed output is the usual sign of the end, which follows within microseconds.
        let mut pause = SOON;
        loop {
            if self.ended.is_none() {
                self.ended = self.child.try_wait()?.map(|status| (status, now));
            }
            match self.ended {
                Some((status, _)) if complete => return Ok(Some(status)),
                Some((status, at)) if now >= at + OUTPUT => return Ok(Some(status)),
                Some(_) => return Ok(None),
                None if Instant::now() >= until => return Ok(None),
                None => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LATER);
        }
    }

    /// Kills it with its process group, and those that have left the group, as far as their parents are still there.
    /// Whether it ended.
    pub(super) fn kill(mut self, world: &World) -> bool {
        let Ok(id) = i32::try_from(self.child.id()) else {
            return false;
        };
        let below = descendants(&world.proc, id);
        // What has ended meanwhile is not there to be killed.
        killpg(Pid::from_raw(id), Signal::SIGKILL).unwrap_or_default();
        for id in &below {
            kill(Pid::from_raw(*id), Signal::SIGKILL).unwrap_or_default();
        }
        let until = Instant::now() + KILLED;
        while !matches!(self.child.try_wait(), Ok(Some(_))) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(SOON);
        }
        // As process 1 this one is their parent now.
        let mut left = below;
        while Instant::now() < until && (self.reap() || !left.is_empty()) {
            left.retain(|id| is_there(Pid::from_raw(*id)));
            std::thread::sleep(SOON);
        }
        true
    }

    /// What it has done so far.
    pub(super) fn work(&self, world: &World) -> Work {
        let id = i32::try_from(self.child.id()).unwrap_or(0);
        let all = descendants(&world.proc, id).into_iter().chain([id]);
        let stats = all
            .filter_map(|id| fs::read_to_string(world.proc.join(id.to_string()).join("stat")).ok());
        Work {
            signs: Signs::read(world),
            processor: stats.filter_map(|stat| processor(&stat)).sum(),
        }
    }

    /// Collects those of its group that have ended and that this process has adopted; whether others still run.
    pub(super) fn reap(&self) -> bool {
        let Ok(id) = i32::try_from(self.child.id()) else {
            return false;
        };
        loop {
            match waitpid(Pid::from_raw(-id), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Whether a process is a child of this one that runs; one that has ended is collected.
fn is_there(id: Pid) -> bool {
    waitpid(id, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
}

/// The ids of all processes that `id` and its children have started, whose parents are all there.
fn descendants(proc: &Path, id: i32) -> BTreeSet<i32> {
    let parents: Vec<(i32, i32)> = entries(proc)
        .iter()
        .filter_map(|name| {
            let stat = fs::read_to_string(proc.join(name).join("stat")).ok()?;
            Some((name.parse().ok()?, parent(&stat)?))
        })
        .collect();
    let mut found = BTreeSet::new();
    let mut new = vec![id];
    while let Some(above) = new.pop() {
        for (id, _) in parents.iter().filter(|(_, parent)| *parent == above) {
            if found.insert(*id) {
                new.push(*id);
            }
        }
    }
    found
}

/// The fields of a process's file `stat` (proc_pid_stat(5)) behind the name, which may hold anything. The first is its third.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')')
        .map_or("", |(_, behind)| behind)
        .split_whitespace()
}

fn parent(stat: &str) -> Option<i32> {
    fields(stat).nth(1)?.parse().ok()
}

/// Its ticks in programs and in the kernel, and those of its children that have ended: fields 14 to 17.
fn processor(stat: &str) -> Option<u64> {
    let ticks = fields(stat).skip(11).take(4);
    ticks.map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_processors_is_read() {
        let stat = "7 (e2fsck) S) D 1 7 7 0 -1 4 10 20 30 40 100 20 3 4 20 0 1 0";
        assert_eq!(processor(stat), Some(127));
        assert_eq!(
            processor("7 (e2fsck) D 1 7 7 0 -1 4 10 20 30 40 x 20 3 4"),
            None
        );
    }

    #[test]
    fn descendants_are_found_by_their_parents() {
        let folder = tempfile::tempdir().unwrap();
        for (id, name, parent) in [
            (1, "init", 0),
            (40, "clevis", 1),
            (41, "a) S 1 (b", 40),
            (42, "curl", 41),
            (43, "other", 1),
        ] {
            let place = folder.path().join(id.to_string());
            fs::create_dir(&place).unwrap();
            fs::write(place.join("stat"), format!("{id} ({name}) S {parent} 0\n")).unwrap();
        }
        fs::write(folder.path().join("uptime"), "").unwrap();
        assert_eq!(descendants(folder.path(), 40), BTreeSet::from([41, 42]));
        assert_eq!(descendants(folder.path(), 43), BTreeSet::new());
    }
}
