//! Options of a translation, and the state that its steps share.

use crate::local_files::{Files, NoFiles};
use crate::origins::Origins;
use crate::report::Report;

/// Options of a translation.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The files that `local` and the similar keys name.
    pub files: &'a dyn Files,
    /// Compresses contents where that makes a config smaller. A node sets none: it reads the contents at once, and its
    /// program carries no compressor.
    pub pack: Option<Pack>,
}

/// Packs bytes with gzip.
pub type Pack = fn(&[u8]) -> Vec<u8>;

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("pack", &self.pack.is_some())
            .finish_non_exhaustive()
    }
}

impl Options<'static> {
    /// No local files, nothing packed.
    pub const BARE: Self = Self {
        files: &NoFiles,
        pack: None,
    };
}

/// Checks the text of a config inside another one, and returns the findings. The second argument is the text's name in
/// messages. A function of the caller, since the module that reads both languages is above this one.
pub(crate) type CheckInner = fn(&[u8], &str) -> Report;

/// The state that the steps of one translation share.
pub(crate) struct Work<'a> {
    pub(crate) options: Options<'a>,
    /// The minor number of the Ignition specification that the config becomes.
    pub(crate) minor: u8,
    /// Checks a config inside this one; none if this one is inside another.
    pub(crate) check_inner: Option<CheckInner>,
    pub(crate) report: Report,
    /// The positions in the YAML of the translated parts.
    pub(crate) origins: Origins,
}
