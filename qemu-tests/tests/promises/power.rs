//! Power cuts.

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::Lab;
use qemu_tests::random::{self, Random};
use qemu_tests::runner::note;
use qemu_tests::write_log::Writes;

use crate::first_boot::Recorded;

/// Number of power cuts.
const CUTS: usize = 20;
/// Number of cuts of a first boot whose recovery is cut as often.
const AGAIN: usize = 3;

/// The power is cut at twenty moments, spread over all writes of the first boot, at its flushes and in between; the next
/// boot gives the same result as an undisturbed one, and creates no file system twice.
pub(crate) fn a_first_boot_cut_off_anywhere_converges(lab: &mut Lab) -> Result<()> {
    let recorded = Recorded::new(lab)?;
    let moments = recorded.writes.spread(CUTS);
    ensure!(
        moments.len() == CUTS,
        "the first boot has only {} moments",
        moments.len()
    );
    for moment in moments {
        let copy = recorded.before()?;
        recorded.writes.replay(0..moment, &copy)?;
        recorded
            .converges(lab)
            .with_context(|| format!("the power was cut after {moment} writes and flushes"))?;
    }
    recorded.has_image()
}

/// The power of disks with a volatile cache is cut twenty times during the first boot: of the writes since the last flush,
/// which a disk may do in any order, each is there, is not, or is torn between two sectors, as a random number says. The
/// next boot gives the same result as an undisturbed one, and creates no file system twice.
pub(crate) fn a_first_boot_whose_disks_lose_unflushed_writes_converges(
    lab: &mut Lab,
) -> Result<()> {
    let recorded = Recorded::new(lab)?;
    let seed = random::seed()?;
    let mut lost = 0;
    for number in 0..CUTS {
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let until = cut(&recorded.writes, number, &mut random)?;
        let flushed = recorded.writes.flushed(until);
        let copy = recorded.before()?;
        recorded.writes.replay(0..flushed, &copy)?;
        let fates = recorded
            .writes
            .replay_losing(flushed..until, &mut random, &copy)?;
        lost += fates.lost + fates.torn;
        let cut = format!(
            "cut {number} of seed {seed:#x}, after {until} writes and flushes, the last flush {flushed}: {fates:?}"
        );
        note(&cut);
        recorded.converges(lab).with_context(|| cut)?;
    }
    ensure!(lost > CUTS, "only {lost} writes were lost or torn");
    recorded.has_image()
}

/// The power is cut during the first boot, and again at several moments of the boot that completes it; the third boot gives the
/// same result as an undisturbed one, and creates no file system twice.
pub(crate) fn a_recovery_that_is_cut_off_converges(lab: &mut Lab) -> Result<()> {
    let recorded = Recorded::new(lab)?;
    let mut cuts = 0;
    for first in recorded.writes.spread(AGAIN) {
        let copy = recorded.before()?;
        recorded.writes.replay(0..first, &copy)?;
        let about = || format!("the power was cut after {first} writes and flushes");
        let recovery = recorded.recovery(lab).with_context(about)?;
        for second in recovery.spread(AGAIN) {
            let copy = recorded.before()?;
            recorded.writes.replay(0..first, &copy)?;
            recovery.replay(0..second, &copy)?;
            recorded
                .converges(lab)
                .with_context(|| format!("{}, and after {second} of the next boot", about()))?;
            cuts += 1;
        }
    }
    ensure!(cuts > AGAIN, "the recoveries had only {cuts} moments");
    recorded.has_image()
}

/// Where the power is cut, as a number of operations: by turns just before a flush that ends (the most is at stake), and
/// after any operation; spread over the log.
fn cut(writes: &Writes, number: usize, random: &mut Random) -> Result<usize> {
    let flushes = writes.flushes();
    let choices = if number.is_multiple_of(2) {
        flushes.len()
    } else {
        writes.count()
    };
    let (from, to) = (number * choices / CUTS, (number + 1) * choices / CUTS);
    ensure!(from < to, "the log has only {choices} places for a cut");
    let choice = from + random.below(to - from);
    Ok(match number.is_multiple_of(2) {
        true => flushes[choice],
        false => choice + 1,
    })
}
