//! The network before the handoff.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use image::bond::MODES;
use image::cmdline::CONFIG_URL;
use qemu_tests::http::{self, Request};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::switch::Switch;
use qemu_tests::timeouts;
use serde_json::json;
use slipway::vm::machine::Start;
use slipway::vm::machine::nets::{Net, Versions, mac};

/// The machine's only interface, by the name that udev derives from its Ethernet address.
const INTERFACE: &str = "enx525400511b0a";
/// An address of QEMU's user network outside the range of its DHCP server.
const ADDRESS: &str = "10.0.2.77";

/// With a static address the config is fetched without DHCP, and the running node has that address, route, name server
/// and host name, on an interface that udev renames.
pub(crate) fn a_static_address_fetches_the_config_and_is_handed_over(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        capture: true,
        ..BootOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut machine = lab.machine(&node, &plan)?;
    append(
        &mut machine.start,
        &format!(
            "ip={ADDRESS}::10.0.2.2:24:node77:{INTERFACE}:off nameserver=10.0.2.3 \
             {CONFIG_URL}=http://10.0.2.2:{port}/config.ign"
        ),
    );
    let running = lab.start(&node, machine, None)?;
    let config = running.config()?;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        // A boot fetches the config once; a second request gets no answer, and the promise fails.
        if let Ok(request) = serve_once(&listener, &config)
            && let Ok(mut seen) = seen.lock()
        {
            seen.push(request);
        }
    });
    running.wait_handoff(timeouts::INIT)?;
    let requests = asked.lock().map_or(0, |asked| asked.len());
    ensure!(requests == 1, "the config was fetched {requests} times");
    running.wait_services()?;
    let found = running.run(
        "for i in {1..60}; do ip -4 -o addr show scope global | grep -q inet && break; sleep 1; done; \
         ip -4 -o addr show scope global; ip route; hostname; resolvectl dns",
    )?;
    for word in [
        &format!("{ADDRESS}/24"),
        "default via 10.0.2.2",
        "node77",
        "10.0.2.3",
    ] {
        ensure!(found.contains(word), "the node has no {word}:\n{found}");
    }
    ensure!(
        !found.contains("10.0.2.15"),
        "the node has a DHCP lease too:\n{found}"
    );
    ensure!(
        !contains(&running.packets()?, &[0, 68, 0, 67]),
        "a DHCP packet was sent"
    );
    Ok(())
}

/// Without a word on the network, where there is nothing but IPv6: the config is fetched, and the control plane is READY.
pub(crate) fn a_network_of_version_6_alone_brings_a_node_to_ready(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let mut machine = lab.machine(&node, &BootOptions::default())?;
    machine.nets = vec![Net {
        versions: Versions::Six,
        ..Net::default()
    }];
    // QEMU's network leads its own address there to the host's loopback.
    let listener = TcpListener::bind("[::1]:0")?;
    let port = listener.local_addr()?.port();
    let source = format!("{CONFIG_URL}=http://[fec0::2]:{port}/config.ign");
    append(&mut machine.start, &source);
    let running = lab.start(&node, machine, None)?;
    let config = running.config()?;
    std::thread::spawn(move || serve_once(&listener, &config));
    running.wait_handoff(timeouts::INIT)?;
    running.wait_services()?;
    let addresses = running.run(
        "for i in {1..60}; do ip -6 -o addr | grep -q fec0 && break; sleep 1; done; \
         ip -o addr | grep -v ' lo '; ip -6 route",
    )?;
    ensure!(
        addresses.contains("inet6 fec0:") && addresses.contains(" via fe80:"),
        "no address of version 6 or no route:\n{addresses}"
    );
    ensure!(
        !addresses.contains("inet 10."),
        "an address of version 4:\n{addresses}"
    );
    running.wait_healthy()?;
    Ok(())
}

/// The number of the VLAN that the network of the second bond is in, and the third octet of its addresses.
const VLAN: u16 = 5;
const OCTET: u8 = 3;
/// The MTU of the second bond, bytes: not the default, and enough for the leases.
const MTU: u32 = 1400;

/// Two bonds of two cards each, one by LACP (802.3ad), one with a spare card (active-backup) and a VLAN above it. The config
/// comes over the first and refers to one that only the VLAN reaches; a switch between passes on nothing but its packets. The
/// running node has the same bonds, and one in each other mode; so it has after a boot that needs no network before the
/// handoff. The cards of the first bond go by the kernel's names, those of the second by their addresses.
pub(crate) fn bonds_have_their_modes_and_vlans_their_tags(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    // Each card of the first bond is on a network of its own, since a hub would give the bond its own LACP packets.
    let alone = Net {
        versions: Versions::Four,
        ..Net::default()
    };
    let behind_switch = Net {
        cards: 2,
        octet: OCTET,
        by_sockets: true,
        ..alone.clone()
    };
    let nets = vec![alone.clone(), alone, behind_switch];
    let (outer, inner) = (
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    );
    let card = |number: usize| format!("enx{}", mac(number).replace(':', ""));
    let [c, d] = [2, 3].map(card);
    let words = format!(
        "bond=bond0:eth0,eth1:mode=802.3ad,miimon=100,lacp_rate=fast,xmit_hash_policy=layer3+4 \
             bond=bond1:{c},{d}:mode=active-backup,miimon=100,primary={d}:{MTU} bond=bond2:none2:mode=0 \
             bond=bond3:none3:mode=balance-xor bond=bond4:none4:mode=3 bond=bond5:none5:mode=balance-tlb \
             bond=bond6:none6:mode=balance-alb vlan=vlan{VLAN}:bond1 ip=bond0:dhcp ip=vlan{VLAN}:dhcp \
             {CONFIG_URL}=http://10.0.2.2:{}/config.ign",
        outer.local_addr()?.port()
    );
    let start = |lab: &mut Lab| -> Result<Running> {
        let mut machine = lab.machine(&node, &BootOptions::default())?;
        machine.nets.clone_from(&nets);
        append(&mut machine.start, &words);
        let switch = Switch::listen(node.folder(), 2)?;
        std::thread::spawn(move || switch.run(VLAN));
        lab.start(&node, machine, None)
    };
    let running = start(lab)?;
    let config = running.config()?;
    let over_vlan = format!(
        "http://10.0.{OCTET}.2:{}/agent.ign",
        inner.local_addr()?.port()
    );
    let refers = json!({
        "ignition": { "version": "3.4.0", "config": { "merge": [{ "source": over_vlan }] } },
    });
    // Without an answer there is no handoff, so that these threads need not be looked after. A node with several links may ask
    // over more than one, and gives up all requests but the first that is answered.
    std::thread::spawn(move || {
        loop {
            serve_once(&outer, refers.to_string().as_bytes()).unwrap_or_default();
        }
    });
    std::thread::spawn(move || {
        loop {
            serve_once(&inner, &config).unwrap_or_default();
        }
    });
    running.wait_handoff(timeouts::INIT)?;
    running.wait_services()?;
    let made = running.run("dmesg | grep -o 'net: bond.*'")?;
    for (bond, mode) in modes() {
        let line = format!("net: {bond}: mode {mode}");
        ensure!(made.contains(&line), "no {line:?} in\n{made}");
    }
    has_its_bonds(&running)?;
    running.power_off()?;
    let running = start(lab)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_services()?;
    has_its_bonds(&running)
}

/// Each bond of the command line with its mode, as the kernel shows it.
fn modes() -> impl Iterator<Item = (&'static str, String)> {
    let bonds = [
        "bond2", "bond1", "bond3", "bond4", "bond0", "bond5", "bond6",
    ];
    let modes = MODES.iter().enumerate();
    bonds
        .into_iter()
        .zip(modes.map(|(number, mode)| format!("{mode} {number}")))
}

/// Compares the bonds of the running node with the words of the command line.
fn has_its_bonds(running: &Running) -> Result<()> {
    let found = running.run(&format!(
        "for i in {{1..60}}; do ip -4 -o addr | grep -q vlan{VLAN}.*10.0 && ip -4 -o addr | grep -q bond0.*10.0 \
         && [ $(cat /proc/net/bonding/bond[01] | grep -c '^Slave Interface') = 4 ] && break; sleep 1; done; for i in 0 1 2 3 4 5 6; do \
         echo bond$i is $(cat /sys/class/net/bond$i/bonding/mode); done; \
         echo MTU of bond1 and its VLAN: $(cat /sys/class/net/bond1/mtu /sys/class/net/vlan{VLAN}/mtu); \
         cat /proc/net/bonding/bond0 /proc/net/bonding/bond1 /proc/net/vlan/vlan{VLAN}; ip -4 -o addr"
    ))?;
    for (bond, mode) in modes() {
        let line = format!("{bond} is {mode}");
        ensure!(found.contains(&line), "no {line:?} in\n{found}");
    }
    for line in [
        "Bonding Mode: IEEE 802.3ad Dynamic link aggregation",
        "Transmit Hash Policy: layer3+4 (1)",
        "LACP rate: fast",
        "Bonding Mode: fault-tolerance (active-backup)",
        "MII Polling Interval (ms): 100",
        &format!("vlan{VLAN}  VID: {VLAN}"),
        &format!("MTU of bond1 and its VLAN: {MTU} {MTU}"),
        "Device: bond1",
    ] {
        ensure!(found.contains(line), "no {line:?} in\n{found}");
    }
    let primary = found
        .lines()
        .find_map(|line| line.strip_prefix("Primary Slave: "));
    ensure!(
        primary.is_some_and(|primary| !primary.starts_with("None")),
        "bond1 has no primary member:\n{found}"
    );
    let members = found.matches("Slave Interface: ").count();
    ensure!(members == 4, "{members} members of bonds:\n{found}");
    for address in ["10.0.2.", &format!("10.0.{OCTET}.")] {
        ensure!(found.contains(address), "no address {address}x:\n{found}");
    }
    Ok(())
}

/// A VLAN on a bond on the interface: its packets carry the tag, the bond has a lease, and the console says which interface
/// still waits for a lease.
pub(crate) fn a_vlan_over_a_bond_tags_its_packets(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        capture: true,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(&node, &plan)?;
    append(
        &mut machine.start,
        &format!(
            "bond=bond0:{INTERFACE}:mode=active-backup,miimon=100 vlan=vlan5:bond0 ip=bond0:dhcp ip=vlan5:dhcp \
             {CONFIG_URL}=http://10.0.2.2:9/config.ign"
        ),
    );
    let running = lab.start(&node, machine, None)?;
    // QEMU's network answers no tagged packet, so the VLAN never gets a lease.
    let console = running.wait_console(
        &["bond0: configured", "vlan5: requesting a lease"],
        timeouts::INIT,
    )?;
    ensure!(
        !console.contains("eth0: requesting a lease"),
        "a member of the bond asked for a lease"
    );
    // IEEE 802.1Q: the tag's type, VLAN 5, then IPv4.
    ensure!(
        contains(&running.packets()?, &[0x81, 0x00, 0x00, 0x05, 0x08, 0x00]),
        "no packet of VLAN 5 was sent"
    );
    Ok(())
}

fn append(start: &mut Start, words: &str) {
    if let Start::Direct { cmdline, .. } = start {
        cmdline.push(' ');
        cmdline.push_str(words);
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// Answers one request with the body: the request's first line.
fn serve_once(listener: &TcpListener, body: &[u8]) -> Result<String> {
    let (mut connection, _) = listener.accept()?;
    let request = Request::read(&mut connection)?;
    http::answer(&mut connection, "200 OK", body)?;
    Ok(request.line().to_owned())
}
