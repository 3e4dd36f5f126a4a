//! Telling systemd that a service is ready (sd_notify(3)).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context, Result};

/// Where systemd has the path of its socket, for services of `Type=notify`; an abstract one begins with `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Says that this service is ready. Nothing if nobody waits for it, as where a person starts the command.
///
/// # Errors
/// If systemd does not take it.
pub(crate) fn ready() -> Result<()> {
    match std::env::var(SOCKET) {
        Ok(socket) => send(&socket).with_context(|| format!("telling systemd at {socket}")),
        Err(_) => Ok(()),
    }
}

fn send(socket: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.send_to_addr(b"READY=1", &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("slipway-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, text) in [
            (
                UnixDatagram::bind(&path).unwrap(),
                path.display().to_string(),
            ),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}"),
            ),
        ] {
            send(&text).unwrap();
            let mut message = [0; 16];
            let length = socket.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1");
        }
        assert!(send("/nowhere/notify").is_err());
    }
}
