//! Each provider against a server on loopback that answers as its vendor documents, and that fails as services do.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod aws;
mod azure;
mod bench;
mod drives;
mod gcp;
mod openstack;
mod qemu;
mod server;
mod small;

/// A config, short enough to be read in a failure.
const CONFIG: &str = r#"{"ignition": {"version": "3.5.0"}}"#;
/// A public key.
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBjYTHGYkNK7DZ4Gn0NGN1sjFUVapus4GXybEYg me";
