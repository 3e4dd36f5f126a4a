//! DHCPv6 and router advertisements over a veth pair, with the real client and kernel on one end and the real kernel on
//! the other.

use std::fs::File;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;
use crate::address::AddressState;
use crate::dhcp6::tests::{
    ADDRESS, ADVERTISE, DECLINE, INFORMATION, REPLY, REQUEST, SOLICIT, answer, lease_of, names,
    option,
};

/// A router's flags (RFC 4861, section 4.2).
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// The address that is offered once `ADDRESS` was declined.
const SECOND: &str = "2001:db8::78";

/// The behaviour of the other end of the pair.
#[derive(Clone, Copy, Default)]
struct Network {
    /// The flags of its advertisements; none: there is no router.
    router: Option<u8>,
    /// Whether hosts may make their own addresses of the router's prefix.
    autonomous: bool,
    rapid: bool,
    /// Whether the other end has `ADDRESS` itself.
    taken: bool,
}

impl Network {
    /// A router's advertisement with the prefix 2001:db8::/64.
    fn advertisement(self, flags: u8) -> Vec<u8> {
        let mut out = vec![134, 0, 0, 0, 64, flags, 7, 8];
        out.extend([0; 8]);
        let usage = if self.autonomous { 0xc0 } else { 0x80 };
        out.extend([3, 4, 64, usage, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
        let prefix: Ipv6Addr = "2001:db8::".parse().unwrap();
        out.extend(prefix.octets());
        out
    }

    /// Plays router and server until `stop` is set; returns the kinds of DHCP messages that it received.
    fn play(self, ready: &Sender<File>, go: &Receiver<()>, stop: &AtomicBool) -> Vec<u8> {
        fresh_network();
        ready.send(here()).unwrap();
        go.recv().unwrap();
        let mut netlink = Netlink::open().unwrap();
        let index = by_name(&mut netlink, "peer0").index;
        // A host that ignores its own router advertisements.
        fs::write("/proc/sys/net/ipv6/conf/peer0/accept_ra", "0").unwrap();
        netlink.set_up(index, true).unwrap();
        while !netlink.has_link_local(index).unwrap() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.taken {
            let address = ADDRESS.parse().unwrap();
            netlink.add_address(index, address, 64).unwrap();
            while netlink.address_state(index, address).unwrap() != AddressState::Ready {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let server = UdpSocket::bind("[::]:547").unwrap();
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
        server.join_multicast_v6(&all, index).unwrap();
        let router = router(index);
        for socket in [&server, &router] {
            let pause = Some(Duration::from_millis(20));
            socket.set_read_timeout(pause).unwrap();
        }
        let (mut heard, mut buffer) = (Vec::new(), [0; 2048]);
        let everybody = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
        while !stop.load(Ordering::Relaxed) {
            let solicited = router
                .recv_from(&mut buffer)
                .is_ok_and(|_| buffer[0] == 133);
            if let Some(flags) = self.router.filter(|_| solicited) {
                router
                    .send_to(&self.advertisement(flags), everybody)
                    .unwrap();
            }
            if let Ok((len, from)) = server.recv_from(&mut buffer) {
                heard.push(buffer[0]);
                let reply = self.reply(&buffer[..len], heard.contains(&DECLINE));
                server.send_to(&reply, from).unwrap();
            }
        }
        heard
    }

    fn reply(self, request: &[u8], declined: bool) -> Vec<u8> {
        let address = if declined { SECOND } else { ADDRESS };
        match request[0] {
            SOLICIT if self.rapid => {
                let mut options = lease_of(request, address);
                options.push(option(14, &[]));
                answer(request, REPLY, &options)
            }
            SOLICIT => {
                // No other server will offer.
                let mut options = lease_of(request, address);
                options.push(option(7, &[255]));
                answer(request, ADVERTISE, &options)
            }
            REQUEST => answer(request, REPLY, &lease_of(request, address)),
            INFORMATION => answer(request, REPLY, &[names()]),
            _ => answer(request, REPLY, &[option(13, &[0, 0])]),
        }
    }
}

/// A socket for advertisements, whose hop limit proves that they are from this link.
fn router(index: u32) -> UdpSocket {
    let protocol = SockProtocol::IcmpV6;
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet6, SockType::Raw, flags, protocol).unwrap();
    setsockopt(&fd, sockopt::Ipv6MulticastHops, &255).unwrap();
    let socket = UdpSocket::from(fd);
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    socket.join_multicast_v6(&routers, index).unwrap();
    socket
}

/// Brings `eth0` up by these words against that network. `look` examines the result, in the node's network namespace.
fn meet(
    network: Network,
    text: &'static str,
    look: impl FnOnce(&mut Netlink, u32, &Worker, &Plan) + Send + 'static,
) -> Vec<u8> {
    let (ready, namespace) = channel();
    let (go, begin) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&stop);
    let playing = std::thread::spawn(move || network.play(&ready, &begin, &until));
    let other = namespace.recv().unwrap();
    let node = std::thread::spawn(move || {
        fresh_network();
        let mut netlink = Netlink::open().unwrap();
        pair(&mut netlink, &other);
        go.send(()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let plan = words(text);
        let worker = brought_up(&machine(folder.path()), &plan);
        let index = by_name(&mut netlink, "eth0").index;
        look(&mut netlink, index, &worker, &plan);
        flush_links(&worker.links, &plan).unwrap();
        assert!(netlink.addresses(index, true).unwrap().is_empty());
    });
    let looked = node.join();
    stop.store(true, Ordering::Relaxed);
    let heard = playing.join().unwrap();
    if let Err(panic) = looked {
        eprintln!("the server heard {heard:?}");
        std::panic::resume_unwind(panic);
    }
    heard
}

const NAMED: &str = "nameserver 2001:db8::53\nsearch nodes.example\noptions timeout:1 attempts:2\n";

fn default_route() -> bool {
    let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
    let any = format!("{:032x} 00", 0);
    let usable = |line: &&str| line.starts_with(&any) && line.ends_with("eth0");
    routes.lines().filter(usable).count() > 0
}

#[test]
fn an_address_of_version_6_is_leased_and_taken_back() {
    let name = "network::tests::six::an_address_of_version_6_is_leased_and_taken_back";
    with_rights(name, || {
        let network = Network::default();
        let heard = meet(network, "ip=eth0:dhcp6", |netlink, index, ready, plan| {
            let found = netlink.addresses(index, true).unwrap();
            assert_eq!(found, [(ADDRESS.parse().unwrap(), 128)]);
            assert_eq!(leases(ready).len(), 1);
            assert_eq!(resolv_conf(plan, &ready.progress, None), NAMED);
        });
        assert_eq!(heard, [SOLICIT, REQUEST]);
    });
}

/// Without a word on the command line, and nobody who answers by version 4.
#[test]
fn a_network_of_version_6_alone_is_enough_by_default() {
    let name = "network::tests::six::a_network_of_version_6_alone_is_enough_by_default";
    with_rights(name, || {
        let network = Network {
            router: Some(OTHER),
            autonomous: true,
            ..Network::default()
        };
        let heard = meet(network, "quiet", |netlink, index, ready, plan| {
            assert!(plan.is_default());
            let found = netlink.addresses(index, true).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(resolv_conf(plan, &ready.progress, None), NAMED);
            assert!(default_route());
            // Version 4 is asked for all the same.
            assert!(ready.status().ends_with("configured"));
            assert!(ready.progress.exchanges.contains_key(&(index, false)));
        });
        assert_eq!(heard, [INFORMATION]);
    });
}

#[test]
fn routers_that_manage_addresses_make_the_client_ask() {
    let name = "network::tests::six::routers_that_manage_addresses_make_the_client_ask";
    with_rights(name, || {
        let network = Network {
            router: Some(MANAGED),
            rapid: true,
            ..Network::default()
        };
        let heard = meet(network, "ip=auto6", |netlink, index, ready, plan| {
            let found = netlink.addresses(index, true).unwrap();
            assert_eq!(found, [(ADDRESS.parse().unwrap(), 128)]);
            assert_eq!(resolv_conf(plan, &ready.progress, None), NAMED);
            assert!(default_route());
        });
        // Rapid commit: no request.
        assert_eq!(heard, [SOLICIT]);
    });
}

#[test]
fn routers_without_name_servers_make_the_client_ask_for_these_alone() {
    let name =
        "network::tests::six::routers_without_name_servers_make_the_client_ask_for_these_alone";
    with_rights(name, || {
        let network = Network {
            router: Some(OTHER),
            autonomous: true,
            ..Network::default()
        };
        let heard = meet(network, "ip=eth0:auto6", |netlink, index, ready, plan| {
            let found = netlink.addresses(index, true).unwrap();
            assert!(found.iter().all(|(_, prefix)| *prefix == 64), "{found:?}");
            assert_eq!(found.len(), 1);
            assert_eq!(resolv_conf(plan, &ready.progress, None), NAMED);
            assert!(default_route());
        });
        assert_eq!(heard, [INFORMATION]);
    });
}

#[test]
fn an_address_that_somebody_has_is_declined_and_another_one_taken() {
    let name =
        "network::tests::six::an_address_that_somebody_has_is_declined_and_another_one_taken";
    with_rights(name, || {
        let network = Network {
            taken: true,
            ..Network::default()
        };
        let heard = meet(network, "ip=eth0:either6", |netlink, index, _, _| {
            let found = netlink.addresses(index, true).unwrap();
            assert_eq!(found, [(SECOND.parse().unwrap(), 128)]);
        });
        assert_eq!(heard, [SOLICIT, REQUEST, DECLINE, SOLICIT, REQUEST]);
    });
}
