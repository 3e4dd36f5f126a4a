//! A room's box.

/// Height of a box.
pub(crate) const HEIGHT: f64 = 20.0;
/// Distance from a box's border to its text.
pub(crate) const PADDING: f64 = 6.0;

/// A box with a room's name and lines, at coordinates relative to the crate's.
#[derive(Clone, Debug)]
pub(crate) struct Box {
    pub(crate) name: String,
    pub(crate) lines: String,
    pub(crate) x: f64,
    pub(crate) y: f64,
}

impl Box {
    /// Width of the text: a letter of a monospaced font has six tenths of the font's size.
    pub(crate) fn width(&self) -> f64 {
        letters(&self.name) * 11.0 * 0.6 + letters(&self.lines) * 8.5 * 0.6 + 3.0 * PADDING
    }
}

/// The number of letters of a text.
pub(crate) fn letters(text: &str) -> f64 {
    count(text.chars().count())
}

/// A count as a coordinate.
pub(crate) fn count(things: usize) -> f64 {
    f64::from(u32::try_from(things).unwrap_or(u32::MAX))
}
