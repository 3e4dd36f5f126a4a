//! Timeline: each step as a span, kept in `state` and shown after the boot.

use std::sync::{Arc, Mutex};

use image::timeline::{self, Span};

use crate::world::World;

/// The record of this boot. Clones write to the same record.
#[derive(Clone, Debug)]
pub struct Timeline {
    world: Arc<World>,
    spans: Arc<Mutex<Vec<Span>>>,
    current: Arc<Mutex<String>>,
}

impl Timeline {
    /// An empty record.
    pub fn new(world: Arc<World>) -> Self {
        Self {
            world,
            spans: Arc::default(),
            current: Arc::default(),
        }
    }

    /// Runs a step and records its begin and end, whatever its result is.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        if !name.contains('.') {
            self.enter(name);
        }
        let start = self.world.micros();
        let out = work();
        self.span("init", name, start, None);
        out
    }

    /// Records that a step of the boot line begins.
    pub fn enter(&self, name: &str) {
        if let Ok(mut current) = self.current.lock() {
            name.clone_into(&mut current);
        }
    }

    /// The step of the boot line that began last: failures are attributed to it.
    pub fn current(&self) -> String {
        self.current
            .lock()
            .map(|current| current.clone())
            .unwrap_or_default()
    }

    /// Records a span that began at `start` (µs since boot) and ends now.
    pub fn span(&self, source: &str, name: &str, start: i64, note: Option<String>) {
        self.add(Span {
            source: source.to_owned(),
            name: name.to_owned(),
            start,
            end: Some(self.world.micros()),
            note,
        });
    }

    /// Records a span that was measured elsewhere.
    pub fn add(&self, span: Span) {
        tracing::debug!(
            "{} {}: {} to {} µs",
            span.source,
            span.name,
            span.start,
            span.end.unwrap_or(span.start)
        );
        if let Ok(mut spans) = self.spans.lock() {
            spans.push(span);
        }
    }

    /// The record as JSON lines, by time of begin.
    pub fn to_lines(&self) -> String {
        let spans = self.spans.lock();
        timeline::to_lines(spans.map(|spans| spans.clone()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::world::Clock;

    #[test]
    fn lines_are_in_order_of_begin_and_hold_the_times() {
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(5));
        let world = Arc::new(World::below(Path::new("/w"), clock));
        let timeline = Timeline::new(Arc::clone(&world));
        timeline.step("root", || {
            timeline.step("root.verity", || world.sleep(Duration::from_micros(7)));
        });
        let spans: Vec<Span> = timeline
            .to_lines()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let times: Vec<_> = spans
            .iter()
            .map(|s| (s.name.as_str(), s.start, s.end))
            .collect();
        assert_eq!(times, [("root.verity", 5, Some(12)), ("root", 5, Some(12))]);
    }
}
