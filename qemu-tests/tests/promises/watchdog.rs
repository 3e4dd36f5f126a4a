//! The watchdog: fed by progress, starved by a hang, handed to systemd.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use image::cmdline::WATCHDOG;
use qemu_tests::http::{self, Request};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::json;
use slipway::vm::channel::Waited;
use slipway::vm::machine::Start;

/// The watchdog's time. The longest gap without a feeding is that between the init's last and systemd's first, some seconds
/// in software emulation.
const TIME: Duration = Duration::from_secs(20);
/// Bytes of the slow file, which come thirty a second.
const SLOW: usize = 1500;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(33);
/// A part of the download that is longer than the watchdog's time, and shorter than the download.
const UNHARMED: Duration = Duration::from_secs(30);
/// From the end of the download to the reset: the watchdog's time, on a loaded host.
const RESET: Duration = Duration::from_secs(120);

/// A first boot whose file comes slower than the watchdog's time is not reset, and the consoles show what comes. Then its disk
/// hangs, and with it the init: the watchdog resets the machine. The next boot ends in a panic, and restarts. The third one is
/// handed to systemd, which takes the watchdog over in time.
pub(crate) fn a_slow_download_is_left_alone_and_a_hang_is_reset(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let mut machine = lab.machine(&node, &BootOptions::default())?;
    let disks = machine.disks.len();
    if let Start::Direct { cmdline, .. } = &mut machine.start {
        let words = format!(" {WATCHDOG}={} unknown_nmi_panic", TIME.as_secs());
        cmdline.push_str(&words);
    }
    let slow = Arc::new(AtomicBool::new(true));
    let url = serve(Arc::clone(&slow))?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/etc/slow", "contents": { "source": url } }] },
    });
    let running = lab.start(&node, machine, Some(config))?;

    let line = format!("slipway: waiting for {url}, ");
    lines(&running, &line, 1)?;
    std::thread::sleep(UNHARMED);
    ensure!(
        resets(&running) == (0, 0),
        "reset within a download: {:?}",
        running.vm.events()
    );
    lines(&running, &line, 5)?;

    for disk in 0..disks {
        running.vm.throttle(disk, 1)?;
    }
    reset(&running, 1, 0).context("waiting for the watchdog, with hanging disks")?;
    for disk in 0..disks {
        running.vm.throttle(disk, 0)?;
    }

    let before = running.vm.console().text().matches(&line).count();
    lines(&running, &line, before + 1)?;
    let (_, resets_before) = resets(&running);
    running.vm.inject_nmi()?;
    running.wait_console(&["Kernel panic - not syncing"], timeouts::INIT)?;
    slow.store(false, Ordering::Relaxed);
    reset(&running, 1, resets_before).context("waiting for the restart after a panic")?;

    running.wait_handoff(timeouts::INIT)?;
    let at_handoff = resets(&running);
    running.wait_services()?;
    let found = running.run(
        "cat /sys/class/watchdog/watchdog0/identity /sys/class/watchdog/watchdog0/timeout; \
         systemctl show -P RuntimeWatchdogUSec; wc -c < /etc/slow",
    )?;
    let found: Vec<&str> = found.lines().collect();
    ensure!(
        found == ["i6300ESB timer", "20", "20s", "1500"],
        "the running node has {found:?}"
    );
    // systemd has fed it, or it would have reset the machine by now.
    std::thread::sleep(TIME);
    ensure!(
        resets(&running) == at_handoff,
        "reset behind the handoff: {:?}",
        running.vm.events()
    );
    Ok(())
}

/// How often the watchdog has expired, and how often the machine was reset by it or by the guest.
fn resets(running: &Running) -> (usize, usize) {
    let events = running.vm.events();
    let count = |name: &str| events.iter().filter(|event| event.name == name).count();
    (count("WATCHDOG"), count("RESET"))
}

/// Waits until the watchdog has expired so often, and the machine was reset more than `before` times: QEMU reports a reset
/// by its watchdog more than once.
fn reset(running: &Running, expired: usize, before: usize) -> Result<()> {
    let until = Instant::now() + RESET;
    loop {
        let found = resets(running);
        if found.0 == expired && found.1 > before {
            return Ok(());
        }
        if Instant::now() >= until {
            bail!(
                "expected {expired} expiries and more than {before} resets within {} s, found {:?}",
                RESET.as_secs(),
                running.vm.events()
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until `line` is so often on the console.
fn lines(running: &Running, line: &str, times: usize) -> Result<()> {
    let enough = |text: &str| (text.matches(line).count() >= times).then_some(());
    match running.vm.console().wait(timeouts::INIT, enough) {
        Waited::Found(()) => Ok(()),
        other => bail!("{line:?} was not {times} times on the console: {other:?}"),
    }
}

/// A server of one file, which comes slowly as long as `slow` says so; gives its address as the guest has it.
fn serve(slow: Arc<AtomicBool>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let pause = match slow.load(Ordering::Relaxed) {
                true => PAUSE,
                false => Duration::ZERO,
            };
            // A reset of the machine cuts an answer short.
            std::thread::spawn(move || drop(answer(connection, pause)));
        }
    });
    Ok(format!("http://10.0.2.2:{port}/slow"))
}

fn answer(mut connection: TcpStream, pause: Duration) -> Result<()> {
    Request::read(&mut connection)?;
    connection.set_nodelay(true)?;
    http::answer_head(&mut connection, "200 OK", SLOW)?;
    for _ in 0..SLOW {
        std::thread::sleep(pause);
        connection.write_all(b"x")?;
    }
    Ok(())
}
