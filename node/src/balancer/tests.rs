//! The balancer before servers on loopback that answer, refuse, hang, end and return.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cluster::objects::API_SERVERS;
use linux::world::{Clock, World};
use serde_json::{Value, json};

use super::connections::CONNECTIONS;
use super::record::{List, Record};
use super::shared::Times;
use super::{cache, serve};
use crate::object;
use crate::remedies::{Trouble, remedy};
use crate::samples::{Answer, ControlPlane, machine, put, serve_by_tls};

/// Short times, in the proportions of the real ones.
const QUICK: Times = Times {
    connect: Duration::from_millis(200),
    check: Duration::from_millis(400),
    every: Duration::from_millis(200),
    again: Duration::from_millis(40),
    look: (Duration::from_millis(300), Duration::from_millis(50)),
    half_open: Duration::from_millis(500),
};
/// How long anything may take here.
const LONGEST: Duration = Duration::from_secs(20);

/// A server by TCP that answers each piece with its own number before it.
struct Echo {
    address: SocketAddr,
    number: u8,
    ended: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Echo {
    fn new(number: u8) -> Self {
        Self::at(number, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    fn at(number: u8, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let echo = Self {
            address: listener.local_addr().unwrap(),
            number,
            ended: Arc::default(),
            streams: Arc::default(),
        };
        let (ended, streams) = (Arc::clone(&echo.ended), Arc::clone(&echo.streams));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.unwrap();
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                thread::spawn(move || answer(stream, number));
            }
        });
        echo
    }

    /// Its machine is gone: connections are reset, and new ones refused.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn returned(&self) -> Self {
        until("its port is free", || {
            TcpListener::bind(self.address).is_ok()
        });
        Self::at(self.number, self.address)
    }
}

fn answer(mut stream: TcpStream, number: u8) {
    let mut piece = [0; 4096];
    while let Ok(length) = stream.read(&mut piece) {
        if length == 0 {
            // It still answers a client that has sent all.
            stream.write_all(&[number, b'.']).ok();
            return;
        }
        let answered = stream.write_all(&[&[number], &piece[..length]].concat());
        if answered.is_err() {
            return;
        }
    }
}

/// Waits for something, and fails after [`LONGEST`].
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < LONGEST, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The object of a node whose API servers are these; the endpoint is the first one.
fn object(servers: &[SocketAddr]) -> String {
    let others: Vec<String> = servers[1..]
        .iter()
        .map(|server| format!("\"{server}\""))
        .collect();
    format!(
        "name = \"blue\"\nendpoint = \"{}\"\n[balancer]\nenabled = true\nservers = [{}]\n[node]\naddress = \"10.0.0.8\"\n[join]\n\
         token = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:{}\"]\n",
        servers[0],
        others.join(", "),
        "0".repeat(64),
    )
}

/// A worker's balancer.
struct Running {
    address: SocketAddr,
    world: World,
}

impl Running {
    fn begin(root: &Path, servers: &[SocketAddr], times: Times) -> Self {
        let world = machine(root, &object(servers));
        put(
            &root.join("run/slipway/etcd-gate.json"),
            "{\"required\": false}",
        );
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let of_thread = World::below(root, Clock::Real);
        // It serves until the test's process ends.
        thread::spawn(move || runtime.block_on(serve(&of_thread, &bootstrap, listener, times)));
        Self { address, world }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        stream
    }

    /// The number of the server that answers a new connection; none if it is closed.
    fn answered(&self) -> Option<u8> {
        asked(&mut self.connect())
    }

    fn record(&self) -> Record {
        let mut found = None;
        until("a record", || {
            found = super::record::read(&self.world);
            found.is_some()
        });
        found.unwrap()
    }

    /// The health of an API server, as the status shows it.
    fn healthy(&self, address: SocketAddr) -> Option<bool> {
        let record = self.record();
        let server = record
            .servers
            .iter()
            .find(|server| server.address == address);
        server.and_then(|server| server.healthy)
    }

    fn known(&self) -> Vec<SocketAddr> {
        let servers = self.record().servers.into_iter();
        servers.map(|server| server.address).collect()
    }
}

/// Asks on a connection; the number of the server that answers.
fn asked(stream: &mut TcpStream) -> Option<u8> {
    stream.write_all(b"hello").ok()?;
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).ok()?;
    assert_eq!(&answer[1..], b"hello");
    Some(answer[0])
}

/// Connections that are never taken: the kernel's queue of this listener is full, so that it does not even refuse.
fn black_hole() -> (TcpListener, Vec<TcpStream>) {
    use nix::sys::socket::{Backlog, listen};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
    }
    (listener, waiting)
}

#[test]
fn a_connection_goes_on_to_the_next_server_where_one_refuses_or_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let refuses = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let refused = refuses.local_addr().unwrap();
    drop(refuses);
    let (hole, _waiting) = black_hole();
    let three = Echo::new(3);
    let servers = [refused, hole.local_addr().unwrap(), three.address];
    // No server is well: the checks are by TLS, which the third one does not speak. Connections are tried all the same.
    let authority = folder.path().join("etc/kubernetes/pki/ca.crt");
    put(
        &authority,
        &ControlPlane::new().file("/etc/kubernetes/pki/ca.crt"),
    );
    let running = Running::begin(folder.path(), &servers, QUICK);
    let begin = Instant::now();
    for _ in 0..6 {
        assert_eq!(running.answered(), Some(3));
    }
    assert!(begin.elapsed() < 12 * QUICK.connect, "{begin:?}");
    until("all are known not to be ready", || {
        let healthy = servers.map(|server| running.healthy(server));
        healthy == [Some(false); 3]
    });
    let reasons = running.record().servers.into_iter();
    let reasons: Vec<_> = reasons.filter_map(|server| server.reason).collect();
    assert!(
        reasons.iter().any(|reason| reason.contains("refused")),
        "{reasons:?}"
    );
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains(" in time") || reason.contains("within")),
        "{reasons:?}"
    );
    for _ in 0..6 {
        assert_eq!(running.answered(), Some(3));
    }
    assert_eq!(running.record().list, List::Object);
}

#[test]
fn connections_of_a_server_that_is_lost_are_closed_and_it_is_used_again_when_it_returns() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Echo::new(1), Echo::new(2));
    let running = Running::begin(folder.path(), &[one.address, two.address], QUICK);
    until("both are well", || {
        [one.address, two.address].map(|server| running.healthy(server)) == [Some(true); 2]
    });
    // Both are used: nodes and connections are spread.
    let mut streams = Vec::new();
    let mut numbers: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = running.connect();
            let number = asked(&mut stream);
            streams.push(stream);
            number
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(1), Some(1), Some(2), Some(2)]);
    one.end();
    until("the other one has all", || {
        (0..4).all(|_| running.answered() == Some(2))
    });
    assert_eq!(running.healthy(one.address), Some(false));
    let ended = streams.iter_mut().filter_map(asked).collect::<Vec<_>>();
    assert_eq!(ended, [2, 2]);
    let one = one.returned();
    until("it is used again", || running.answered() == Some(1));
    // Nobody is left.
    one.end();
    two.end();
    until("a connection is closed", || running.answered().is_none());
    // The words by which the remedy is known.
    let url = format!("https://{}", running.address);
    let api = api::Api::without_certificate(&url, api::Trust::Anybody, LONGEST).unwrap();
    until("a remedy is known", || {
        let error = format!("{:#}", api.healthy("/readyz").unwrap_err());
        let known = remedy(Trouble::Join(&error));
        known.is_some_and(|known| known.contains("API servers"))
    });
}

#[test]
fn each_side_may_end_before_the_other_and_a_server_that_never_ends_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let one = Echo::new(1);
    let running = Running::begin(folder.path(), &[one.address], QUICK);
    let mut stream = running.connect();
    assert_eq!(asked(&mut stream), Some(1));
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [1, b'.']);
    // A server that goes on for ever without a word, behind a client that has ended.
    let holds = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = tempfile::tempdir().unwrap();
    let running = Running::begin(other.path(), &[holds.local_addr().unwrap()], QUICK);
    let mut held = Vec::new();
    let stream = running.connect();
    stream.shutdown(Shutdown::Write).unwrap();
    let begin = Instant::now();
    // Checks connect too; the client's connection is the one whose end is passed on while the server holds it.
    let taken = thread::spawn(move || {
        for stream in holds.incoming() {
            held.push(stream.unwrap());
        }
    });
    let mut stream = stream;
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    assert!(begin.elapsed() >= QUICK.half_open / 2, "{begin:?}");
    drop(taken);
}

#[test]
fn connections_are_bounded_and_one_that_ends_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let one = Echo::new(1);
    // Hundreds of connections at once may take longer than a server may otherwise, beside compilers.
    let patient = Times {
        connect: LONGEST,
        check: LONGEST,
        ..QUICK
    };
    let running = Running::begin(folder.path(), &[one.address], patient);
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| running.connect()).collect();
    assert!(streams.iter_mut().all(|stream| asked(stream) == Some(1)));
    assert_eq!(running.answered(), None);
    streams.pop();
    until("there is room", || running.answered() == Some(1));
    assert!(streams.iter_mut().all(|stream| asked(stream) == Some(1)));
}

/// The API servers of a cluster by TLS, on several addresses of loopback with one port.
struct Planes {
    plane: Arc<ControlPlane>,
    port: u16,
    /// What their `EndpointSlice` has.
    listed: Arc<Mutex<Vec<String>>>,
    /// The status of `/readyz` by the last number of the address.
    ready: Arc<Mutex<[u16; 5]>>,
    /// Requests for the `EndpointSlice`.
    looks: Arc<AtomicUsize>,
}

impl Planes {
    fn new(lasts: &[u8]) -> Self {
        let first = TcpListener::bind((address(lasts[0]), 0)).unwrap();
        let planes = Self {
            plane: Arc::new(ControlPlane::new()),
            port: first.local_addr().unwrap().port(),
            listed: Arc::default(),
            ready: Arc::new(Mutex::new([200; 5])),
            looks: Arc::default(),
        };
        planes.start(lasts[0], first);
        for last in &lasts[1..] {
            planes.start(
                *last,
                TcpListener::bind((address(*last), planes.port)).unwrap(),
            );
        }
        planes
    }

    fn start(&self, last: u8, listener: TcpListener) {
        let pair = self.plane.certificate();
        let (listed, ready) = (Arc::clone(&self.listed), Arc::clone(&self.ready));
        let (looks, port) = (Arc::clone(&self.looks), self.port);
        drop(thread::spawn(move || {
            let requests = serve_by_tls(
                listener,
                move || pair.clone(),
                move |request| match request.line.strip_prefix("GET ") {
                    Some("/readyz") => {
                        let status = ready.lock().unwrap()[usize::from(last)];
                        let failed = "[+]ping ok\n[-]etcd failed: reason withheld\n";
                        Answer::Full(status, failed.to_owned())
                    }
                    Some(API_SERVERS) => {
                        looks.fetch_add(1, Ordering::SeqCst);
                        let listed = listed.lock().unwrap().clone();
                        match listed.first().map(String::as_str) {
                            Some("forbidden") => {
                                Answer::Full(403, "{\"message\": \"no\"}".to_owned())
                            }
                            _ => Answer::Full(200, slice(&listed, port).to_string()),
                        }
                    }
                    _ => Answer::Full(404, "{}".to_owned()),
                },
            );
            for _ in requests {}
        }));
    }

    fn server(&self, last: u8) -> SocketAddr {
        SocketAddr::from((address(last), self.port))
    }

    fn list(&self, lasts: &[u8]) {
        let texts = lasts.iter().map(|last| address(*last).to_string());
        *self.listed.lock().unwrap() = texts.collect();
    }

    /// A worker of the cluster, joined: its kubeconfig leads to the balancer, as the kubelet writes it.
    fn joined(&self, root: &Path, known: &[SocketAddr]) -> Running {
        let file = |path| self.plane.file(path);
        let authority = "/etc/kubernetes/pki/ca.crt";
        put(&root.join(&authority[1..]), &file(authority));
        let running = Running::begin(root, known, QUICK);
        let kubeconfig = file("/etc/kubernetes/kubelet.conf").replace(
            "https://10.0.0.7:6443",
            &format!("https://{}", running.address),
        );
        put(&root.join("etc/kubernetes/kubelet.conf"), &kubeconfig);
        running
    }
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, last)
}

fn slice(addresses: &[String], port: u16) -> Value {
    let endpoint =
        |address: &String| json!({"addresses": [address], "conditions": {"ready": true}});
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    json!({
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

#[test]
fn the_clusters_list_is_followed_kept_on_the_disk_and_never_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let planes = Planes::new(&[1, 2, 3]);
    planes.list(&[1, 2]);
    let endpoint = planes.server(1);
    let running = planes.joined(folder.path(), &[endpoint]);
    let servers = |lasts: &[u8]| {
        let servers = lasts.iter().map(|last| planes.server(*last));
        servers.collect::<Vec<_>>()
    };
    until("two are known", || running.known() == servers(&[1, 2]));
    assert_eq!(running.record().list, List::Cluster);
    planes.list(&[2, 3]);
    // The endpoint stays: the object names it.
    until("the third is known", || {
        running.known() == servers(&[1, 2, 3])
    });
    for empty in [vec![], vec!["forbidden".to_owned()]] {
        *planes.listed.lock().unwrap() = empty;
        let before = planes.looks.load(Ordering::SeqCst);
        until("two more looks", || {
            planes.looks.load(Ordering::SeqCst) >= before + 2
        });
        assert_eq!(running.known(), servers(&[1, 2, 3]));
    }
    let text = std::fs::read_to_string(running.world.in_initrd(cache::FILE)).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kept["cluster"], "blue");
    assert_eq!(kept["servers"], json!(servers(&[2, 3])));
    // A boot while the endpoint is gone, and the API with it until another server answers.
    let again = tempfile::tempdir().unwrap();
    put(&again.path().join(&cache::FILE[1..]), &text);
    let gone = SocketAddr::from((address(4), planes.port));
    planes.list(&[2, 3]);
    let running = planes.joined(again.path(), &[gone]);
    until("the kept servers are used", || {
        running.healthy(planes.server(2)) == Some(true)
            && running.healthy(gone) == Some(false)
            && running.record().list == List::Cluster
    });
    // Those of the last list are gone too; one that it had no more is there again.
    let former = tempfile::tempdir().unwrap();
    let mut kept = kept;
    kept["servers"] = json!([SocketAddr::from((address(5), planes.port))]);
    kept["former"] = json!(servers(&[2]));
    put(&former.path().join(&cache::FILE[1..]), &kept.to_string());
    let running = planes.joined(former.path(), &[gone]);
    until("the former server is used", || {
        running.healthy(planes.server(2)) == Some(true)
    });
    // Another cluster's file.
    let foreign = tempfile::tempdir().unwrap();
    put(
        &foreign.path().join(&cache::FILE[1..]),
        &text.replace("blue", "red"),
    );
    let running = planes.joined(foreign.path(), &[gone]);
    until("it has failed", || running.healthy(gone) == Some(false));
    assert_eq!(running.known(), [gone]);
    assert_eq!(running.record().list, List::Object);
}

#[test]
fn a_server_that_is_not_ready_has_no_new_connections_while_another_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let planes = Planes::new(&[1, 2]);
    let both = [planes.server(1), planes.server(2)];
    let running = planes.joined(folder.path(), &both);
    until("both are ready", || {
        both.map(|server| running.healthy(server)) == [Some(true); 2]
    });
    planes.ready.lock().unwrap()[1] = 500;
    until("one is not", || running.healthy(both[0]) == Some(false));
    let record = running.record();
    assert_eq!(
        record.servers[0].reason.as_deref(),
        Some("readyz: 500 Internal Server Error: failed checks: etcd")
    );
    // A cluster that lets nobody ask without an identity.
    planes.ready.lock().unwrap()[1] = 401;
    until("it is again", || running.healthy(both[0]) == Some(true));
    // A server of another cluster is not well: its certificate is of another authority.
    let other = Planes::new(&[3]);
    let impostor = tempfile::tempdir().unwrap();
    let running = planes.joined(impostor.path(), &[other.server(3)]);
    until("it is refused", || {
        let reason = running.record().servers[0].reason.clone();
        reason.is_some_and(|reason| reason.contains("certificate"))
    });
}

/// As an API server that hangs, or a machine that lost its power: only a check notices.
#[test]
fn a_server_that_takes_connections_and_answers_none_loses_them_while_another_one_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let planes = Planes::new(&[1, 2]);
    let both = [planes.server(1), planes.server(2)];
    let running = planes.joined(folder.path(), &both);
    let ready = || both.map(|server| running.healthy(server)) == [Some(true); 2];
    until("both are ready", ready);
    // This server takes one connection after the other, and waits for the first bytes of this one.
    let mut stream = running.connect();
    let mut hung = None;
    until("it is known", || {
        let mut servers = running.record().servers.into_iter();
        hung = servers.find(|server| server.healthy == Some(false));
        hung.is_some()
    });
    let reason = hung.unwrap().reason.unwrap();
    assert_eq!(reason, "readyz: no answer in time");
    // The client learns it, and the server too: it answers again.
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    until("both are ready again", ready);
}
