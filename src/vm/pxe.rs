//! Serves a PXE artifact folder by HTTP, with ranges, so that iPXE and the init can fetch from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::IntoResponse as _;
use tower_http::services::ServeDir;

/// The script's name in a PXE artifact folder.
pub const SCRIPT: &str = "boot.ipxe";

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves `folder`, or the `pxe` folder in it, at an address; port 0 selects a free one. The server listens when this
    /// returns. Symbolic links are not followed.
    ///
    /// # Errors
    /// If the folder has no boot script, or the server cannot listen at the address.
    pub fn start(folder: &Path, address: SocketAddr) -> Result<Self> {
        let inside = folder.join("pxe");
        let mut folders = [folder, &inside].into_iter();
        let Some(found) = folders.find(|folder| folder.join(SCRIPT).is_file()) else {
            bail!(
                "{} has no {SCRIPT}; expected the output folder of a build whose recipe names the artifact pxe, or the folder \
                 `pxe` in it",
                folder.display()
            );
        };
        let socket =
            TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let router = router(found.to_owned(), Arc::clone(&seen));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("making the server's runtime")?;
        let thread = std::thread::Builder::new()
            .name("pxe".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let served = async move {
                        let listener = tokio::net::TcpListener::from_std(socket)?;
                        axum::serve(listener, router).await
                    };
                    tokio::select! {
                        ended = served => {
                            if let Err(error) = ended {
                                tracing::error!("serving by HTTP: {error}");
                            }
                        }
                        _ = stopped => {}
                    }
                });
            })
            .context("starting the server's thread")?;
        Ok(Self {
            address,
            seen,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The script's URL: where the server listens at all addresses, by the one of the default route; without such a route by the first
    /// one that other machines may reach, and without any by that of loopback.
    #[must_use]
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let six = address.is_ipv6();
            let own = own_address(six).or_else(|| reachable(six, &addresses()));
            address.set_ip(own.unwrap_or(match six {
                false => Ipv4Addr::LOCALHOST.into(),
                true => Ipv6Addr::LOCALHOST.into(),
            }));
        }
        format!("http://{address}/{SCRIPT}")
    }

    /// Every request so far: method, path, and the range if one was requested.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Fails only if the server has already ended.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The address that packets to other networks have. Nothing is sent: a UDP socket only chooses its route.
fn own_address(six: bool) -> Option<IpAddr> {
    // Of networks for documentation (RFC 5737, RFC 3849).
    let (any, far) = match six {
        false => ("0.0.0.0:0", "192.0.2.1:9"),
        true => ("[::]:0", "[2001:db8::1]:9"),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(far).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The addresses of this host's interfaces; none if they cannot be read.
fn addresses() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let of = |address: nix::sys::socket::SockaddrStorage| {
        let four = address.as_sockaddr_in().map(|four| four.ip().into());
        four.or_else(|| address.as_sockaddr_in6().map(|six| six.ip().into()))
    };
    all.filter_map(|interface| of(interface.address?)).collect()
}

/// The first address of this version that a machine of another host may ask without the name of an interface.
fn reachable(six: bool, addresses: &[IpAddr]) -> Option<IpAddr> {
    let is_local = |address: &IpAddr| match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let mut own = addresses.iter().copied();
    own.find(|address| address.is_ipv6() == six && !address.is_loopback() && !is_local(address))
}

/// Whether a request's path leads over a symbolic link below the folder. The names of a PXE artifact need no escapes.
fn is_link(folder: &Path, path: &str) -> bool {
    let mut at = folder.to_owned();
    path.contains('%')
        || path.split('/').any(|part| {
            at.push(part);
            at.is_symlink()
        })
}

fn router(folder: PathBuf, seen: Arc<Mutex<Vec<String>>>) -> Router {
    let files = ServeDir::new(&folder).append_index_html_on_directories(false);
    Router::new()
        .fallback_service(files)
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let seen = Arc::clone(&seen);
            let link = is_link(&folder, request.uri().path());
            async move {
                let range = request
                    .headers()
                    .get("range")
                    .and_then(|value| value.to_str().ok())
                    .map_or_else(String::new, |range| format!(" {range}"));
                let line = format!("{} {}{range}", request.method(), request.uri().path());
                let response = match link {
                    true => StatusCode::NOT_FOUND.into_response(),
                    false => next.run(request).await,
                };
                tracing::info!("{line} {}", response.status().as_u16());
                seen.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
                response
            }
        }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn get(address: SocketAddr, path: &str, header: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: here\r\n{header}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn files_and_ranges_are_served_and_nothing_above_the_folder() {
        let above = tempfile::tempdir().unwrap();
        std::fs::write(above.path().join("secret"), "no").unwrap();
        let folder = above.path().join("pxe");
        std::fs::create_dir(&folder).unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let error = Server::start(&folder, loopback).unwrap_err().to_string();
        assert!(error.contains(SCRIPT), "{error}");
        std::fs::write(folder.join(SCRIPT), "#!ipxe\n").unwrap();
        std::fs::write(folder.join("root"), "0123456789").unwrap();
        let server = Server::start(&folder, loopback).unwrap();
        let whole = get(server.address(), "/root", "");
        assert!(
            whole.starts_with("HTTP/1.1 200") && whole.ends_with("0123456789"),
            "{whole}"
        );
        assert!(
            whole.to_lowercase().contains("accept-ranges: bytes"),
            "{whole}"
        );
        let part = get(server.address(), "/root", "Range: bytes=3-5\r\n");
        assert!(
            part.starts_with("HTTP/1.1 206") && part.ends_with("345"),
            "{part}"
        );
        std::os::unix::fs::symlink(above.path().join("secret"), folder.join("link")).unwrap();
        std::os::unix::fs::symlink(above.path(), folder.join("up")).unwrap();
        for path in [
            "/../secret",
            "/%2e%2e/secret",
            "/absent",
            "/link",
            "/up/secret",
            "/%6cink",
        ] {
            assert!(
                get(server.address(), path, "").starts_with("HTTP/1.1 4"),
                "{path}"
            );
        }
        assert_eq!(server.requests()[..2], ["GET /root", "GET /root bytes=3-5"]);
        let address = server.address();
        assert_eq!(server.url(), format!("http://{address}/{SCRIPT}"));
        drop(server);
        // The output folder does as well.
        let server = Server::start(above.path(), loopback).unwrap();
        assert!(get(server.address(), "/root", "").ends_with("0123456789"));
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    /// A folder that can be served.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(SCRIPT), "#!ipxe\n").unwrap();
        folder
    }

    /// The address in the script's URL of a server that listens at all.
    fn advertised(any: IpAddr) -> IpAddr {
        let folder = folder();
        let server = Server::start(folder.path(), SocketAddr::new(any, 0)).unwrap();
        let url = server.url();
        let host = url
            .strip_prefix("http://")
            .and_then(|url| url.split_once('/'));
        let found: SocketAddr = host.unwrap().0.parse().unwrap();
        assert_eq!(found.port(), server.address().port());
        assert!(server.address().ip().is_unspecified());
        found.ip()
    }

    #[test]
    fn a_server_at_all_addresses_names_one_that_can_be_asked() {
        let four = advertised(Ipv4Addr::UNSPECIFIED.into());
        assert!(four.is_ipv4() && !four.is_unspecified(), "{four}");
        let folder = folder();
        // A host may be without the other version.
        if Server::start(
            folder.path(),
            SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        )
        .is_ok()
        {
            let six = advertised(Ipv6Addr::UNSPECIFIED.into());
            assert!(six.is_ipv6() && !six.is_unspecified(), "{six}");
        }
    }

    /// In a namespace with nothing but an interface that is down: no route leads anywhere.
    #[test]
    fn a_server_on_a_host_without_a_route_names_loopback() {
        if !linux::host::is_root() {
            return linux::host::skipped("a network namespace needs root");
        }
        let without = std::thread::spawn(|| {
            // Of this thread, and of those that it starts.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            any.map(advertised)
        });
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(without.join().unwrap(), loopback);
    }

    #[test]
    fn the_first_address_that_others_reach_is_taken() {
        let addresses = [
            "127.0.0.1",
            "::1",
            "169.254.7.7",
            "fe80::1",
            "192.0.2.7",
            "192.0.2.8",
            "2001:db8::7",
        ];
        let addresses = addresses.map(|address| address.parse().unwrap());
        let found = |six, addresses: &[IpAddr]| reachable(six, addresses).map(|ip| ip.to_string());
        assert_eq!(found(false, &addresses).as_deref(), Some("192.0.2.7"));
        assert_eq!(found(true, &addresses).as_deref(), Some("2001:db8::7"));
        assert_eq!(found(true, &addresses[..6]), None);
    }
}
