//! Deadline: work in a thread that is abandoned when its time is over. Nobody else can end a request that hangs.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use linux::waiter::Waiter;
use linux::world::World;

/// How often the thread is looked after.
const STEP: Duration = Duration::from_secs(1);

/// The result of `work`, which is waited for `limit` at most; `what` says on the consoles what is waited for.
///
/// # Errors
/// As `work`, and when the time is over.
pub(crate) fn within<T: Send + 'static>(
    world: &World,
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    // The receiver may have reached its time limit.
    let work = move || sender.send(work()).unwrap_or_default();
    let started = std::thread::Builder::new().spawn(work);
    started.with_context(|| format!("starting a thread for {what}"))?;
    wait(world, what, &receiver, limit).with_context(|| format!("waiting for {what}"))?
}

fn wait<T>(world: &World, what: &str, receiver: &mpsc::Receiver<T>, limit: Duration) -> Result<T> {
    let mut waiter = Waiter::until(world, limit);
    loop {
        waiter.examined();
        match receiver.recv_timeout(waiter.pause(STEP)) {
            Ok(found) => return Ok(found),
            Err(RecvTimeoutError::Disconnected) => bail!("the thread for it has ended"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        ensure!(!waiter.is_over(), "not within {} s", limit.as_secs());
        waiter.say(what);
    }
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;

    #[test]
    fn work_that_hangs_is_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let limit = Duration::from_millis(50);
        assert_eq!(within(&world, "it", limit, || Ok(7)).unwrap(), 7);
        let failed = within(&world, "it", limit, || bail!("refused") as Result<()>);
        assert_eq!(failed.unwrap_err().to_string(), "refused");
        let hung = within(&world, "the server", limit, || {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        });
        let error = format!("{:#}", hung.unwrap_err());
        assert_eq!(error, "waiting for the server: not within 0 s");
    }
}
