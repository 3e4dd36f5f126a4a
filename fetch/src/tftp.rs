//! TFTP: RFC 1350, with the options of RFC 2347 to 2349: larger blocks, and the size in advance.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::ending::Ending;
use crate::failure::chain;

/// Bytes of a block without options.
const BLOCK: usize = 512;
/// The block size to request: with all headers a block fits into one Ethernet frame, IPv6 and a tunnel included.
const LARGE_BLOCK: usize = 1428;
/// Silence after which the last packet is sent again; it doubles up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(4);
/// How long one address of a server is waited for before the next one is asked.
const ADDRESS: Duration = Duration::from_secs(2);

const READ: u16 = 1;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const OPTIONS: u16 = 6;

/// Errors that another attempt does not correct: file not found, access violation, no such user.
const FINAL: [u16; 3] = [1, 2, 7];
/// Errors of a server that does not support options: it should ignore them, but some refuse the request.
const NO_OPTIONS: [u16; 2] = [4, BAD_OPTION];
const UNKNOWN_TRANSFER: u16 = 5;
const BAD_OPTION: u16 = 8;

/// A file on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The address for messages.
    pub(crate) shown: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    /// Whether to request options for larger blocks.
    pub(crate) options: bool,
}

impl Place {
    /// Asks for the file, over a link if one is named, at the first of the server's addresses that answers. The answers come
    /// by [`Transfer::next`].
    pub(crate) async fn open(&self, link: Option<&str>) -> Result<Transfer, Ending> {
        let addresses = tokio::net::lookup_host((self.host.as_str(), self.port))
            .await
            .map_err(|error| chain(&error))?;
        self.open_one_of(addresses.collect(), link).await
    }

    /// The last address is waited for without end: the caller enforces the deadline.
    async fn open_one_of(
        &self,
        mut addresses: Vec<SocketAddr>,
        link: Option<&str>,
    ) -> Result<Transfer, Ending> {
        let last = addresses
            .pop()
            .ok_or_else(|| Ending::broken("the server's name has no address"))?;
        for server in addresses {
            // Without a route to it, as to an address of version 6 in a network of version 4.
            let Ok(transfer) = self.open_at(server, link).await else {
                continue;
            };
            if timeout(ADDRESS, transfer.answered()).await.is_ok() {
                return Ok(transfer);
            }
        }
        self.open_at(last, link).await
    }

    async fn open_at(&self, server: SocketAddr, link: Option<&str>) -> Result<Transfer, Ending> {
        let own: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(own).await.map_err(|error| chain(&error))?;
        if let Some(link) = link {
            let bound = socket.bind_device(Some(link.as_bytes()));
            bound.map_err(|error| chain(&error))?;
        }
        let transfer = Transfer {
            socket,
            server,
            begun: false,
            asked_options: self.options,
            last: self.read_request(),
            expected: 1,
            block: BLOCK,
            size: None,
            had: 0,
            done: false,
            buffer: vec![0; LARGE_BLOCK + 5],
        };
        transfer.send().await?;
        Ok(transfer)
    }

    fn read_request(&self) -> Vec<u8> {
        let mut request = READ.to_be_bytes().to_vec();
        let mut words = vec![self.path.clone(), "octet".to_owned()];
        if self.options {
            words.extend(["blksize".to_owned(), LARGE_BLOCK.to_string()]);
            words.extend(["tsize".to_owned(), "0".to_owned()]);
        }
        for word in words {
            request.extend(word.into_bytes());
            request.push(0);
        }
        request
    }

    /// The failure that a server's error means. If the error is about the options, the next request omits them.
    pub(crate) fn error(&mut self, code: u16, message: &str) -> Ending {
        let why = format!("the server answered {message:?} (TFTP error {code})");
        if FINAL.contains(&code) {
            return Ending::refused(&self.shown, why);
        }
        if NO_OPTIONS.contains(&code) {
            self.options = false;
        }
        Ending::broken(why)
    }
}

/// One step of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The size of the file.
    Size(u64),
    /// The next bytes.
    Data(Vec<u8>),
    /// An error: code and text.
    Error(u16, String),
    /// The end.
    End,
}

/// A transfer in progress.
pub(crate) struct Transfer {
    socket: UdpSocket,
    /// Destination of packets: the server's well-known port, then the source port of its first answer.
    server: SocketAddr,
    begun: bool,
    asked_options: bool,
    /// The last packet, repeated when no answer comes.
    last: Vec<u8>,
    /// Number of the next block; after 65535 comes 0.
    expected: u16,
    block: usize,
    size: Option<u64>,
    had: u64,
    done: bool,
    buffer: Vec<u8>,
}

impl Transfer {
    async fn send(&self) -> Result<(), Ending> {
        let sent = self.socket.send_to(&self.last, self.server).await;
        sent.map(drop).map_err(|error| chain(&error).into())
    }

    /// Waits for a first packet, which stays for [`Transfer::next`]; repeats the request until then.
    async fn answered(&self) {
        let mut pause = SHORTEST;
        loop {
            match timeout(pause, self.socket.peek_from(&mut [0; 4])).await {
                Ok(Ok(_)) => return,
                // The refusal of a packet, which may not last.
                Ok(Err(_)) => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
            self.send().await.unwrap_or_default();
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// The next piece. Waits without end, and repeats the last packet: the caller enforces the deadline.
    pub(crate) async fn next(&mut self) -> Result<Piece, Ending> {
        let mut pause = SHORTEST;
        while !self.done {
            let Ok(received) = timeout(pause, self.socket.recv_from(&mut self.buffer)).await else {
                self.send().await?;
                pause = (pause * 2).min(LONGEST);
                continue;
            };
            let (len, from) = received.map_err(|error| chain(&error))?;
            if !self.is_server(from).await {
                continue;
            }
            let packet = self.buffer[..len].to_vec();
            let Some((code, rest)) = packet.split_first_chunk::<2>() else {
                continue;
            };
            match u16::from_be_bytes(*code) {
                DATA => {
                    if let Some(piece) = self.data(from, rest).await? {
                        return Ok(piece);
                    }
                }
                OPTIONS => {
                    if let Some(piece) = self.options(from, rest).await? {
                        return Ok(piece);
                    }
                }
                ERROR => {
                    let (code, text) = rest.split_first_chunk::<2>().unwrap_or((&[0, 0], &[]));
                    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                    let text = String::from_utf8_lossy(text).into_owned();
                    return Ok(Piece::Error(u16::from_be_bytes(*code), text));
                }
                _ => {}
            }
        }
        match self.size {
            Some(size) if size != self.had => Err(Ending::broken(format!(
                "the server announced {size} bytes and sent {}",
                self.had
            ))),
            _ => Ok(Piece::End),
        }
    }

    /// Whether a packet belongs to this transfer. Another sender gets an error packet (RFC 1350, section 4).
    async fn is_server(&self, from: SocketAddr) -> bool {
        if self.begun && from == self.server {
            return true;
        }
        if !self.begun && from.ip().to_canonical() == self.server.ip().to_canonical() {
            return true;
        }
        self.object(from, UNKNOWN_TRANSFER, "unknown transfer")
            .await;
        false
    }

    /// Sends an error packet. A failure to send it does not affect this transfer.
    async fn object(&self, to: SocketAddr, code: u16, text: &str) {
        let mut packet = [ERROR.to_be_bytes(), code.to_be_bytes()].concat();
        packet.extend(text.as_bytes());
        packet.push(0);
        self.socket.send_to(&packet, to).await.unwrap_or_default();
    }

    /// The server's first answer fixes its port.
    fn begin(&mut self, from: SocketAddr) {
        self.begun = true;
        self.server = from;
    }

    async fn data(&mut self, from: SocketAddr, packet: &[u8]) -> Result<Option<Piece>, Ending> {
        let Some((number, data)) = packet.split_first_chunk::<2>() else {
            return Ok(None);
        };
        let number = u16::from_be_bytes(*number);
        if number != self.expected {
            // The last block again: its acknowledgement was lost.
            if self.begun && number == self.expected.wrapping_sub(1) {
                self.send().await?;
            }
            return Ok(None);
        }
        if data.len() > self.block {
            let (len, most) = (data.len(), self.block);
            return Err(Ending::broken(format!(
                "the server sent a block of {len} bytes, expected at most {most}"
            )));
        }
        self.begin(from);
        self.last = [ACK.to_be_bytes(), number.to_be_bytes()].concat();
        self.send().await?;
        self.expected = number.wrapping_add(1);
        self.done = data.len() < self.block;
        self.had += u64::try_from(data.len()).unwrap_or(u64::MAX);
        Ok(Some(Piece::Data(data.to_vec())))
    }

    async fn options(&mut self, from: SocketAddr, packet: &[u8]) -> Result<Option<Piece>, Ending> {
        if !self.asked_options || self.had > 0 || self.expected != 1 {
            return Ok(None);
        }
        if self.begun {
            self.send().await?;
            return Ok(None);
        }
        let words: Vec<String> = packet
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).to_lowercase())
            .collect();
        for pair in words.chunks_exact(2) {
            match (pair[0].as_str(), pair[1].parse::<u64>()) {
                ("blksize", Ok(block)) => match usize::try_from(block) {
                    Ok(block @ 8..=LARGE_BLOCK) => self.block = block,
                    _ => {
                        let why = "the server chose a block size that was not offered";
                        self.object(from, BAD_OPTION, why).await;
                        return Err(Ending::broken(why));
                    }
                },
                ("tsize", Ok(size)) => self.size = Some(size),
                _ => {}
            }
        }
        self.begin(from);
        self.last = [ACK.to_be_bytes(), [0, 0]].concat();
        self.send().await?;
        Ok(self.size.map(Piece::Size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of the two bytes `ok`, for one request without options.
    async fn serve() -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let (_, client) = socket.recv_from(&mut [0; 512]).await.unwrap();
            socket.send_to(b"\0\x03\0\x01ok", client).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn a_silent_address_is_followed_by_the_next_one() {
        let place = Place {
            shown: "tftp://h/x".to_owned(),
            host: "h".to_owned(),
            port: 69,
            path: "/x".to_owned(),
            options: false,
        };
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dead = silent.local_addr().unwrap();
        // No packet reaches this one from a socket of version 6 without a scope.
        let unreachable = "[fe80::1]:69".parse().unwrap();
        for addresses in [
            vec![dead, unreachable, serve().await],
            vec![serve().await, dead],
        ] {
            let mut transfer = place.open_one_of(addresses, None).await.unwrap();
            assert_eq!(transfer.next().await.unwrap(), Piece::Data(b"ok".to_vec()));
            assert_eq!(transfer.next().await.unwrap(), Piece::End);
        }
        let none = place.open_one_of(Vec::new(), None).await;
        assert!(none.is_err());
    }
}
