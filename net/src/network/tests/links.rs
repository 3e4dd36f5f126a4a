//! Several links, and links that do not stay as they are: each ends at a DHCP server in a network namespace of its own. One of
//! them may have a source, which no other leads to.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use dhcproto::Encodable;
use fetch::{Links, Patience, Want};
use nix::sys::socket::getsockopt;

use super::*;

/// The source, outside of the networks of all links.
const SOURCE: &str = "192.0.2.10";

/// What is at the other end of a link.
#[derive(Debug, Default)]
struct Far {
    /// Whether the DHCP server answers, and its leases so far.
    answers: AtomicBool,
    leases: AtomicUsize,
    /// The third octet of the network.
    octet: u8,
    /// Seconds of a lease.
    time: u32,
    /// Bytes of the MTU that a lease has.
    mtu: Option<u16>,
    /// Whether the source is here.
    source: bool,
    stop: AtomicBool,
}

/// Links in the node's network namespace, each with its far end on a thread.
struct Lines {
    far: Vec<Arc<Far>>,
    ends: Vec<(JoinHandle<()>, File)>,
}

impl Lines {
    /// Makes `eth0`, `eth1`, … in this thread's namespace.
    fn lay(netlink: &mut Netlink, far: Vec<Far>) -> Self {
        let far: Vec<Arc<Far>> = far.into_iter().map(Arc::new).collect();
        let mut ends = Vec::new();
        for (number, one) in far.iter().enumerate() {
            let (ready, namespace) = channel();
            let (go, begin) = channel();
            let one = Arc::clone(one);
            let thread = std::thread::spawn(move || {
                fresh_network();
                ready.send(here()).unwrap();
                begin.recv().unwrap();
                one.play();
            });
            let other: File = namespace.recv().unwrap();
            let name = format!("eth{number}");
            netlink.add_veth(&name, "peer0", other.as_raw_fd()).unwrap();
            go.send(()).unwrap();
            ends.push((thread, other));
        }
        Self { far, ends }
    }

    /// Takes the carrier of a link away, or gives it back.
    fn set_carrier(&self, number: usize, up: bool) {
        let other = &self.ends[number].1;
        std::thread::scope(|scope| {
            let change = || {
                setns(other, CloneFlags::CLONE_NEWNET).unwrap();
                let mut netlink = Netlink::open().unwrap();
                let index = by_name(&mut netlink, "peer0").index;
                netlink.set_up(index, up).unwrap();
            };
            scope.spawn(change).join().unwrap();
        });
    }

    fn leases(&self, number: usize) -> usize {
        self.far[number].leases.load(Ordering::Relaxed)
    }

    fn answers(&self, number: usize, answers: bool) {
        self.far[number].answers.store(answers, Ordering::Relaxed);
    }

    fn end(self) {
        for far in &self.far {
            far.stop.store(true, Ordering::Relaxed);
        }
        for (thread, _) in self.ends {
            thread.join().unwrap();
        }
    }
}

impl Far {
    fn new(octet: u8, answers: bool) -> Self {
        Self {
            answers: AtomicBool::new(answers),
            octet,
            time: 600,
            ..Self::default()
        }
    }

    fn play(&self) {
        let mut netlink = Netlink::open().unwrap();
        let index = by_name(&mut netlink, "peer0").index;
        let own = Ipv4Addr::new(10, 9, self.octet, 1);
        netlink.add_address(index, own.into(), 24).unwrap();
        netlink.set_up(index, true).unwrap();
        let source = self.source.then(|| {
            let address: IpAddr = SOURCE.parse().unwrap();
            netlink.add_address(index, address, 32).unwrap();
            let listener = TcpListener::bind((address, 80)).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let socket = UdpSocket::bind("0.0.0.0:67").unwrap();
        socket.set_broadcast(true).unwrap();
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from("peer0")).unwrap();
        let pause = Some(Duration::from_millis(20));
        socket.set_read_timeout(pause).unwrap();
        let mut buffer = [0; 2048];
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(Ok((mut connection, _))) = source.as_ref().map(TcpListener::accept) {
                connection.set_nonblocking(false).unwrap();
                let count = connection.read(&mut buffer).unwrap();
                assert!(buffer[..count].starts_with(b"GET /config "));
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                connection.write_all(answer).unwrap();
            }
            let Ok((len, _)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            if self.answers.load(Ordering::Relaxed) {
                let answer = self.answer(&buffer[..len], own);
                // The link may have no carrier at the moment.
                socket
                    .send_to(&answer, (Ipv4Addr::BROADCAST, 68))
                    .unwrap_or_default();
            }
        }
    }

    fn answer(&self, request: &[u8], own: Ipv4Addr) -> Vec<u8> {
        let parsed = Message::decode(&mut Decoder::new(request)).unwrap();
        let kind = match parsed.opts().get(OptionCode::MessageType) {
            Some(DhcpOption::MessageType(MessageType::Discover)) => MessageType::Offer,
            _ => MessageType::Ack,
        };
        if kind == MessageType::Ack {
            self.leases.fetch_add(1, Ordering::Relaxed);
        }
        let mut more = vec![
            DhcpOption::ServerIdentifier(own),
            DhcpOption::Router(vec![own]),
            DhcpOption::DomainNameServer(vec![Ipv4Addr::new(203, 0, 113, self.octet)]),
            DhcpOption::AddressLeaseTime(self.time),
        ];
        more.extend(self.mtu.map(DhcpOption::InterfaceMtu));
        let answer = crate::dhcp4::tests::answer(request, kind, more);
        let mut answer = Message::decode(&mut Decoder::new(&answer)).unwrap();
        answer.set_yiaddr(Ipv4Addr::new(10, 9, self.octet, 77));
        answer.to_vec().unwrap()
    }
}

/// Runs a test on a thread in a network namespace of its own.
fn alone(name: &str, test: impl FnOnce(&mut Netlink, Arc<Network>) + Send) {
    with_rights(&format!("network::tests::links::{name}"), || {
        let alone = || {
            fresh_network();
            let folder = tempfile::tempdir().unwrap();
            let network = Arc::new(Network::new(machine(folder.path())));
            test(&mut Netlink::open().unwrap(), network);
        };
        std::thread::scope(|scope| scope.spawn(alone).join().unwrap());
    });
}

/// A link that is named and has no server holds nobody up for ever.
#[test]
fn a_named_link_without_a_server_does_not_hold_the_others_up() {
    alone(
        "a_named_link_without_a_server_does_not_hold_the_others_up",
        |netlink, network| {
            let lines = Lines::lay(netlink, vec![Far::new(8, false), Far::new(9, true)]);
            let network = Network {
                for_others: Duration::from_secs(3),
                ..Network::new(Arc::clone(&network.world))
            };
            network.set_cmdline(&words("ip=eth0:dhcp ip=eth1:dhcp"));
            let began = Instant::now();
            up(&network);
            assert!(began.elapsed() >= network.for_others);
            assert_eq!(ready(&network), ["eth1"]);
            // Once is enough, and the other one may still come.
            let again = Instant::now();
            up(&network);
            assert!(again.elapsed() < network.for_others);
            lines.answers(0, true);
            wait_until("the other link", || ready(&network).len() == 2);
            network.flush().unwrap();
            lines.end();
        },
    );
}

/// A report has less time than the others of a plan.
#[test]
fn one_of_the_named_links_is_enough_for_a_report() {
    alone(
        "one_of_the_named_links_is_enough_for_a_report",
        |netlink, network| {
            let lines = Lines::lay(netlink, vec![Far::new(8, false), Far::new(9, true)]);
            network.set_cmdline(&words("ip=eth0:dhcp ip=eth1:dhcp"));
            let modules = Modules::none(Arc::clone(&network.world));
            let began = Instant::now();
            network.up_with_any(&modules).unwrap();
            assert!(began.elapsed() < Duration::from_secs(15));
            assert_eq!(ready(&network), ["eth1"]);
            network.flush().unwrap();
            lines.end();
        },
    );
}

fn ready(network: &Network) -> Vec<String> {
    let running = lock(&network.running);
    running
        .as_ref()
        .map_or_else(Vec::new, |one| lock(&one.shared.view).ready.clone())
}

fn up(network: &Network) {
    network
        .up(&Modules::none(Arc::clone(&network.world)))
        .unwrap();
}

/// Waits until this is so, for at most 30 s.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn routes() -> String {
    fs::read_to_string("/proc/thread-self/net/route").unwrap()
}

/// Asks the source over the network's links.
fn fetched(network: &Arc<Network>) -> Vec<u8> {
    let (ways, answered) = (Arc::clone(network), Arc::clone(network));
    let options = fetch::Options {
        ca_bundle: Some(Vec::new()),
        links: Links::new(
            move || ways.ways(),
            move |way| answered.answered(way.as_deref()),
        ),
        ..fetch::Options::default()
    };
    let client = fetch::blocking::Client::new(&options).unwrap();
    let url = format!("http://{SOURCE}/config");
    let want = Want {
        patience: Patience {
            attempts: None,
            total: Some(Duration::from_secs(60)),
            ..Patience::default()
        },
        ..Want::new(&url, 1000)
    };
    client.bytes(&want, &|_| (), &|_| ()).unwrap()
}

/// The first link has a lease at once and leads nowhere; the server of the second appears late.
#[test]
fn a_source_behind_another_link_than_the_first_is_found() {
    alone(
        "a_source_behind_another_link_than_the_first_is_found",
        |netlink, network| {
            let far = Far {
                source: true,
                ..Far::new(9, false)
            };
            let lines = Lines::lay(netlink, vec![Far::new(8, true), far]);
            up(&network);
            assert_eq!(ready(&network), ["eth0"]);
            let began = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_secs(2));
                    lines.answers(1, true);
                });
                assert_eq!(fetched(&network), b"ok");
            });
            // A second lease and the second that the first link has before it.
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{:?}",
                began.elapsed()
            );
            let ways = ["eth1", "", "eth0"]
                .map(|link| Some(link.to_owned()).filter(|link| !link.is_empty()));
            assert_eq!(network.ways(), ways);
            // Each has its default route, and the one to its own name server.
            let routes = routes();
            for line in [
                "eth0\t00000000\t0108090A",
                "eth1\t00000000\t0109090A",
                "eth0\t087100CB\t0108090A",
                "eth1\t097100CB\t0109090A",
            ] {
                assert!(routes.contains(line), "{line}:\n{routes}");
            }
            // Those of the link that has answered come first.
            let path = network.world.in_initrd(image::paths::RESOLV_CONF);
            wait_until("the order of the name servers", || {
                let names = fs::read_to_string(&path).unwrap();
                names.starts_with("nameserver 203.0.113.9\nnameserver 203.0.113.8\n")
            });
            // The one that has answered is asked first from now on.
            let again = Instant::now();
            assert_eq!(fetched(&network), b"ok");
            assert!(
                again.elapsed() < Duration::from_secs(1),
                "{:?}",
                again.elapsed()
            );
            network.flush().unwrap();
            assert!(ready(&network).is_empty() && routes_of("eth").is_empty());
            lines.end();
        },
    );
}

fn routes_of(link: &str) -> Vec<String> {
    let routes = routes();
    let own = routes.lines().filter(|line| line.starts_with(link));
    own.map(str::to_owned).collect()
}

/// The link comes back without its routes, as after a port that was switched off, and asks for its lease again.
#[test]
fn a_link_whose_carrier_comes_back_asks_again() {
    alone(
        "a_link_whose_carrier_comes_back_asks_again",
        |netlink, network| {
            let lines = Lines::lay(netlink, vec![Far::new(8, true)]);
            up(&network);
            assert_eq!(lines.leases(0), 1);
            let index = by_name(netlink, "eth0").index;
            for times in 2..4 {
                lines.set_carrier(0, false);
                wait_until("the carrier is lost", || ready(&network).is_empty());
                // Its routes go with the link.
                netlink.set_up(index, false).unwrap();
                lines.set_carrier(0, true);
                wait_until("it is up again", || ready(&network) == ["eth0"]);
                assert_eq!(lines.leases(0), times);
                assert!(
                    routes().contains("eth0\t00000000\t0108090A"),
                    "{}",
                    routes()
                );
            }
            network.flush().unwrap();
            lines.end();
        },
    );
}

#[test]
fn a_leased_link_has_the_routes_of_the_plan() {
    alone(
        "a_leased_link_has_the_routes_of_the_plan",
        |netlink, network| {
            let lines = Lines::lay(netlink, vec![Far::new(8, true), Far::new(9, true)]);
            network.set_cmdline(&words(
                "ip=eth0:dhcp ip=eth1:dhcp rd.route=10.7.0.0/16:10.9.9.4 \
                 rd.route=10.6.0.0/16:10.9.8.4:eth0",
            ));
            up(&network);
            let has = |line: &str| routes().contains(line);
            wait_until("the routes", || {
                has("eth1\t0000070A\t0409090A") && has("eth0\t0000060A\t0408090A")
            });
            assert!(!has("eth0\t0000070A"), "{}", routes());
            network.flush().unwrap();
            lines.end();
        },
    );
}

#[test]
fn a_servers_mtu_counts_unless_the_plan_has_one() {
    alone(
        "a_servers_mtu_counts_unless_the_plan_has_one",
        |netlink, network| {
            let far = [8, 9].map(|octet| Far {
                mtu: Some(1300),
                ..Far::new(octet, true)
            });
            let lines = Lines::lay(netlink, far.into());
            network.set_cmdline(&words("ip=eth0:dhcp ip=eth1:dhcp:1400"));
            up(&network);
            assert_eq!(ready(&network).len(), 2);
            let mtus = [8, 9].map(|octet| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect((Ipv4Addr::new(10, 9, octet, 1), 9)).unwrap();
                getsockopt(&socket, sockopt::IpMtu).unwrap()
            });
            assert_eq!(mtus, [1300, 1400]);
            network.flush().unwrap();
            lines.end();
        },
    );
}

/// Renewed while its server answers; taken back when it is over; asked for again all the while.
#[test]
fn a_lease_is_renewed_and_ends() {
    alone("a_lease_is_renewed_and_ends", |netlink, network| {
        let far = Far {
            time: 4,
            ..Far::new(8, true)
        };
        let lines = Lines::lay(netlink, vec![far]);
        up(&network);
        let index = by_name(netlink, "eth0").index;
        wait_until("two renewals", || lines.leases(0) > 2);
        assert_eq!(ready(&network), ["eth0"]);
        lines.answers(0, false);
        wait_until("the lease has ended", || ready(&network).is_empty());
        assert!(netlink.addresses(index, false).unwrap().is_empty());
        assert!(routes_of("eth0").is_empty(), "{}", routes());
        lines.answers(0, true);
        // As a later source does.
        up(&network);
        assert_eq!(ready(&network), ["eth0"]);
        network.flush().unwrap();
        lines.end();
    });
}
