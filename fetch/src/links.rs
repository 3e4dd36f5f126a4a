//! Links: over which of a machine's network interfaces servers are asked, for machines where not each leads to every server.

use std::fmt;
use std::sync::Arc;

/// A way to a server: over this link, by the kernel's name, or as the kernel's routes lead.
pub type Way = Option<String>;

type Ways = dyn Fn() -> Vec<Way> + Send + Sync;
type Answered = dyn Fn(&Way) + Send + Sync;

/// The ways to servers, in the order in which they are tried. The default has the kernel's routes alone.
#[derive(Clone, Default)]
pub struct Links(Option<Arc<(Box<Ways>, Box<Answered>)>>);

impl Links {
    /// `ways` gives the ways that there are at the time of its call; `answered` gets the one by which a server has answered.
    pub fn new(
        ways: impl Fn() -> Vec<Way> + Send + Sync + 'static,
        answered: impl Fn(&Way) + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new((Box::new(ways), Box::new(answered)))))
    }

    /// The ways that there are now; the kernel's routes if there is no other.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let mut ways = self.0.as_ref().map_or_else(Vec::new, |calls| (calls.0)());
        if ways.is_empty() {
            ways.push(None);
        }
        ways
    }

    /// The way of an attempt, the first being 0: each in turn.
    pub(crate) fn of_attempt(&self, attempt: u32) -> Way {
        let mut ways = self.ways();
        let turn = usize::try_from(attempt).unwrap_or(0) % ways.len();
        ways.swap_remove(turn)
    }

    pub(crate) fn answered(&self, way: &Way) {
        if let Some(calls) = &self.0 {
            (calls.1)(way);
        }
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Links").field(&self.ways()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_take_turns() {
        let links = Links::new(|| vec![None, Some("eth1".to_owned())], |_| ());
        let tried: Vec<Way> = (0..3).map(|attempt| links.of_attempt(attempt)).collect();
        assert_eq!(tried, [None, Some("eth1".to_owned()), None]);
        assert_eq!(Links::default().of_attempt(7), None);
    }
}
