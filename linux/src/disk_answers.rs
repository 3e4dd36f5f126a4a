//! Which disks answer. Before this program reads from a disk, a process of its own has read the same of it, for all disks side
//! by side ([`crate::disk_reader`]). A disk that does not answer is left out, named once, and taken again when it has.
//!
//! Who chooses among disks, and would destroy data by a wrong choice, asks for [`silent`] ones too.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::time::Duration;

use image::fault::Fault;

use crate::disk_reader::{self, Asked, Pending, Reader, Reads};
use crate::log;
use crate::waiter::Waiter;
use crate::world::World;

/// The longest pause until the disks are looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// So many times the patience is waited as long as no disk at all has answered: then it may be the controller that is late.
const ALONE: u32 = 3;

/// What a disk is asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// The kernel's name of the disk.
    pub disk: String,
    /// Its name for people.
    pub shown: String,
    /// What is read of the disk and its partitions.
    pub reads: Vec<Reads>,
}

/// The answers to questions. What was read comes from the kernel's cache until this is dropped.
#[derive(Debug)]
pub struct Heard<'w> {
    world: &'w World,
    silent: BTreeSet<String>,
    held: Vec<Reader>,
}

impl Heard<'_> {
    /// Whether a disk that was asked, by the kernel's name, has answered; an error is an answer.
    #[must_use]
    pub fn has(&self, disk: &str) -> bool {
        !self.silent.contains(disk)
    }
}

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        let mut asked = self.world.readers.asked();
        for reader in self.held.drain(..) {
            asked.release(reader);
        }
    }
}

/// A disk that has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The kernel's name.
    pub disk: String,
    /// Its name for people.
    pub shown: String,
    /// For so long, in seconds.
    pub seconds: u64,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shown, seconds, .. } = self;
        write!(f, "{shown}, which has not answered for {seconds} s")
    }
}

/// Asks disks what they have not been asked in this boot, and waits for their answers, ten seconds at most, or half a minute
/// if no disk has answered yet. A disk that was waited for in vain before is not waited for again.
#[must_use]
pub fn ask(world: &World, questions: Vec<Question>) -> Heard<'_> {
    let mut asked = world.readers.asked();
    let mut held = Vec::new();
    let mut waiter = Waiter::for_ever(world);
    loop {
        let mut open = questions.clone();
        open.retain(|question| is_open(&mut asked, world, question, &mut held));
        let limit = match asked.answered.is_empty() {
            true => long(world),
            false => world.readers.patience,
        };
        open.retain(|question| !leave_out(&mut asked, world, question, limit));
        if open.is_empty() {
            break;
        }
        waiter.examined();
        if waiter.line().is_some() {
            let names: Vec<&str> = open.iter().map(|one| one.shown.as_str()).collect();
            let (names, seconds) = (names.join(", "), waiter.elapsed().as_secs());
            log::say(
                world,
                &format!("slipway: waiting for {names} to answer ({seconds} s)"),
            );
        }
        let readers = open.iter().filter_map(|one| asked.pending.get(&one.disk));
        disk_reader::wait(readers.map(|one| &one.reader), waiter.pause(LOOK_EVERY));
    }
    let names = questions.into_iter().map(|question| question.disk);
    let silent = names.filter(|disk| asked.pending.contains_key(disk));
    Heard {
        world,
        silent: silent.collect(),
        held,
    }
}

/// The disks that [`ask`] has left out, as far as they are there: they were not among those that a choice was made of. One that has
/// answered since is among them until it is asked again.
#[must_use]
pub fn silent(world: &World) -> Vec<Silent> {
    let asked = world.readers.asked();
    let pending = asked.pending.iter();
    pending
        .filter(|(disk, one)| one.left_out && is_there(world, disk, one))
        .map(|(disk, one)| Silent {
            disk: disk.clone(),
            shown: one.shown.clone(),
            seconds: since(world, one).as_secs(),
        })
        .collect()
}

/// As [`silent`], without those that have answered meanwhile: for a choice that is still to be made.
#[must_use]
pub fn still_silent(world: &World) -> Vec<Silent> {
    let mut asked = world.readers.asked();
    let disks: Vec<String> = asked.pending.keys().cloned().collect();
    for disk in &disks {
        if let Some(reader) = hear(&mut asked, world, disk) {
            asked.release(reader);
        }
    }
    drop(asked);
    silent(world)
}

/// Silent disks in a sentence.
#[must_use]
pub fn list(silent: &[Silent]) -> String {
    let names: Vec<String> = silent.iter().map(Silent::to_string).collect();
    names.join("; ")
}

/// The fault of a search in vain, with the silent disks: what was looked for may be on one of them.
#[must_use]
pub fn with_silent(world: &World, fault: Fault) -> Fault {
    let silent = silent(world);
    if silent.is_empty() {
        return fault;
    }
    let list = list(&silent);
    let found = match &fault.found {
        Some(found) => format!("{found}; and {list}"),
        None => list,
    };
    let remedy = "examine the disk that does not answer and its cables, or replace it";
    let fix = match &fault.fix {
        Some(fix) => format!("{remedy}; else {fix}"),
        None => remedy.to_owned(),
    };
    fault.found(found).fix(fix)
}

/// Whether the answer of a disk is waited for. It is asked what it was not asked before; the process of one that has answered
/// goes to `held`.
fn is_open(asked: &mut Asked, world: &World, question: &Question, held: &mut Vec<Reader>) -> bool {
    let Question { disk, shown, reads } = question;
    let appearance = appearance(world, disk);
    let is_other = |one: &Pending| one.appearance != appearance;
    if asked.pending.get(disk).is_some_and(is_other)
        && let Some(one) = asked.pending.remove(disk)
    {
        // Another disk has come in its place.
        asked.release(one.reader);
    }
    if let Some(reader) = hear(asked, world, disk) {
        held.push(reader);
    }
    if let Some(one) = asked.pending.get(disk) {
        return !one.left_out;
    }
    let known = asked.answered.get(&appearance);
    let is_new = |reads: &&Reads| known.is_none_or(|known| !known.contains(*reads));
    let reads: Vec<Reads> = reads.iter().filter(is_new).cloned().collect();
    if reads.is_empty() {
        return false;
    }
    let reader = match Reader::start(&reads) {
        Ok(reader) => reader,
        // Without the process the disk is read as well, only unguarded.
        Err(error) => {
            tracing::warn!("{shown}: {error:#}");
            return false;
        }
    };
    let pending = Pending {
        appearance,
        shown: shown.clone(),
        reads,
        reader,
        since: world.micros(),
        left_out: false,
    };
    asked.pending.insert(disk.clone(), pending);
    true
}

/// The process of a disk, if that has answered meanwhile. Reads that failed after a long time are no answer: those of this
/// program would last as long again.
fn hear(asked: &mut Asked, world: &World, disk: &str) -> Option<Reader> {
    let one = asked.pending.get(disk)?;
    let whole = one.reader.answer()?;
    if !whole && since(world, one) >= long(world) {
        return None;
    }
    let one = asked.pending.remove(disk)?;
    if one.left_out {
        let (shown, seconds) = (&one.shown, since(world, &one).as_secs());
        log::announce(
            world,
            &format!("slipway: {shown} has answered after {seconds} s: it is used again"),
        );
    }
    let known = asked.answered.entry(one.appearance).or_default();
    known.extend(one.reads);
    Some(one.reader)
}

/// Leaves a disk out that has not answered within the limit, and says so; whether it is left out.
fn leave_out(asked: &mut Asked, world: &World, question: &Question, limit: Duration) -> bool {
    let Some(one) = asked.pending.get_mut(&question.disk) else {
        return true;
    };
    let waited = since(world, one);
    if waited < limit {
        return false;
    }
    one.left_out = true;
    let (shown, seconds) = (&one.shown, waited.as_secs());
    log::announce(
        world,
        &format!("slipway: {shown} has not answered for {seconds} s: it is left out"),
    );
    true
}

fn since(world: &World, pending: &Pending) -> Duration {
    let micros = u64::try_from(world.micros() - pending.since);
    Duration::from_micros(micros.unwrap_or(0))
}

fn long(world: &World) -> Duration {
    world.readers.patience * ALONE
}

/// This appearance of a disk: the kernel numbers them, so that another disk of the same name has another one (`diskseq`,
/// <https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-block>). Before Linux 5.15 the name alone.
fn appearance(world: &World, disk: &str) -> String {
    let number = world.sys.join("block").join(disk).join("diskseq");
    let number = fs::read_to_string(number).unwrap_or_default();
    format!("{disk} {}", number.trim())
}

fn is_there(world: &World, disk: &str, pending: &Pending) -> bool {
    let folders = ["block", "class/block"];
    let mut places = folders
        .map(|folder| world.sys.join(folder).join(disk))
        .into_iter();
    places.any(|place| place.exists()) && appearance(world, disk) == pending.appearance
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::disk_reader::Readers;
    use crate::samples::{hanging, wake};
    use crate::world::Clock;

    /// Longer than a process needs on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// A machine with disks that answer; those whose names begin with `h` hang.
    fn world(folder: &Path, disks: &[&str]) -> World {
        let mut world = World::below(folder, Clock::Real);
        world.readers = Readers::with_patience(PATIENCE);
        fs::create_dir_all(&world.dev).unwrap();
        fs::write(world.dev.join("console"), "").unwrap();
        for disk in disks {
            fs::create_dir_all(world.sys.join("block").join(disk)).unwrap();
            let node = world.dev.join(disk);
            match disk.starts_with('h') {
                true => hanging(&node),
                false => fs::write(&node, "content").unwrap(),
            }
        }
        world
    }

    fn questions(world: &World, disks: &[&str]) -> Vec<Question> {
        let question = |disk: &&str| Question {
            disk: (*disk).to_owned(),
            shown: format!("{disk} (serial x)"),
            reads: vec![Reads {
                path: world.dev.join(disk),
                stretches: vec![(0, 4)],
            }],
        };
        disks.iter().map(question).collect()
    }

    fn console(world: &World) -> String {
        fs::read_to_string(world.dev.join("console")).unwrap()
    }

    #[test]
    fn a_disk_that_hangs_is_left_out_once_and_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let disks = ["vda", "hdb", "vdc"];
        let world = world(folder.path(), &disks);
        let began = Instant::now();
        let heard = ask(&world, questions(&world, &disks));
        let took = began.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 3, "{took:?}");
        let has = disks.map(|disk| heard.has(disk));
        assert_eq!(has, [true, false, true]);
        drop(heard);
        let line = console(&world);
        let words = line.strip_prefix("slipway: hdb (serial x) has not answered for ");
        let words = words.and_then(|words| words.split_once(' '));
        assert_eq!(words.unwrap().1, "s: it is left out\n", "{line}");
        assert_eq!(silent(&world)[0].disk, "hdb");
        // It is neither waited for nor named again.
        let began = Instant::now();
        assert!(!ask(&world, questions(&world, &disks)).has("hdb"));
        assert!(began.elapsed() < PATIENCE);
        assert_eq!(console(&world), line);
        let fault = Fault::new("it is on no disk").found("vda").fix("attach it");
        let fault = with_silent(&world, fault);
        let found = fault.found.unwrap();
        assert!(
            found.starts_with("vda; and hdb (serial x), which has not answered for "),
            "{found}"
        );
        assert!(fault.fix.unwrap().ends_with("; else attach it"));
    }

    #[test]
    fn a_disk_that_answers_late_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let disks = ["vda", "hdb"];
        let world = world(folder.path(), &disks);
        assert!(!ask(&world, questions(&world, &disks)).has("hdb"));
        // An error is an answer.
        let _awake = wake(&world.dev.join("hdb"));
        let until = Instant::now() + Duration::from_secs(30);
        while !still_silent(&world).is_empty() {
            assert!(Instant::now() < until, "{:?}", silent(&world));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(ask(&world, questions(&world, &disks)).has("hdb"));
        let said = console(&world);
        assert!(
            said.contains("hdb (serial x) has answered after "),
            "{said}"
        );
        assert!(said.ends_with(" s: it is used again\n"), "{said}");
    }

    #[test]
    fn where_no_disk_has_answered_the_wait_is_longer() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), &["hda"]);
        let began = Instant::now();
        assert!(!ask(&world, questions(&world, &["hda"])).has("hda"));
        assert!(began.elapsed() >= PATIENCE * ALONE);
        assert!(
            console(&world).starts_with("slipway: waiting for hda (serial x) to answer (5 s)\n")
        );
    }

    #[test]
    fn a_disk_is_asked_once_and_its_successor_again() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), &["vda"]);
        let number = world.sys.join("block/vda/diskseq");
        fs::write(&number, "7\n").unwrap();
        let asks = |world: &World| !ask(world, questions(world, &["vda"])).held.is_empty();
        assert!(asks(&world));
        assert!(!asks(&world));
        fs::write(&number, "8\n").unwrap();
        assert!(asks(&world));
        // Nothing is silent that is gone.
        let hung = fs::remove_file(world.dev.join("vda"));
        hung.and_then(|()| fs::write(&number, "9\n")).unwrap();
        hanging(&world.dev.join("vda"));
        assert!(!ask(&world, questions(&world, &["vda"])).has("vda"));
        assert_eq!(silent(&world).len(), 1);
        fs::write(&number, "10\n").unwrap();
        assert_eq!(silent(&world), []);
    }

    #[test]
    fn the_wait_feeds_the_watchdog() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), &["vda", "hdb"]);
        let device = world.dev.join("watchdog0");
        fs::write(&device, "").unwrap();
        world.watchdog.want(Duration::from_secs(120));
        world.watchdog.arm(&world.dev, &world.sys).unwrap();
        let fed = || fs::metadata(&device).unwrap().len();
        let before = fed();
        drop(ask(&world, questions(&world, &["vda", "hdb"])));
        // Each second, and no more once the disk is left out.
        assert!((2..=4).contains(&(fed() - before)), "{}", fed() - before);
    }
}
