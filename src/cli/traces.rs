//! Traces of libraries and steps, which go to stderr: lines for people, objects for programs.

use std::io::{self, Write};

/// Sends traces to stderr: warnings only by default, information too with `verbose` 1, and everything with more. With `json` each is an object, as
/// all that a program reads there.
pub(crate) fn begin(verbose: u8, json: bool) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    let traces = tracing_subscriber::fmt();
    let traces = traces.with_max_level(level).without_time();
    match json {
        true => traces.with_writer(|| Objects).init(),
        false => traces.with_writer(io::stderr).init(),
    }
}

/// Writes each trace, which comes in one piece, as an object.
struct Objects;

impl Write for Objects {
    fn write(&mut self, trace: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(trace);
        let object = serde_json::json!({ "event": "trace", "text": text.trim() });
        writeln!(io::stderr().lock(), "{object}")?;
        Ok(trace.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
