//! Outcome: how a machine's first boot ended, as some vendors want it reported.

/// How the first boot of a machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The config is applied.
    Ready,
    /// The config cannot be applied, for this reason.
    Failed(&'a str),
}
