//! An Ethernet hub that machines are plugged into: what one sends, all others receive.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// The longest packet that is passed on: QEMU's own limit.
const LONGEST: usize = 68 << 10;
/// How long a machine may take to receive a packet before it is unplugged: a stopped one holds nobody up for longer.
const PATIENCE: Duration = Duration::from_secs(20);

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
    to: Arc<Mutex<UnixStream>>,
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

    fn join(&self, to: UnixStream) -> usize {
        let mut plugs = self.plugs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = plugs.iter().map(|plug| plug.number + 1).max().unwrap_or(0);
        let to = Arc::new(Mutex::new(to));
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
                if to.write_all(&packet).is_err() {
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
    use super::*;

    #[test]
    fn a_packet_reaches_all_others_and_not_its_sender() {
        let hub = Hub::default();
        let mut machines = Vec::new();
        for _ in 0..3 {
            let (machine, end) = UnixStream::pair().unwrap();
            machine
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            hub.plug(end).unwrap();
            machines.push(machine);
        }
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
