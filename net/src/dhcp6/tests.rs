//! The client against answers that are built byte for byte after the figures of RFC 8415. Its own messages are parsed
//! by dhcproto, which does not parse answers.

use std::net::IpAddr;

use dhcproto::{Decodable, Decoder};

use super::*;
use crate::lease::is_domain;

pub(crate) const SOLICIT: u8 = 1;
pub(crate) const ADVERTISE: u8 = 2;
pub(crate) const REQUEST: u8 = 3;
pub(crate) const REPLY: u8 = 7;
pub(crate) const DECLINE: u8 = 9;
pub(crate) const INFORMATION: u8 = 11;
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const IAID: u32 = 5;
pub(crate) const ADDRESS: &str = "2001:db8::77";
/// A DUID-EN (section 11.3).
const SERVER: &[u8] = &[0, 2, 0, 0, 0x9, 0xbf, 1, 2, 3];

/// An option: code, length, data.
pub(crate) fn option(code: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    [&code.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn sent(bytes: &[u8]) -> Message {
    Message::decode(&mut Decoder::new(bytes)).unwrap()
}

fn iaid_of(request: &[u8]) -> u32 {
    match sent(request).opts().get(OptionCode::IANA) {
        Some(DhcpOption::IANA(ia)) => ia.id,
        _ => 0,
    }
}

/// IA_NA with T1, T2 and the options in it.
fn association(iaid: u32, inside: &[u8]) -> Vec<u8> {
    let times = [100_u32.to_be_bytes(), 200_u32.to_be_bytes()].concat();
    option(3, &[&iaid.to_be_bytes(), &times[..], inside].concat())
}

fn granted(address: &str, preferred: u32, valid: u32) -> Vec<u8> {
    let address: Ipv6Addr = address.parse().unwrap();
    let times = [preferred.to_be_bytes(), valid.to_be_bytes()].concat();
    option(5, &[&address.octets()[..], &times].concat())
}

fn lease_for(request: &[u8]) -> Vec<Vec<u8>> {
    lease_of(request, ADDRESS)
}

/// The answer of a small server: an address with a name server and a domain.
pub(crate) fn lease_of(request: &[u8], address: &str) -> Vec<Vec<u8>> {
    let given = association(iaid_of(request), &granted(address, 300, 600));
    vec![given, names()]
}

/// Name server and domain alone.
pub(crate) fn names() -> Vec<u8> {
    let server: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let domains = b"\x05nodes\x07example\0\x01\n\0";
    [option(23, &server.octets()), option(24, domains)].concat()
}

/// The answer of a small server to `request`.
pub(crate) fn answer(request: &[u8], kind: u8, more: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(&request[1..4]);
    let Some(DhcpOption::ClientId(client)) =
        sent(request).opts().get(OptionCode::ClientId).cloned()
    else {
        panic!("no client identifier");
    };
    out.extend(option(1, &client));
    out.extend(option(2, SERVER));
    out.extend(more.concat());
    out
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client that has sent its first message, and that message. It was sent after one second at the latest.
fn begun(inform: bool) -> (Client, Vec<u8>) {
    let mut client = Client::new(&MAC, IAID, inform, 7, Duration::ZERO);
    assert!(client.due() < at(1000));
    let first = client.send(at(1000)).unwrap().unwrap();
    (client, first)
}

fn address() -> (IpAddr, u8) {
    (ADDRESS.parse().unwrap(), 128)
}

#[test]
fn an_advertised_address_is_requested_and_granted() {
    let (mut client, solicit) = begun(false);
    assert_eq!(solicit[0], SOLICIT);
    let parsed = sent(&solicit);
    let duid = [&[0, 3, 0, 1], &MAC[..]].concat();
    let identifier = parsed.opts().get(OptionCode::ClientId);
    assert_eq!(identifier, Some(&DhcpOption::ClientId(duid)));
    assert!(parsed.opts().get(OptionCode::RapidCommit).is_some());
    assert_eq!(
        parsed.opts().get(OptionCode::ElapsedTime),
        Some(&DhcpOption::ElapsedTime(0))
    );
    assert_eq!(iaid_of(&solicit), IAID);
    let advertise = answer(&solicit, ADVERTISE, &lease_for(&solicit));
    assert_eq!(client.receive(&advertise, at(1100)), None);
    // Other servers may offer too until the first wait is over.
    assert!(client.send(at(1900)).unwrap().is_none());
    let request = client.send(at(2200)).unwrap().unwrap();
    assert_eq!(request[0], REQUEST);
    assert_ne!(request[1..4], solicit[1..4]);
    let parsed = sent(&request);
    let server = parsed.opts().get(OptionCode::ServerId);
    assert_eq!(server, Some(&DhcpOption::ServerId(SERVER.to_vec())));
    let Some(DhcpOption::IANA(ia)) = parsed.opts().get(OptionCode::IANA) else {
        panic!("{parsed:?}");
    };
    let Some(DhcpOption::IAAddr(wanted)) = ia.opts.get(OptionCode::IAAddr) else {
        panic!("{parsed:?}");
    };
    assert_eq!(IpAddr::V6(wanted.addr), address().0);
    let reply = answer(&request, REPLY, &lease_for(&request));
    let lease = client.receive(&reply, at(2300)).unwrap();
    assert_eq!(lease.addresses, [address()]);
    assert_eq!(lease.time, Duration::from_secs(600));
    assert_eq!(lease.resolvers, ["2001:db8::53".parse::<IpAddr>().unwrap()]);
    // A name with a line break never reaches resolv.conf.
    assert_eq!(lease.search, ["nodes.example"]);
    assert!(client.send(at(3_600_000)).unwrap().is_none());
}

#[test]
fn rapid_commit_spares_the_request_and_is_asked_for() {
    let (mut client, solicit) = begun(false);
    let mut options = lease_for(&solicit);
    let without = answer(&solicit, REPLY, &options);
    assert_eq!(client.receive(&without, at(1100)), None);
    options.push(option(14, &[]));
    let lease = client.receive(&answer(&solicit, REPLY, &options), at(1100));
    assert_eq!(lease.unwrap().addresses, [address()]);
}

#[test]
fn the_highest_preference_wins_and_255_ends_the_waiting() {
    let (mut client, solicit) = begun(false);
    for (preference, last) in [(3, "a"), (9, "b"), (5, "c")] {
        let inside = granted(&format!("2001:db8::{last}"), 300, 600);
        let options = [association(IAID, &inside), option(7, &[preference])];
        client.receive(&answer(&solicit, ADVERTISE, &options), at(1100));
    }
    client.send(at(2200)).unwrap().unwrap();
    assert!(
        client.status().contains("2001:db8::b by DHCPv6"),
        "{}",
        client.status()
    );

    let (mut client, solicit) = begun(false);
    let options = [lease_for(&solicit).concat(), option(7, &[255])];
    client.receive(&answer(&solicit, ADVERTISE, &options), at(1100));
    let request = client.send(at(1100)).unwrap().unwrap();
    assert_eq!(request[0], REQUEST);
}

#[test]
fn information_alone_gives_names_and_no_address() {
    let (mut client, request) = begun(true);
    assert_eq!(request[0], INFORMATION);
    assert!(sent(&request).opts().get(OptionCode::IANA).is_none());
    let options = [names(), option(32, &1200_u32.to_be_bytes())];
    let lease = client
        .receive(&answer(&request, REPLY, &options), at(1100))
        .unwrap();
    assert_eq!((lease.addresses.len(), lease.resolvers.len()), (0, 1));
    assert_eq!(lease.time, Duration::from_secs(1200));
    assert!(client.send(at(9_000_000)).unwrap().is_none());
}

/// RFC 8415, section 15: each wait is twice the last, give or take a tenth; SOL_TIMEOUT is one second.
#[test]
fn silence_is_answered_by_waits_that_double_without_end() {
    let mut first = Vec::new();
    for random in 0..20 {
        let mut client = Client::new(&MAC, IAID, false, random, Duration::ZERO);
        let mut times = vec![client.due().as_secs_f64()];
        for _ in 0..20 {
            let now = client.due();
            assert!(client.send(now).unwrap().is_some());
            times.push(client.due().as_secs_f64());
        }
        let waits: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            times[0] < 1.0 && (1.0..1.11).contains(&waits[0]),
            "{waits:?}"
        );
        for pair in waits.windows(2).take(10) {
            assert!((1.89..2.11).contains(&(pair[1] / pair[0])), "{waits:?}");
        }
        assert!(
            waits[13..]
                .iter()
                .all(|wait| (3239.0..3961.0).contains(wait)),
            "{waits:?}"
        );
        first.push(format!("{:.3}", waits[1]));
    }
    first.sort();
    first.dedup();
    assert!(first.len() > 10, "{first:?}");
}

#[test]
fn a_server_may_shorten_the_longest_wait() {
    let (mut client, solicit) = begun(false);
    for seconds in [59_u32, 86_401, 60] {
        let none = option(13, &[0, 2]);
        let options = [none, option(82, &seconds.to_be_bytes())];
        client.receive(&answer(&solicit, ADVERTISE, &options), at(1100));
    }
    assert!(
        client.status().contains("NoAddrsAvail"),
        "{}",
        client.status()
    );
    let mut last = Duration::ZERO;
    for _ in 0..20 {
        let now = client.due();
        client.send(now).unwrap().unwrap();
        last = client.due() - now;
    }
    assert!((at(54_000)..at(66_001)).contains(&last), "{last:?}");
}

#[test]
fn a_server_that_falls_silent_is_left_after_ten_requests() {
    let (mut client, solicit) = begun(false);
    let options = [lease_for(&solicit).concat(), option(7, &[255])];
    client.receive(&answer(&solicit, ADVERTISE, &options), at(1100));
    let mut kinds = Vec::new();
    for _ in 0..11 {
        let now = client.due();
        kinds.push(client.send(now).unwrap().unwrap()[0]);
    }
    assert_eq!(kinds[..10], [REQUEST; 10]);
    assert_eq!(kinds[10], SOLICIT);
}

#[test]
fn what_others_have_is_declined() {
    let (mut client, solicit) = begun(false);
    let options = [lease_for(&solicit).concat(), option(14, &[])];
    client
        .receive(&answer(&solicit, REPLY, &options), at(1100))
        .unwrap();
    client.decline(at(3000));
    let decline = client.send(at(3000)).unwrap().unwrap();
    assert_eq!((decline[0], iaid_of(&decline)), (DECLINE, IAID));
    client.receive(&answer(&decline, REPLY, &[option(13, &[0, 0])]), at(3100));
    let again = client.send(at(3100)).unwrap().unwrap();
    assert_eq!(again[0], SOLICIT);
    // The same without an answer to it.
    let mut client = begun(false).0;
    client.phase = Phase::Bound(Offer {
        server: SERVER.to_vec(),
        preference: 0,
        addresses: vec!["2001:db8::7".parse().unwrap()],
    });
    client.decline(at(3000));
    let kinds: Vec<u8> = (0..5)
        .map(|_| client.send(client.due()).unwrap().unwrap()[0])
        .collect();
    assert_eq!(kinds, [DECLINE, DECLINE, DECLINE, DECLINE, SOLICIT]);
}

/// None of these is a lease, and after each the client still sends.
#[test]
fn what_is_no_lease_is_passed_over() {
    let inside = |text: &str| association(IAID, &granted(text, 300, 600));
    let long = [&association(IAID, &[])[..], &[0, 23, 0, 16, 1]].concat();
    let status = [granted(ADDRESS, 300, 600), option(13, &[0, 4])].concat();
    for (name, option) in [
        (
            "other association",
            association(6, &granted(ADDRESS, 300, 600)),
        ),
        ("no address", association(IAID, &[])),
        ("no lifetime", association(IAID, &granted(ADDRESS, 0, 0))),
        (
            "preferred longer than valid",
            association(IAID, &granted(ADDRESS, 700, 600)),
        ),
        ("status of the association", association(IAID, &status)),
        (
            "status of one octet",
            [inside(ADDRESS), option(13, &[0])].concat(),
        ),
        ("unspecified", inside("::")),
        ("multicast", inside("ff02::1")),
        ("loopback", inside("::1")),
        ("of the link", inside("fe80::1")),
        ("mapped", inside("::ffff:192.0.2.1")),
        ("short association", option(3, &[0; 11])),
        ("short address", association(IAID, &option(5, &[0x20; 23]))),
        ("an option that is cut", long),
    ] {
        let (mut client, solicit) = begun(false);
        let options = [option.clone(), self::option(14, &[])];
        assert_eq!(
            client.receive(&answer(&solicit, REPLY, &options), at(1100)),
            None,
            "{name}"
        );
        client.receive(&answer(&solicit, ADVERTISE, &[option]), at(1100));
        let next = client.send(client.due()).unwrap().unwrap();
        assert_eq!(next[0], SOLICIT, "{name}");
    }
}

#[test]
fn messages_for_others_are_passed_over() {
    let (mut client, solicit) = begun(false);
    let good = answer(
        &solicit,
        REPLY,
        &[lease_for(&solicit).concat(), option(14, &[])],
    );
    let mut other = good.clone();
    other[1] ^= 1;
    assert_eq!(client.receive(&other, at(1100)), None);
    // The last octet of the client's DUID: head, option, DUID.
    let mut other = good.clone();
    other[4 + 4 + 9] ^= 1;
    assert_eq!(client.receive(&other, at(1100)), None);
    for len in 0..good.len() {
        assert_eq!(client.receive(&good[..len], at(1100)), None, "{len}");
    }
    assert!(client.receive(&good, at(1100)).is_some());
}

#[test]
fn damaged_answers_are_survived() {
    let (_, solicit) = begun(false);
    let (_, inform) = begun(true);
    let deep = (0..200).fold(Vec::new(), |inside, _| association(IAID, &inside));
    let rapid = [
        lease_for(&solicit).concat(),
        option(14, &[]),
        option(7, &[9]),
    ];
    let told = [
        names(),
        option(13, &[0, 1, b'x']),
        option(82, &[0, 0, 1, 0]),
        option(83, &[0; 4]),
    ];
    let seeds = [
        answer(&solicit, ADVERTISE, &lease_for(&solicit)),
        answer(&solicit, REPLY, &rapid),
        answer(&solicit, REPLY, &[deep]),
        answer(&solicit, REPLY, &told),
        answer(&inform, REPLY, &told),
    ];
    linux::fuzz::run(&seeds, |bytes, random| {
        let (mut client, solicit) = begun(random.below(3) == 0);
        if random.below(2) == 0 {
            let preferred = [lease_for(&solicit).concat(), option(7, &[255])];
            client.receive(&answer(&solicit, ADVERTISE, &preferred), at(1100));
            if let Some(sent) = client.send(at(1100)).unwrap() {
                bytes.resize(bytes.len().max(4), 0);
                bytes[1..4].copy_from_slice(&sent[1..4]);
            }
        }
        if let Some(lease) = client.receive(bytes, at(1200)) {
            assert!(lease.addresses.iter().all(|(_, prefix)| *prefix == 128));
            assert!(lease.search.iter().all(|name| is_domain(name)));
        }
        client.status();
        let due = client.due();
        assert_eq!(client.send(due).unwrap().is_some(), due < Duration::MAX);
        client.decline(at(5000));
    });
}
