//! Log: kmsg with levels, and the active consoles.
//!
//! All trace messages go to the kernel's log, and so to the journal later. Messages that the operator at the machine
//! must see whatever `quiet` and `loglevel=` are set to are written to the consoles themselves.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

use crate::world::World;

/// The prefix of the init's lines in the kernel's log.
const NAME: &str = "slipway-init";
/// The kernel refuses longer records (`PRINTKRB_RECORD_MAX`).
const LONGEST: usize = 960;

/// Sends trace messages to `/dev/kmsg`, debug messages only if `debug`.
///
/// # Errors
/// If `/dev/kmsg` cannot be opened.
pub fn start(world: &World, debug: bool) -> Result<()> {
    // Without this the kernel drops all but ten lines in five seconds. systemd does the same.
    let ratelimit = world.proc.join("sys/kernel/printk_devkmsg");
    if let Err(error) = fs::write(&ratelimit, "on\n") {
        say(world, &format!("{}: {error}", ratelimit.display()));
    }
    let path = world.dev.join("kmsg");
    let kmsg = OpenOptions::new()
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let subscriber = Registry::default().with(Kmsg {
        kmsg: Mutex::new(kmsg),
        most: if debug { Level::DEBUG } else { Level::INFO },
    });
    tracing::subscriber::set_global_default(subscriber).context("starting the log")
}

/// Sends trace messages to stdout or stderr, for programs that a service manager runs. Each line begins with the name
/// of the program.
///
/// # Errors
/// If there is a log already.
pub fn plain(program: &'static str, to_stdout: bool) -> Result<()> {
    let subscriber = Registry::default().with(Plain { program, to_stdout });
    tracing::subscriber::set_global_default(subscriber).context("starting the log")
}

#[derive(Debug)]
struct Plain {
    program: &'static str,
    to_stdout: bool,
}

impl<S: Subscriber> Layer<S> for Plain {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = event.metadata().level();
        let line = format!(
            "{}: {level}: {}\n",
            self.program,
            text.0.replace('\n', " | ")
        );
        // There is nowhere else to report this to.
        match self.to_stdout {
            true => std::io::stdout().write_all(line.as_bytes()),
            false => std::io::stderr().write_all(line.as_bytes()),
        }
        .unwrap_or_default();
    }
}

/// Writes a line to every active console. One that takes no output is not waited for ([`crate::console`]).
pub fn say(world: &World, line: &str) {
    for console in consoles(world) {
        let path = world.dev.join(&console);
        if let Err(error) = world.consoles.write(&path, line) {
            tracing::debug!("writing to {}: {error}", path.display());
        }
    }
}

/// Writes a line to the consoles, and into the log with a level that the consoles do not show by default: once for the
/// operator at the machine, once for the journal.
pub fn announce(world: &World, line: &str) {
    tracing::info!("{}", line.strip_prefix("slipway: ").unwrap_or(line));
    say(world, line);
}

/// The names of the active consoles; `console` if the kernel does not list them.
pub fn consoles(world: &World) -> Vec<String> {
    let active = fs::read_to_string(world.sys.join("class/tty/console/active"));
    let names: Vec<String> = active
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        vec!["console".to_owned()]
    } else {
        names
    }
}

#[derive(Debug)]
struct Kmsg {
    kmsg: Mutex<File>,
    most: Level,
}

impl<S: Subscriber> Layer<S> for Kmsg {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.most
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let record = record(*event.metadata().level(), &text.0);
        if let Ok(mut kmsg) = self.kmsg.lock() {
            // There is nowhere else to report this to.
            kmsg.write_all(record.as_bytes()).unwrap_or_default();
        }
    }
}

/// One record for `/dev/kmsg`: syslog priority (facility 3, daemon, as systemd uses), name, text.
fn record(level: Level, text: &str) -> String {
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let text = text.replace('\n', " | ");
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= LONGEST)
        .last()
        .unwrap_or(0);
    format!("<{}>{NAME}: {}\n", 3 << 3 | priority, &text[..end])
}

/// The message of an event, and its fields behind it.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
        // Writing to a String cannot fail.
        written.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::world::Clock;

    #[test]
    fn records_have_priority_one_line_and_the_kernel_s_length() {
        assert_eq!(record(Level::ERROR, "a\nb"), "<27>slipway-init: a | b\n");
        let long = record(Level::DEBUG, &"é".repeat(2000));
        assert!(long.len() < 1000 && long.ends_with("é\n"));
    }

    #[test]
    fn every_active_console_is_spoken_to() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let active = world.sys.join("class/tty/console");
        fs::create_dir_all(&active).unwrap();
        fs::create_dir_all(&world.dev).unwrap();
        fs::write(active.join("active"), "tty0 ttyS0\n").unwrap();
        for name in ["tty0", "ttyS0", "ttyS1"] {
            fs::write(world.dev.join(name), "").unwrap();
        }
        say(&world, "hello");
        let read = |name: &str| fs::read_to_string(Path::new(&world.dev).join(name)).unwrap();
        assert_eq!(read("tty0"), "hello\n");
        assert_eq!(read("ttyS0"), "hello\n");
        assert_eq!(read("ttyS1"), "");
    }
}
