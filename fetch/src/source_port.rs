//! Requests from a chosen source port: one connection each, since reqwest cannot bind the port of its connections.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use reqwest::{Response, Url};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

use crate::exchange::exchange;
use crate::failure::chain;
use crate::links::Links;

/// How long one way is tried.
const PER_WAY: Duration = Duration::from_secs(3);

/// Sends a request over plain HTTP, directly to the server, from the first of these ports that is free.
pub(crate) async fn execute(
    ports: &RangeInclusive<u16>,
    request: reqwest::Request,
    links: &Links,
) -> Result<Response, String> {
    let url = request.url().clone();
    let stream = connect_over(&url, ports, links)
        .await
        .map_err(|error| format!("connecting from a port of {ports:?}: {error}"))?;
    exchange(TokioIo::new(stream), &url, None, request)
        .await
        .map_err(|error| chain(&*error))
}

/// Connects by the first way that leads to the server.
async fn connect_over(
    url: &Url,
    ports: &RangeInclusive<u16>,
    links: &Links,
) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::HostUnreachable);
    for way in links.ways() {
        match timeout(PER_WAY, connect(url, ports, way.as_deref())).await {
            Ok(Ok(stream)) => {
                links.answered(&way);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn connect(
    url: &Url,
    ports: &RangeInclusive<u16>,
    link: Option<&str>,
) -> io::Result<TcpStream> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = lookup_host((host, url.port_or_known_default().unwrap_or(80))).await?;
    let server = found.next().ok_or(ErrorKind::HostUnreachable)?;
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    for port in in_random_order(ports) {
        match connect_from(port, server, link).await {
            // Bound by something else, or by an earlier connection to this server that is not forgotten yet.
            Err(error) if is_taken(&error) => last = error,
            answer => return answer,
        }
    }
    Err(last)
}

async fn connect_from(port: u16, server: SocketAddr, link: Option<&str>) -> io::Result<TcpStream> {
    let (socket, here) = match server {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, port).into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, (Ipv6Addr::UNSPECIFIED, port).into()),
    };
    // Otherwise a port would stay bound for a minute after each of its connections (TIME-WAIT).
    socket.set_reuseaddr(true)?;
    if let Some(link) = link {
        socket.bind_device(Some(link.as_bytes()))?;
    }
    socket.bind(here)?;
    socket.connect(server).await
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable
    )
}

/// Each port once, from a random one on, so that another attempt does not begin at the one that was refused.
fn in_random_order(ports: &RangeInclusive<u16>) -> impl Iterator<Item = u16> {
    let count = u64::try_from(ports.len()).unwrap_or(1).max(1);
    let skipped = usize::try_from(RandomState::new().hash_one(0) % count).unwrap_or_default();
    let (later, earlier) = (ports.clone().skip(skipped), ports.clone().take(skipped));
    later.chain(earlier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_tried_once() {
        for ports in [1..=1023, 700..=700] {
            let mut tried: Vec<u16> = in_random_order(&ports).collect();
            tried.sort_unstable();
            assert_eq!(tried, ports.collect::<Vec<u16>>());
        }
    }
}
