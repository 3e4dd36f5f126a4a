//! A switch between a machine's cards and its user network: the cards' side is in a VLAN, the network's has no tags.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use slipway::vm::machine::nets::Net;

/// IEEE 802.1Q: the tag's type.
const TAGGED: [u8; 2] = [0x81, 0x00];
/// Both Ethernet addresses, which come before the tag.
const ADDRESSES: usize = 12;
/// The longest packet that is passed on: QEMU's own limit.
const LONGEST: usize = 68 << 10;

/// A switch that waits for QEMU to connect both sides.
#[derive(Debug)]
pub struct Switch {
    cards: UnixListener,
    user: UnixListener,
}

impl Switch {
    /// Listens for the machine whose files are in this folder, as its network `number`.
    ///
    /// # Errors
    /// If a socket cannot be bound.
    pub fn listen(folder: &Path, number: usize) -> Result<Self> {
        let handle =
            std::fs::File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
        // Through the folder's descriptor: a socket's path has at most 107 bytes (unix(7)).
        let bind = |name: String| {
            let path = format!("/proc/self/fd/{}/{name}", handle.as_raw_fd());
            // That of the node's boot before.
            std::fs::remove_file(&path).unwrap_or_default();
            UnixListener::bind(path).with_context(|| format!("binding {name}"))
        };
        let [cards, user] = Net::sockets(number);
        Ok(Self {
            cards: bind(cards)?,
            user: bind(user)?,
        })
    }

    /// Passes on what the cards send with this tag, and all that the network sends, with the tag. Ends with the machine.
    ///
    /// # Errors
    /// When a side closes its connection.
    pub fn run(&self, vlan: u16) -> Result<()> {
        let (cards, _) = self.cards.accept().context("waiting for the cards")?;
        let (user, _) = self.user.accept().context("waiting for the network")?;
        let (from_user, to_cards) = (user.try_clone()?, cards.try_clone()?);
        let back = std::thread::spawn(move || {
            pass(from_user, to_cards, |packet| Some(tagged(packet, vlan)))
        });
        let there = pass(cards, user, |packet| untagged(packet, vlan));
        match back.join() {
            Ok(back) => there.and(back),
            Err(_) => there,
        }
    }
}

/// Passes packets from one connection to another, changed or left out.
fn pass(
    mut from: UnixStream,
    mut to: UnixStream,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<()> {
    let mut length = [0; 4];
    loop {
        from.read_exact(&mut length).context("reading a length")?;
        let wanted = usize::try_from(u32::from_be_bytes(length))?;
        ensure!(wanted <= LONGEST, "a packet of {wanted} bytes");
        let mut packet = vec![0; wanted];
        from.read_exact(&mut packet).context("reading a packet")?;
        if let Some(packet) = change(&packet) {
            let length = u32::try_from(packet.len())?.to_be_bytes();
            to.write_all(&[&length, packet.as_slice()].concat())
                .context("passing a packet on")?;
        }
    }
}

fn tagged(packet: &[u8], vlan: u16) -> Vec<u8> {
    let (addresses, rest) = packet.split_at(ADDRESSES.min(packet.len()));
    [addresses, &TAGGED, &vlan.to_be_bytes(), rest].concat()
}

/// A packet without its tag; none if it has none or another one.
fn untagged(packet: &[u8], vlan: u16) -> Option<Vec<u8>> {
    let (addresses, rest) = packet.split_at_checked(ADDRESSES)?;
    let (tag, rest) = rest.split_first_chunk::<4>()?;
    let [high, low] = [tag[2] & 0x0f, tag[3]];
    let is_it = tag[..2] == TAGGED && u16::from_be_bytes([high, low]) == vlan;
    is_it.then(|| [addresses, rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_of_the_vlan_pass() {
        let packet: Vec<u8> = (0..64).collect();
        let with_tag = tagged(&packet, 5);
        assert_eq!(with_tag[12..16], [0x81, 0, 0, 5]);
        assert_eq!(untagged(&with_tag, 5), Some(packet.clone()));
        assert_eq!(untagged(&with_tag, 6), None);
        assert_eq!(untagged(&packet, 5), None);
        assert_eq!(untagged(&packet[..11], 5), None);
    }
}
