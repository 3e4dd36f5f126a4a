//! Hosts: the program under the restrictions of containers, CI runners, file systems, proxies and mirrors. Each is one that it works
//! on, or that it refuses before any download, with the words that help.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cache;
mod container;
mod folders;
mod full;
mod host;
mod inputs;
mod mirrors;
mod network;
mod server;
mod users;
