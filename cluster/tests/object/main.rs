//! Cluster objects: what they come to, and what is wrong with them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod addons;
mod cloud;
mod fields;
mod joins;
mod samples;
