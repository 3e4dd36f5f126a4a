//! An Ethernet hub that machines are plugged into: what one sends, all others receive.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

/// The longest packet that is passed on: QEMU's own limit.
const LONGEST: usize = 68 << 10;
/// How long a machine may take to receive a packet. Those behind it are lost to the machine until it takes packets again, as on a real
/// network: one that is stopped, or whose firmware or kernel starts, takes none, and holds nobody up for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A machine's card for a hub.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The hub that it is plugged into.
    pub hub: Hub,
    /// Its Ethernet address.
    pub mac: String,
}

/// A hub. Each packet on a connection is preceded by its length, four bytes, highest first, as QEMU's `stream` network
/// sends it.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    plugs: Arc<Mutex<Vec<Plug>>>,
}

#[derive(Clone, Debug)]
struct Plug {
    number: usize,
    to: Arc<Mutex<Outlet>>,
}

/// The way to a machine.
#[derive(Debug)]
struct Outlet {
    socket: UnixStream,
    /// What the machine has not taken of the last packet; as long as there is some, it is the machine that is waited for.
    rest: Vec<u8>,
}

impl Outlet {
    /// Sends a packet, unless the machine takes none.
    ///
    /// # Errors
    /// If the machine has ended.
    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        if !self.take_rest()? {
            return Ok(());
        }
        let mut left = packet;
        while !left.is_empty() {
            match self.socket.write(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => left = &left[sent..],
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // The limit of a write (`SO_SNDTIMEO`, socket(7)).
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        left.clone_into(&mut self.rest);
                        return Ok(());
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Whether the machine has taken all of the last packet by now; it is not waited for.
    fn take_rest(&mut self) -> io::Result<bool> {
        if self.rest.is_empty() {
            return Ok(true);
        }
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = match send(self.socket.as_raw_fd(), &self.rest, flags) {
            Ok(sent) => sent,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        self.rest.drain(..sent);
        Ok(self.rest.is_empty())
    }
}

impl Hub {
    /// Plugs in the machine at the other end of this connection.
    ///
    /// # Errors
    /// If no thread can be started for it.
    pub fn plug(&self, machine: UnixStream) -> Result<()> {
        // Until here it was waited for without blocking.
        machine.set_nonblocking(false)?;
        machine.set_write_timeout(Some(PATIENCE))?;
        let number = self.join(machine.try_clone().context("sharing a connection")?);
        let hub = self.clone();
        let thread = std::thread::Builder::new().name("hub".to_owned());
        let started = thread.spawn(move || {
            // The end of the connection is the end of the machine.
            let end = hub.pass(machine, number);
            tracing::debug!("machine {number} left the hub: {:?}", end.err());
            hub.leave(number);
        });
        started.context("starting a thread").map(drop)
    }

    fn join(&self, socket: UnixStream) -> usize {
        let mut plugs = self.plugs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = plugs.iter().map(|plug| plug.number + 1).max().unwrap_or(0);
        let rest = Vec::new();
        let to = Arc::new(Mutex::new(Outlet { socket, rest }));
        plugs.push(Plug { number, to });
        number
    }

    fn leave(&self, number: usize) {
        let mut plugs = self.plugs.lock().unwrap_or_else(PoisonError::into_inner);
        plugs.retain(|plug| plug.number != number);
    }

    fn pass(&self, mut from: UnixStream, number: usize) -> Result<()> {
        loop {
            let packet = packet(&mut from)?;
            let plugs = self.plugs.lock().unwrap_or_else(PoisonError::into_inner);
            let others: Vec<Plug> = plugs
                .iter()
                .filter(|plug| plug.number != number)
                .cloned()
                .collect();
            drop(plugs);
            for other in others {
                let mut to = other.to.lock().unwrap_or_else(PoisonError::into_inner);
                if to.send(&packet).is_err() {
                    drop(to);
                    self.leave(other.number);
                }
            }
        }
    }
}

/// The next packet, with its length before it.
fn packet(from: &mut UnixStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let wanted = usize::try_from(u32::from_be_bytes(length))?;
    anyhow::ensure!(wanted <= LONGEST, "a packet of {wanted} bytes");
    let mut packet = length.to_vec();
    packet.resize(length.len() + wanted, 0);
    from.read_exact(&mut packet[length.len()..])?;
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The ends of three machines that are plugged into a hub.
    fn plugged() -> Vec<UnixStream> {
        let hub = Hub::default();
        let plug = |_| {
            let (machine, end) = UnixStream::pair().unwrap();
            machine
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            hub.plug(end).unwrap();
            machine
        };
        (0..3).map(plug).collect()
    }

    /// A packet of Ethernet's usual length that says its number.
    fn numbered(number: u32) -> Vec<u8> {
        let mut packet = 1400_u32.to_be_bytes().to_vec();
        packet.extend(number.to_be_bytes());
        packet.resize(4 + 1400, 0);
        packet
    }

    /// A node that is rebooted takes none until its driver is there again.
    #[test]
    fn a_machine_that_takes_no_packets_holds_up_nobody_and_gets_later_ones() {
        /// More than a socket keeps.
        const MANY: u32 = 1000;
        let mut machines = plugged();
        let mut stopped = machines.remove(1);
        let begin = Instant::now();
        for number in 0..MANY {
            machines[0].write_all(&numbered(number)).unwrap();
            assert_eq!(packet(&mut machines[1]).unwrap(), numbered(number));
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        let reader = std::thread::spawn(move || {
            loop {
                let found = packet(&mut stopped).unwrap();
                let number = u32::from_be_bytes(found[4..8].try_into().unwrap());
                // Whole packets, whatever is lost between them.
                assert_eq!(found, numbered(number));
                if number >= MANY {
                    return;
                }
            }
        });
        let mut number = MANY;
        while !reader.is_finished() {
            machines[0].write_all(&numbered(number)).unwrap();
            assert_eq!(packet(&mut machines[1]).unwrap(), numbered(number));
            number += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_packet_reaches_all_others_and_not_its_sender() {
        let mut machines = plugged();
        let sent = [&4_u32.to_be_bytes()[..], b"ping"].concat();
        machines[0].write_all(&sent).unwrap();
        for other in &mut machines[1..] {
            assert_eq!(packet(other).unwrap(), sent);
        }
        machines[0].set_nonblocking(true).unwrap();
        assert!(packet(&mut machines[0]).is_err());
        // One that ended is left out, and the others go on.
        drop(machines.remove(1));
        machines[1].write_all(&sent).unwrap();
        machines[0].set_nonblocking(false).unwrap();
        assert_eq!(packet(&mut machines[0]).unwrap(), sent);
    }
}
