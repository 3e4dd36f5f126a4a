//! Links: over which of a machine's network interfaces servers are asked, for machines where not each leads to every server.

use std::fmt;
use std::sync::Arc;

type Names = dyn Fn() -> Vec<String> + Send + Sync;
type Answered = dyn Fn(&str) + Send + Sync;

/// The links over which servers can be asked, by the kernel's names, in the order in which they are. The default has none:
/// then the kernel's routes alone decide.
#[derive(Clone, Default)]
pub struct Links(Option<Arc<(Box<Names>, Box<Answered>)>>);

impl Links {
    /// `names` gives the links that have a route at the time of its call; `answered` gets the one over which a server has
    /// answered.
    pub fn new(
        names: impl Fn() -> Vec<String> + Send + Sync + 'static,
        answered: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new((Box::new(names), Box::new(answered)))))
    }

    /// The links that have a route now.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.as_ref().map_or_else(Vec::new, |calls| (calls.0)())
    }

    /// The link of an attempt, the first being 0: each in turn.
    pub(crate) fn of_attempt(&self, attempt: u32) -> Option<String> {
        let mut names = self.names();
        let count = u32::try_from(names.len()).ok().filter(|count| *count > 0)?;
        Some(names.swap_remove(usize::try_from(attempt % count).ok()?))
    }

    pub(crate) fn answered(&self, link: &str) {
        if let Some(calls) = &self.0 {
            (calls.1)(link);
        }
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Links").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_take_turns() {
        let links = Links::new(|| vec!["eth0".to_owned(), "eth1".to_owned()], |_| ());
        let tried: Vec<_> = (0..3)
            .filter_map(|attempt| links.of_attempt(attempt))
            .collect();
        assert_eq!(tried, ["eth0", "eth1", "eth0"]);
        assert_eq!(Links::default().of_attempt(0), None);
    }
}
