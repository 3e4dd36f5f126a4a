//! The client against a server on the other end of a veth pair, each in its own network namespace. Without the rights
//! to make one the test fails: it is never skipped.

#![allow(unsafe_code)]

mod links;
mod six;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{setsockopt, sockopt};

use std::collections::BTreeSet;

use super::*;
use crate::lease::Lease;
use crate::link::{Advertised, Link};
use crate::netlink::Netlink;
use crate::progress::{Candidate, Progress};
use crate::routes::{Behind, Changes, keep};
use crate::worker::resolv_conf;
use linux::world::Clock;

/// Lets a worker configure the links until a source can be asked. A test that waits for ever fails.
fn brought_up(world: &Arc<World>, plan: &Plan) -> Worker {
    let mut worker = Worker::new(Arc::clone(world), plan.clone()).unwrap();
    work_until(&mut worker, Worker::is_enough);
    worker
}

/// Lets a worker work until this is true of it.
fn work_until(worker: &mut Worker, is_true: impl Fn(&Worker) -> bool) {
    let began = Instant::now();
    loop {
        let pause = worker.examine(None).unwrap();
        if is_true(worker) {
            return;
        }
        let status = worker.status();
        assert!(began.elapsed() < Duration::from_secs(60), "{status}");
        worker.wait(pause, None).unwrap();
    }
}

fn leases(worker: &Worker) -> Vec<&Lease> {
    worker.progress.leases().collect()
}

/// A machine in a folder.
fn machine(folder: &Path) -> Arc<World> {
    Arc::new(World::below(folder, Clock::Real))
}

fn words(text: &str) -> Plan {
    image::cmdline::Cmdline::parse(text).unwrap().network
}

fn fresh_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("making a network namespace");
}

/// Runs a test again in a process in a user namespace of its own, unless this process has the rights already. A process
/// with several threads cannot enter a user namespace; a child before its exec can.
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

/// A DHCP server and its network: the first `silent` requests get no answer, and the first `spoiled` leases have a
/// router that no kernel accepts.
fn server(
    silent: usize,
    mut spoiled: usize,
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
        .add_address(link.index, Ipv4Addr::new(10, 9, 8, 1).into(), 24)
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
        let mut options = vec![DhcpOption::DomainName("nodes.example".into())];
        if spoiled > 0 {
            let nobody = Ipv4Addr::new(224, 0, 0, 1);
            options.push(DhcpOption::Router(vec![nobody]));
        }
        let answer = crate::dhcp4::tests::answer(&buffer[..len], kind, options);
        socket.send_to(&answer, (Ipv4Addr::BROADCAST, 68)).unwrap();
        match kind {
            MessageType::Ack if spoiled == 0 => return heard + 1,
            MessageType::Ack => spoiled -= 1,
            _ => {}
        }
    }
    0
}

fn leased(silent: usize, spoiled: usize) {
    let (ready, namespace) = channel();
    let (go, begin) = channel();
    let serving = std::thread::spawn(move || server(silent, spoiled, &ready, &begin));
    let other = namespace.recv().unwrap();
    let client = std::thread::spawn(move || {
        fresh_network();
        let mut netlink = Netlink::open().unwrap();
        pair(&mut netlink, &other);
        go.send(()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path());
        let plan = Plan::default();
        let worker = brought_up(&world, &plan);
        assert_eq!(worker.progress.ready[0].name, "eth0");
        let leased = IpAddr::V4(Ipv4Addr::new(10, 9, 8, 77));
        assert_eq!(leases(&worker)[0].addresses, [(leased, 24)]);
        let text = fs::read_to_string(world.in_initrd(image::paths::RESOLV_CONF)).unwrap();
        assert_eq!(
            text,
            "nameserver 10.9.8.53\nsearch nodes.example\noptions timeout:1 attempts:2\n"
        );
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        // The default route through 10.9.8.1 and the route of the network itself.
        assert!(routes.contains("eth0\t00000000\t0108090A"), "{routes}");
        assert!(routes.contains("eth0\t0008090A\t00000000"), "{routes}");
        // The server is reached from the leased address.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("10.9.8.1:9").unwrap();
        assert_eq!(socket.local_addr().unwrap().ip(), leased);

        flush_links(&worker.links, &plan).unwrap();
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
    assert!(heard >= silent + 2 * (spoiled + 1), "{heard}");
}

#[test]
fn a_lease_is_taken_from_a_real_server_and_taken_back() {
    let name = "network::tests::a_lease_is_taken_from_a_real_server_and_taken_back";
    with_rights(name, || leased(0, 0));
}

#[test]
fn a_server_that_is_silent_at_first_is_asked_again() {
    let name = "network::tests::a_server_that_is_silent_at_first_is_asked_again";
    with_rights(name, || leased(2, 0));
}

#[test]
fn a_lease_that_no_kernel_takes_does_not_end_the_exchange() {
    let name = "network::tests::a_lease_that_no_kernel_takes_does_not_end_the_exchange";
    with_rights(name, || leased(0, 1));
}

/// Runs a test in a network namespace of its own with one pair of links, `eth0` and `peer0`, whose other end is up.
fn with_peer(name: &str, test: impl FnOnce(&mut Netlink, &Arc<World>) + Send) {
    with_rights(name, || {
        let alone = || {
            fresh_network();
            let mut netlink = Netlink::open().unwrap();
            pair(&mut netlink, &here());
            let peer = by_name(&mut netlink, "peer0");
            netlink.set_up(peer.index, true).unwrap();
            let folder = tempfile::tempdir().unwrap();
            test(&mut netlink, &machine(folder.path()));
        };
        std::thread::scope(|scope| scope.spawn(alone).join().unwrap());
    });
}

/// An address, a default route and another one, as the command line names them; the pair's other end is not changed.
#[test]
fn a_fixed_address_and_its_routes_are_set_and_taken_back() {
    let name = "network::tests::a_fixed_address_and_its_routes_are_set_and_taken_back";
    with_peer(name, |netlink, world| {
        let cmdline = "ip=10.9.8.7::10.9.8.1:24:node7:eth0:off:1400 nameserver=10.9.8.53 \
                       rd.route=10.7.0.0/16:10.9.8.9:eth0";
        let plan = words(cmdline);
        let worker = brought_up(world, &plan);
        assert_eq!(worker.progress.ready.len(), 1);
        assert_eq!(worker.progress.ready[0].name, "eth0");
        assert!(resolv_conf(&plan, &worker.progress, None).starts_with("nameserver 10.9.8.53\n"));
        let link = by_name(netlink, "eth0");
        let found = netlink.addresses(link.index, false).unwrap();
        assert_eq!(found, [(IpAddr::V4(Ipv4Addr::new(10, 9, 8, 7)), 24)]);
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(routes.contains("eth0\t00000000\t0108090A"), "{routes}");
        assert!(routes.contains("eth0\t0000070A\t0908090A"), "{routes}");
        // The other end was not asked for and is left alone.
        assert_eq!(worker.links, [link.index]);

        flush_links(&worker.links, &plan).unwrap();
        assert!(!by_name(netlink, "eth0").up);
        assert!(netlink.addresses(link.index, false).unwrap().is_empty());
    });
}

#[test]
fn a_route_that_no_kernel_takes_does_not_hold_a_link_up() {
    let name = "network::tests::a_route_that_no_kernel_takes_does_not_hold_a_link_up";
    with_peer(name, |_, world| {
        let plan = words(
            "ip=10.9.8.7::10.9.8.1:24::eth0:off rd.route=10.7.0.0/16:224.0.0.1:eth0 \
             rd.route=10.6.0.9/16:10.9.8.9:eth0",
        );
        let worker = brought_up(world, &plan);
        assert_eq!(worker.progress.ready[0].name, "eth0");
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        for line in ["eth0\t00000000\t0108090A", "eth0\t0000060A\t0908090A"] {
            assert!(routes.contains(line), "{line}:\n{routes}");
        }
    });
}

/// A node that comes, one that goes, one whose address moves, and one that is on no network of this machine.
#[test]
fn routes_to_other_nodes_are_kept_and_no_other_is_touched() {
    let name = "network::tests::routes_to_other_nodes_are_kept_and_no_other_is_touched";
    with_peer(name, |netlink, world| {
        let plan = words("ip=10.9.8.7::10.9.8.1:24::eth0:off");
        let worker = brought_up(world, &plan);
        let own = by_name(netlink, "eth0").index;
        netlink
            .add_address(own, "fd09::7".parse().unwrap(), 64)
            .unwrap();
        let behind = |network: &str, prefix, gateway: &str| Behind {
            network: network.parse().unwrap(),
            prefix,
            gateway: gateway.parse().unwrap(),
        };
        let first = behind("10.244.1.0", 24, "10.9.8.8");
        let second = behind("fd01::", 64, "fd09::8");
        let far = behind("10.244.9.0", 24, "192.0.2.1");
        let both = BTreeSet::from([first, second]);
        assert_eq!(keep(&both).unwrap().added, [first, second]);
        assert_eq!(keep(&both).unwrap(), Changes::default());
        let routes = || std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(
            routes().contains("eth0\t0001F40A\t0808090A"),
            "{}",
            routes()
        );

        let moved = behind("10.244.1.0", 24, "10.9.8.9");
        let changes = keep(&BTreeSet::from([moved, far])).unwrap();
        assert_eq!(changes.added, [moved]);
        assert_eq!(changes.removed, [first, second]);
        // 192.0.2.1 is behind the default gateway, and no gateway itself.
        assert_eq!(changes.refused.len(), 1, "{changes:?}");
        assert_eq!(changes.refused[0].0, far);
        assert!(
            routes().contains("eth0\t0001F40A\t0908090A"),
            "{}",
            routes()
        );
        assert_eq!(keep(&BTreeSet::new()).unwrap().removed, [moved]);
        assert!(
            routes().contains("eth0\t00000000\t0108090A"),
            "{}",
            routes()
        );
        flush_links(&worker.links, &plan).unwrap();
    });
}

#[test]
fn a_fixed_address_is_enough_where_no_router_advertises() {
    let name = "network::tests::a_fixed_address_is_enough_where_no_router_advertises";
    with_peer(name, |_, world| {
        let plan = words("ip=10.9.8.7:::24::eth0:auto6");
        let began = Instant::now();
        let mut worker = brought_up(world, &plan);
        assert!(began.elapsed() < Duration::from_secs(20));
        worker.examine(None).unwrap();
        assert_eq!(worker.progress.ready.len(), 1);
    });
}

#[test]
fn a_fixed_address_of_another_host_is_named() {
    let name = "network::tests::a_fixed_address_of_another_host_is_named";
    with_peer(name, |netlink, world| {
        let taken: IpAddr = "2001:db8::7".parse().unwrap();
        let peer = by_name(netlink, "peer0").index;
        let own = by_name(netlink, "eth0").index;
        // Detection needs a carrier.
        netlink.set_up(own, true).unwrap();
        netlink.add_address(peer, taken, 64).unwrap();
        let began = Instant::now();
        while netlink.addresses(peer, true).unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(50));
        }
        let plan = words("ip=[2001:db8::7]:::64::eth0:off");
        let mut worker = Worker::new(Arc::clone(world), plan).unwrap();
        work_until(&mut worker, |worker| {
            worker.status() == "eth0: another host uses 2001:db8::7"
        });
        assert!(worker.progress.ready.is_empty());
    });
}

/// The network data names a device by its Ethernet address alone. The configuration of an earlier plan is removed
/// first.
#[test]
fn a_described_network_takes_the_place_of_the_usual_one() {
    let name = "network::tests::a_described_network_takes_the_place_of_the_usual_one";
    with_peer(name, |netlink, world| {
        let link = by_name(netlink, "eth0");
        let network = Network::new(Arc::clone(world));
        let modules = Modules::none(Arc::clone(world));
        network.set_platform_data(words("ip=10.9.8.7:::24::eth0:off"));
        network.up(&modules).unwrap();
        let four = netlink.addresses(link.index, false).unwrap();
        assert_eq!(four, [("10.9.8.7".parse().unwrap(), 24)]);
        let mac: Vec<String> = link.mac.iter().map(|b| format!("{b:02X}")).collect();
        let text = format!(
            r#"{{"links": [{{"id": "tap0", "type": "ovs", "mtu": 1400, "ethernet_mac_address": "{}"}}],
                "networks": [
                  {{"link": "tap0", "type": "ipv4", "ip_address": "10.9.8.9", "netmask": "255.255.255.0", "routes": [
                    {{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.9.8.1"}}]}},
                  {{"link": "tap0", "type": "ipv6", "ip_address": "2001:db8::9/64"}}]}}"#,
            mac.join(":")
        );
        let described = platform::network::read(text.as_bytes(), "n").unwrap();
        network.set_platform_data(platform::network::plan(&described));
        network.up(&modules).unwrap();
        assert_eq!(network.ways(), [None]);
        let four = netlink.addresses(link.index, false).unwrap();
        assert_eq!(four, [("10.9.8.9".parse().unwrap(), 24)]);
        let six = netlink.addresses(link.index, true).unwrap();
        assert_eq!(six, [("2001:db8::9".parse().unwrap(), 64)]);
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(routes.contains("eth0\t00000000\t0108090A"), "{routes}");
        network.flush().unwrap();
        assert!(!by_name(netlink, "eth0").up);
    });
}

/// The command line wins over the platform's network data.
#[test]
fn the_command_line_wins_over_platform_data() {
    let text = r#"{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:0a"}],
        "networks": [{"link": "a", "type": "ipv4_dhcp"}]}"#;
    let described = platform::network::read(text.as_bytes(), "n").unwrap();
    let words = image::cmdline::Cmdline::parse("ip=eth0:dhcp")
        .unwrap()
        .network;
    let described = platform::network::plan(&described);
    let network = || Network::new(Arc::new(World::below(Path::new("/nowhere"), Clock::Real)));
    let both = network();
    both.set_cmdline(&words);
    both.set_platform_data(described.clone());
    assert_eq!(both.plan(), words);
    let one = network();
    assert_eq!(one.plan(), Plan::default());
    one.set_platform_data(described.clone());
    assert_eq!(one.plan(), described);
}

#[test]
fn an_address_of_version_6_is_used_after_duplicate_address_detection() {
    let name = "network::tests::an_address_of_version_6_is_used_after_duplicate_address_detection";
    with_peer(name, |netlink, world| {
        let cmdline =
            "ip=[2001:db8::7]::[2001:db8::1]:64::eth0:off ifname=uplink:02:00:00:00:00:99";
        let plan = words(cmdline);
        let began = Instant::now();
        brought_up(world, &plan);
        assert!(began.elapsed() < Duration::from_secs(20));
        let link = by_name(netlink, "eth0");
        let found = netlink.addresses(link.index, true).unwrap();
        assert_eq!(found, [("2001:db8::7".parse().unwrap(), 64)]);
        let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        let gateway = "20010db8000000000000000000000001";
        assert!(routes.contains(gateway), "{routes}");
    });
}

/// Each interface that is not configured is named.
#[test]
fn the_status_names_what_is_missing() {
    let plan = image::cmdline::Cmdline::parse("ip=enp9s0:dhcp ip=eth0:auto6")
        .unwrap()
        .network;
    let link = Link {
        index: 2,
        name: "eth0".to_owned(),
        mac: vec![0; 6],
        up: true,
        carrier: true,
        ethernet: true,
        master: None,
        permanent: None,
        stacked: false,
        tag: None,
        advertised: Advertised::default(),
    };
    let candidate = Candidate {
        settings: plan.interface(&["eth0".to_owned()]),
        below: false,
        link,
    };
    assert_eq!(
        Progress::default().status(&plan, std::slice::from_ref(&candidate)),
        "eth0: no router has advertised a prefix; enp9s0: no such interface"
    );
    let both = Candidate {
        settings: Plan::default().interface(&["eth0".to_owned()]),
        ..candidate
    };
    let status = Progress::default().status(&Plan::default(), &[both]);
    assert_eq!(status, "eth0: no router has advertised a prefix");
    assert!(!Progress::default().is_enough(&plan));
}

fn by_name(netlink: &mut Netlink, name: &str) -> Link {
    let links = netlink.links().unwrap();
    links.into_iter().find(|link| link.name == name).unwrap()
}
