//! The network before the handoff.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use image::cmdline::CONFIG_URL;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::machine::Start;

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

/// A VLAN on a bond on the interface: its packets carry the tag, the bond has a lease, and the console names the
/// interface that still waits for a lease.
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
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    while !request.ends_with(b"\r\n\r\n") {
        let count = connection.read(&mut piece)?;
        ensure!(
            count > 0,
            "the node closed the connection within its request"
        );
        request.extend_from_slice(&piece[..count]);
    }
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    connection.write_all(body)?;
    let text = String::from_utf8_lossy(&request).into_owned();
    text.lines()
        .next()
        .map(str::to_owned)
        .context("reading the request's first line")
}
