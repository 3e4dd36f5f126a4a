//! The client against a server on the other end of a veth pair, each in a network namespace of its own. Without
//! the rights to make one the test fails: it is never skipped.

#![allow(unsafe_code)]

use super::*;

use std::sync::mpsc::channel;

use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder};
use nix::sched::{CloneFlags, setns, unshare};

use crate::world::Clock;

fn fresh_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("making a network namespace");
}

/// Runs a test again by a process in a user namespace of its own, unless this process has the rights already.
/// A thread of many cannot enter a user namespace; a child before its exec can.
#[allow(
    clippy::disallowed_methods,
    reason = "the test runs itself, no other program"
)]
fn with_rights(name: &str, test: impl FnOnce()) {
    use std::os::unix::process::CommandExt;

    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    if uid.is_root() {
        return test();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    // SAFETY: the child is the only thread of its process; it makes system calls and writes three small files.
    unsafe {
        command.pre_exec(move || {
            unshare(CloneFlags::CLONE_NEWUSER)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
        });
    }
    let output = command.output().expect("making a user namespace");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn here() -> std::fs::File {
    let thread = nix::unistd::gettid();
    std::fs::File::open(format!("/proc/self/task/{thread}/ns/net")).unwrap()
}

/// A veth pair between two namespaces: one end here, the other where `other` is.
fn pair(netlink: &mut Netlink, other: &std::fs::File) {
    netlink
        .add_veth("eth0", "peer0", other.as_raw_fd())
        .unwrap();
}

/// What a DHCP server and its network see: the first `silent` requests get no answer.
fn server(
    silent: usize,
    ready: &std::sync::mpsc::Sender<std::fs::File>,
    go: &std::sync::mpsc::Receiver<()>,
) -> usize {
    fresh_network();
    ready.send(here()).unwrap();
    go.recv().unwrap();
    let mut netlink = Netlink::open().unwrap();
    let link = netlink
        .links()
        .unwrap()
        .into_iter()
        .find(|link| link.name == "peer0")
        .unwrap();
    netlink
        .add_address(link.index, Ipv4Addr::new(10, 9, 8, 1), 24)
        .unwrap();
    netlink.set_up(link.index, true).unwrap();
    let socket = UdpSocket::bind("0.0.0.0:67").unwrap();
    socket.set_broadcast(true).unwrap();
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from("peer0")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut buffer = [0; 2048];
    for heard in 0.. {
        let (len, _) = socket.recv_from(&mut buffer).unwrap();
        if heard < silent {
            continue;
        }
        let request = Message::decode(&mut Decoder::new(&buffer[..len])).unwrap();
        let kind = match request.opts().get(OptionCode::MessageType) {
            Some(DhcpOption::MessageType(MessageType::Discover)) => MessageType::Offer,
            _ => MessageType::Ack,
        };
        let name = DhcpOption::DomainName("nodes.example".into());
        let answer = dhcp::tests::answer(&buffer[..len], kind, vec![name]);
        socket.send_to(&answer, (Ipv4Addr::BROADCAST, 68)).unwrap();
        if kind == MessageType::Ack {
            return heard + 1;
        }
    }
    0
}

fn leased(silent: usize) {
    let (ready, namespace) = channel();
    let (go, begin) = channel();
    let serving = std::thread::spawn(move || server(silent, &ready, &begin));
    let other = namespace.recv().unwrap();
    let client = std::thread::spawn(move || {
        fresh_network();
        let mut netlink = Netlink::open().unwrap();
        pair(&mut netlink, &other);
        go.send(()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let mut state = State::default();
        let (link, lease) = wait(&world, &mut state, &|| ()).unwrap();
        assert_eq!(link.name, "eth0");
        assert_eq!(lease.address, Ipv4Addr::new(10, 9, 8, 77));
        configure(&mut netlink, &link, &lease).unwrap();
        let text = dhcp::resolv_conf(&lease);
        assert_eq!(
            text,
            "nameserver 10.9.8.53\nsearch nodes.example\noptions timeout:1 attempts:2\n"
        );
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        // The default route by 10.9.8.1 and that of the network itself.
        assert!(routes.contains("eth0\t00000000\t0108090A"), "{routes}");
        assert!(routes.contains("eth0\t0008090A\t00000000"), "{routes}");
        // The server is reached from the leased address.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("10.9.8.1:9").unwrap();
        assert_eq!(socket.local_addr().unwrap().ip(), lease.address);

        flush_links(&state).unwrap();
        let link = netlink
            .links()
            .unwrap()
            .into_iter()
            .find(|link| link.name == "eth0")
            .unwrap();
        assert!(!link.up);
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert_eq!(routes.lines().count(), 1, "{routes}");
        setns(here(), CloneFlags::CLONE_NEWNET).unwrap();
    });
    client.join().unwrap();
    let heard = serving.join().unwrap();
    assert!(heard >= silent + 2, "{heard}");
}

#[test]
fn a_lease_is_taken_from_a_real_server_and_taken_back() {
    let name = "net::tests::a_lease_is_taken_from_a_real_server_and_taken_back";
    with_rights(name, || leased(0));
}

#[test]
fn a_server_that_is_silent_at_first_is_asked_again() {
    let name = "net::tests::a_server_that_is_silent_at_first_is_asked_again";
    with_rights(name, || leased(2));
}
