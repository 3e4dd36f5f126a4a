//! Contents of one file, in memory.

use std::fmt;

/// What a file is made of.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// What it begins with; `None` when the config only appends, or says nothing.
    pub contents: Option<Vec<u8>>,
    /// What is appended, in order.
    pub append: Vec<Vec<u8>>,
}

/// Contents may be secret: only their sizes are shown.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let append: Vec<usize> = self.append.iter().map(Vec::len).collect();
        write!(
            f,
            "Contents({:?} bytes + {append:?})",
            self.contents.as_ref().map(Vec::len)
        )
    }
}
