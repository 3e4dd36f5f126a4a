//! Butane's additions to Ignition's language, expanded to plain Ignition: inline and local contents, mount units, trees of
//! local files, Quadlets.

mod contents;
mod mounts;
mod quadlets;
mod storage;
mod trees;
mod work;

use crate::tree::Node;

pub(crate) use work::{CheckInner, Work};
pub use work::{Options, Pack};

/// Expands all sugar of a config. Contents come first: a tree sets a file's contents only if the file has none.
pub(crate) fn expand(work: &mut Work<'_>, tree: &mut Node) {
    contents::translate(work, tree);
    mounts::add(work, tree);
    trees::add(work, tree);
    quadlets::add(work, tree);
}
