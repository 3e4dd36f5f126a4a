//! One connection through the balancer: bytes both ways, as they are.

use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;

/// Bytes that are under way in one direction.
const PIECE: usize = 8 << 10;
/// Seconds without a byte until the kernel asks the other side, then between two questions, and their number: a peer that is gone
/// without a word holds a connection for a minute.
const KEEP_ALIVE: (u32, u32, u32) = (30, 10, 3);

/// The side that has sent all.
enum Side {
    Client,
    Server,
}

/// Copies both ways until both sides have ended, one has failed, or `open` has no sender any more. A side's end is passed on to
/// the other one, which may go on for `half_open`: a client that only reads is allowed, one that never ends is not.
pub(crate) async fn relay(
    client: TcpStream,
    server: TcpStream,
    mut open: watch::Receiver<()>,
    half_open: Duration,
) {
    for stream in [&client, &server] {
        prepare(stream);
    }
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let both = async {
        let mut up = pin!(copy(client_reads, server_writes));
        let mut down = pin!(copy(server_reads, client_writes));
        let ended = tokio::select! {
            result = &mut up => result.map(|()| Side::Client),
            result = &mut down => result.map(|()| Side::Server),
        };
        match ended {
            Ok(Side::Client) => drop(timeout(half_open, down).await),
            Ok(Side::Server) => drop(timeout(half_open, up).await),
            // Reset by one side: the other one learns it as both are dropped.
            Err(_) => {}
        }
    };
    tokio::select! {
        () = both => {}
        _ = open.changed() => {}
    }
}

/// Copies until the end of what is read, and passes the end on.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).await? {
            0 => return to.shutdown().await,
            length => to.write_all(&piece[..length]).await?,
        }
    }
}

/// Small messages are not held back, and a peer that is gone is noticed. A kernel that refuses an option only takes longer.
fn prepare(stream: &TcpStream) {
    let (idle, interval, count) = KEEP_ALIVE;
    let socket = stream.as_fd();
    stream.set_nodelay(true).ok();
    setsockopt(&socket, KeepAlive, &true).ok();
    setsockopt(&socket, TcpKeepIdle, &idle).ok();
    setsockopt(&socket, TcpKeepInterval, &interval).ok();
    setsockopt(&socket, TcpKeepCount, &count).ok();
}
