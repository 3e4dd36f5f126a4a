//! Signals: the work runs in a separate thread; a signal ends it at once or, if it holds a guard, in order.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use slipway::host::interrupt::Interrupt;

/// Time limit for guarded work to end in order, unless it has said another one.
const GRACE: Duration = Duration::from_secs(20);
/// The same after a second signal: to say what is cut off.
const MOMENT: Duration = Duration::from_secs(2);

/// Does the work in a separate thread, and abandons it after a signal: at once, or when the last
/// [`Guard`](slipway::host::interrupt::Guard) is dropped. A second signal leaves guarded work a moment, a third one nothing.
pub(crate) fn interruptible(
    interrupt: &Interrupt,
    work: impl FnOnce() -> Result<ExitCode> + Send + 'static,
) -> Result<Result<ExitCode>> {
    let (events, received) = mpsc::channel();
    let signalled = events.clone();
    let (ready, handled) = mpsc::channel();
    let thread = std::thread::Builder::new();
    thread.name("signals".to_owned()).spawn(move || {
        if let Err(error) = wait_for_signals(&signalled, &ready) {
            tracing::warn!("signals are not handled: {error:#}");
        }
    })?;
    // No work before: a signal would end the program with the work's files left behind. An error drops the sender.
    handled.recv().ok();
    let thread = std::thread::Builder::new();
    let worker = thread.name("work".to_owned()).spawn(move || {
        let _ended = Ended(events);
        work()
    })?;
    let mut deadline = None;
    loop {
        let event = match deadline {
            None => received.recv().context("waiting for the work")?,
            Some(_) => received
                .recv_timeout(Duration::from_millis(50))
                .unwrap_or(Event::Tick),
        };
        let over = match (event, deadline) {
            (Event::Done, _) => {
                return Ok(match worker.join() {
                    Ok(result) => result,
                    Err(_) => Err(anyhow::anyhow!("slipway panicked (a bug in Slipway)")),
                });
            }
            (Event::Signal, None) => {
                interrupt.request();
                deadline = Some(Instant::now() + interrupt.allowed().unwrap_or(GRACE));
                !interrupt.guarded()
            }
            (Event::Signal, Some(_)) if interrupt.requests() == 1 => {
                interrupt.request();
                deadline = Some(Instant::now() + MOMENT);
                !interrupt.guarded()
            }
            (Event::Signal, Some(_)) => true,
            (Event::Tick, deadline) => {
                !interrupt.guarded() || deadline.is_some_and(|deadline| deadline < Instant::now())
            }
        };
        if over {
            anyhow::bail!("interrupted");
        }
    }
}

/// Tells that the work is over when it is dropped: where the work panics too, which would be waited for until a signal otherwise.
struct Ended(mpsc::Sender<Event>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send(Event::Done).ok();
    }
}

/// An event that the main thread waits for.
enum Event {
    Done,
    Signal,
    Tick,
}

/// Tells `ready` once a signal is an event.
fn wait_for_signals(events: &mpsc::Sender<Event>, ready: &mpsc::Sender<()>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        ready.send(()).ok();
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            if events.send(Event::Signal).is_err() {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_ends_the_program_with_its_words() {
        let interrupt = Interrupt::default();
        let error = interruptible(&interrupt, || panic!("on purpose")).unwrap();
        assert_eq!(
            error.unwrap_err().to_string(),
            "slipway panicked (a bug in Slipway)"
        );
    }
}
