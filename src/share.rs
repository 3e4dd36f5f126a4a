//! The remote cache: results of steps that machines share by a store, each signed by the machine that made it.
//!
//! A step's key is the hash of what it is made of, not of what it is, so that a store could answer with anything. Therefore each
//! result has a statement of its step, its key and the hash of its archive, with a signature of a key that the reader trusts. Nothing
//! of an archive is read, not even decompressed, before signature and hash are verified: who may write to the store, but has no such
//! key, can withhold results and no more.

pub mod keys;
mod link;
mod pack;
pub mod remote;
mod sending;
pub mod settings;
mod statement;
mod unpack;
