//! DHCPv4 (RFC 2131): the client's state machine.
//!
//! The broadcast flag is set, since the client has no address yet by which an answer could reach its UDP socket.
//! Its client identifier is in [`crate::identity`].

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dhcproto::Encodable;
use dhcproto::v4::{DhcpOption, DhcpOptions, Flags, Message, MessageType, Opcode, OptionCode};

use crate::dhcp4_options::decode;
use crate::identity::client_identifier;
use crate::lease::{Lease, is_domain};
use crate::route::Route;

/// The first wait for an answer; each further one is twice as long, up to [`LONGEST`] (RFC 2131, section 4.1).
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(16);
/// Octets of the client's hardware address in a message (RFC 2131, section 2).
const CHADDR: usize = 16;
/// Requests of one offer before the client discovers again.
const REQUESTS: u32 = 3;

/// What a server is asked for.
const REQUESTED: [OptionCode; 7] = [
    OptionCode::SubnetMask,
    OptionCode::ClasslessStaticRoute,
    OptionCode::Router,
    OptionCode::DomainNameServer,
    OptionCode::DomainName,
    OptionCode::DomainSearch,
    OptionCode::InterfaceMtu,
];
/// What else of its answers is read.
const ANSWERED: [OptionCode; 3] = [
    OptionCode::MessageType,
    OptionCode::ServerIdentifier,
    OptionCode::AddressLeaseTime,
];

#[derive(Clone, Debug)]
enum Phase {
    Discovering,
    Requesting { address: Ipv4Addr, server: Ipv4Addr },
}

/// One interface's client.
#[derive(Debug)]
pub(crate) struct Client {
    mac: Vec<u8>,
    xid: u32,
    phase: Phase,
    /// The address that the link has already.
    wished: Option<Ipv4Addr>,
    /// When the next message is due; time since the client was made.
    due: Duration,
    wait: Duration,
    /// Messages sent in this phase, and in all.
    sent: u32,
    attempts: u32,
}

impl Client {
    /// A client whose first message is due at once. `xid` is random.
    pub(crate) fn new(mac: &[u8], xid: u32) -> Self {
        Self {
            mac: mac.to_vec(),
            xid,
            phase: Phase::Discovering,
            wished: None,
            due: Duration::ZERO,
            wait: FIRST,
            sent: 0,
            attempts: 0,
        }
    }

    /// The same with an address that it would like to keep (RFC 2131, section 4.4.1).
    pub(crate) fn wishing(mut self, address: Option<Ipv4Addr>) -> Self {
        self.wished = address;
        self
    }

    /// When [`Client::send`] has a message.
    pub(crate) const fn due(&self) -> Duration {
        self.due
    }

    /// The state, for the console.
    pub(crate) fn status(&self) -> String {
        match self.phase {
            Phase::Discovering => format!("requesting a lease by DHCP, attempt {}", self.attempts),
            Phase::Requesting { address, server } => {
                format!("requesting {address} of {server} by DHCP")
            }
        }
    }

    /// The message that is due now, if one is.
    pub(crate) fn send(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        if now < self.due {
            return Ok(None);
        }
        if matches!(self.phase, Phase::Requesting { .. }) && self.sent >= REQUESTS {
            self.start(Phase::Discovering);
        }
        self.sent += 1;
        self.attempts += 1;
        // RFC 2131 spreads the waits by a second either way, so that machines that start together do not send together. The
        // transaction's number is random enough for that.
        let jitter = Duration::from_millis(u64::from(self.xid.rotate_left(self.attempts) % 400));
        self.due = now + self.wait + jitter;
        self.wait = (self.wait * 2).min(LONGEST);
        let message = self.message(now);
        Ok(Some(message.to_vec().context("encoding a DHCP message")?))
    }

    /// The message of this phase.
    fn message(&self, now: Duration) -> Message {
        let mut message = Message::default();
        message
            .set_opcode(Opcode::BootRequest)
            .set_xid(self.xid)
            .set_secs(u16::try_from(now.as_secs()).unwrap_or(u16::MAX))
            .set_flags(Flags::default().set_broadcast())
            .set_chaddr(&self.mac);
        let options = message.opts_mut();
        let identifier = client_identifier(&self.mac);
        options.insert(DhcpOption::ClientIdentifier(identifier));
        options.insert(DhcpOption::MaxMessageSize(1472));
        options.insert(DhcpOption::ParameterRequestList(REQUESTED.to_vec()));
        match self.phase {
            Phase::Discovering => {
                options.insert(DhcpOption::MessageType(MessageType::Discover));
                if let Some(address) = self.wished {
                    options.insert(DhcpOption::RequestedIpAddress(address));
                }
            }
            Phase::Requesting { address, server } => {
                options.insert(DhcpOption::MessageType(MessageType::Request));
                options.insert(DhcpOption::RequestedIpAddress(address));
                options.insert(DhcpOption::ServerIdentifier(server));
            }
        }
        message
    }

    fn start(&mut self, phase: Phase) {
        self.phase = phase;
        self.sent = 0;
        self.wait = FIRST;
    }

    /// Takes a received message. Returns the lease once it is granted; messages for other clients are ignored.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Duration) -> Option<Lease> {
        let (message, unread) = decode(bytes, &[&ANSWERED[..], &REQUESTED].concat())?;
        // The sender chooses the length of the address, and dhcproto's `chaddr` panics if it is longer than the field.
        let ours = message.opcode() == Opcode::BootReply
            && message.xid() == self.xid
            && usize::from(message.hlen()) <= CHADDR
            && message.chaddr() == self.mac;
        let kind = match message.opts().get(OptionCode::MessageType) {
            Some(DhcpOption::MessageType(kind)) if ours => *kind,
            _ => return None,
        };
        let server = server(&message);
        match (&self.phase, kind) {
            (Phase::Discovering, MessageType::Offer) => {
                let address = message.yiaddr();
                if address.is_unspecified() {
                    return None;
                }
                self.start(Phase::Requesting {
                    address,
                    server: server?,
                });
                self.due = now;
                None
            }
            (Phase::Requesting { address, .. }, MessageType::Ack)
                if message.yiaddr() == *address =>
            {
                match lease(&message) {
                    Ok(lease) => {
                        for code in unread {
                            tracing::warn!("net: option {code} of the lease cannot be decoded");
                        }
                        Some(lease)
                    }
                    Err(error) => {
                        tracing::warn!("net: unusable lease: {error:#}");
                        self.restart(now);
                        None
                    }
                }
            }
            (Phase::Requesting { .. }, MessageType::Nak) => {
                self.restart(now);
                None
            }
            _ => None,
        }
    }

    /// Starts again after a pause, as a server may answer each message by a refusal.
    pub(crate) fn restart(&mut self, now: Duration) {
        self.start(Phase::Discovering);
        self.due = now + FIRST;
    }
}

fn server(message: &Message) -> Option<Ipv4Addr> {
    match message.opts().get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
        _ => None,
    }
}

fn lease(message: &Message) -> Result<Lease> {
    let options = message.opts();
    let address = message.yiaddr();
    let prefix = prefix(options, address)?;
    let resolvers = match options.get(OptionCode::DomainNameServer) {
        Some(DhcpOption::DomainNameServer(list)) => list.iter().copied().map(IpAddr::V4).collect(),
        _ => Vec::new(),
    };
    let mtu = match options.get(OptionCode::InterfaceMtu) {
        // Every host must be able to receive 576 bytes (RFC 791, section 3.1).
        Some(DhcpOption::InterfaceMtu(mtu)) if *mtu >= 576 => Some(*mtu),
        _ => None,
    };
    let time = match options.get(OptionCode::AddressLeaseTime) {
        Some(DhcpOption::AddressLeaseTime(seconds)) => Duration::from_secs((*seconds).into()),
        _ => Duration::from_secs(3600),
    };
    Ok(Lease {
        addresses: vec![(IpAddr::V4(address), prefix)],
        routes: routes(options),
        resolvers,
        search: search(options),
        mtu,
        time,
    })
}

/// The length of the prefix, by the subnet mask.
fn prefix(options: &DhcpOptions, address: Ipv4Addr) -> Result<u8> {
    let Some(DhcpOption::SubnetMask(mask)) = options.get(OptionCode::SubnetMask) else {
        tracing::warn!("net: the lease of {address} has no subnet mask");
        // Only the class of the address is left (RFC 791, section 3.2).
        return Ok(match address.octets()[0] {
            0..=127 => 8,
            128..=191 => 16,
            _ => 24,
        });
    };
    let bits = u32::from(*mask);
    if bits.leading_ones() + bits.trailing_zeros() != 32 && bits != 0 {
        bail!("its subnet mask is {mask}");
    }
    Ok(u8::try_from(bits.leading_ones())?)
}

fn routes(options: &DhcpOptions) -> Vec<Route> {
    let mut routes: Vec<Route> = match (
        options.get(OptionCode::ClasslessStaticRoute),
        options.get(OptionCode::Router),
    ) {
        // RFC 3442: a client that gets this option ignores the router option.
        (Some(DhcpOption::ClasslessStaticRoute(list)), _) if !list.is_empty() => list
            .iter()
            .map(|(network, gateway)| Route {
                network: network.network().into(),
                prefix: network.prefix_len(),
                gateway: IpAddr::V4(*gateway),
            })
            .collect(),
        (_, Some(DhcpOption::Router(routers))) => routers
            .first()
            .map(|router| Route {
                network: Ipv4Addr::UNSPECIFIED.into(),
                prefix: 0,
                gateway: IpAddr::V4(*router),
            })
            .into_iter()
            .collect(),
        _ => Vec::new(),
    };
    // On-link routes first: gateways of the others may be reached through them.
    routes.sort_by_key(|route| !route.gateway.is_unspecified());
    routes
}

/// The search domains: of the search list (RFC 3397), else the domain name.
fn search(options: &DhcpOptions) -> Vec<String> {
    let mut search = Vec::new();
    if let Some(DhcpOption::DomainSearch(names)) = options.get(OptionCode::DomainSearch) {
        search.extend(
            names
                .iter()
                .map(|name| name.to_string().trim_end_matches('.').to_owned()),
        );
    } else if let Some(DhcpOption::DomainName(name)) = options.get(OptionCode::DomainName) {
        search.push(name.trim_end_matches(['\0', '.']).to_owned());
    }
    search.retain(|name| is_domain(name));
    search
}

#[cfg(test)]
pub(crate) mod tests {
    use dhcproto::{Decodable, Decoder};

    use super::*;

    pub(crate) const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

    /// A server's answer to `request`.
    pub(crate) fn answer(request: &[u8], kind: MessageType, extra: Vec<DhcpOption>) -> Vec<u8> {
        let request = Message::decode(&mut Decoder::new(request)).unwrap();
        let mut reply = Message::default();
        reply
            .set_opcode(Opcode::BootReply)
            .set_xid(request.xid())
            .set_flags(request.flags())
            .set_yiaddr(Ipv4Addr::new(10, 9, 8, 77))
            .set_chaddr(request.chaddr());
        let options = reply.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 9, 8, 1)));
        options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
        options.insert(DhcpOption::Router(vec![Ipv4Addr::new(10, 9, 8, 1)]));
        options.insert(DhcpOption::DomainNameServer(vec![Ipv4Addr::new(
            10, 9, 8, 53,
        )]));
        options.insert(DhcpOption::AddressLeaseTime(600));
        for option in extra {
            options.insert(option);
        }
        reply.to_vec().unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_offer_is_requested_and_granted() {
        let mut client = Client::new(&MAC, 7);
        let discover = client.send(at(0)).unwrap().unwrap();
        let parsed = Message::decode(&mut Decoder::new(&discover)).unwrap();
        assert!(parsed.flags().broadcast());
        assert_eq!(
            parsed.opts().get(OptionCode::ClientIdentifier),
            Some(&DhcpOption::ClientIdentifier([&[1], &MAC[..]].concat()))
        );
        assert!(client.send(at(0)).unwrap().is_none());
        let offer = answer(&discover, MessageType::Offer, vec![]);
        assert!(client.receive(&offer, at(1)).is_none());
        let request = client.send(at(1)).unwrap().unwrap();
        let names = vec![DhcpOption::DomainName("a.example\n".into())];
        let ack = answer(&request, MessageType::Ack, names);
        let lease = client.receive(&ack, at(1)).unwrap();
        let granted = IpAddr::V4(Ipv4Addr::new(10, 9, 8, 77));
        assert_eq!(lease.addresses, [(granted, 24)]);
        assert_eq!(lease.time, at(600));
        assert_eq!(lease.resolvers, [IpAddr::V4(Ipv4Addr::new(10, 9, 8, 53))]);
        // A name with a line break never reaches resolv.conf.
        assert_eq!(lease.search, [""; 0]);
    }

    #[test]
    fn silence_refusals_and_others_messages_are_survived() {
        let mut client = Client::new(&MAC, 7);
        let mut times = vec![];
        for second in 0..60 {
            if client.send(at(second)).unwrap().is_some() {
                times.push(second);
            }
        }
        assert!((5..9).contains(&times.len()), "{times:?}");
        let discover = client.send(at(100)).unwrap().unwrap();
        let mut other = answer(&discover, MessageType::Offer, vec![]);
        other[7] ^= 1;
        assert!(client.receive(&other, at(100)).is_none());
        assert!(client.receive(b"nonsense", at(100)).is_none());
        assert!(client.send(at(100)).unwrap().is_none());
        client.receive(&answer(&discover, MessageType::Offer, vec![]), at(100));
        let request = client.send(at(100)).unwrap().unwrap();
        assert!(
            client
                .receive(&answer(&request, MessageType::Nak, vec![]), at(100))
                .is_none()
        );
        assert!(client.status().contains("requesting a lease"));
        assert!(client.send(at(101)).unwrap().is_some());
    }

    #[test]
    fn classless_routes_replace_the_router() {
        let mut client = Client::new(&MAC, 9);
        let discover = client.send(at(0)).unwrap().unwrap();
        client.receive(&answer(&discover, MessageType::Offer, vec![]), at(0));
        let request = client.send(at(0)).unwrap().unwrap();
        let gateway = Ipv4Addr::new(10, 9, 8, 2);
        let routes = DhcpOption::ClasslessStaticRoute(vec![
            ("0.0.0.0/0".parse().unwrap(), gateway),
            ("10.9.8.2/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
        ]);
        let host = DhcpOption::SubnetMask(Ipv4Addr::BROADCAST);
        let lease = client
            .receive(
                &answer(&request, MessageType::Ack, vec![routes, host]),
                at(0),
            )
            .unwrap();
        assert_eq!(lease.addresses[0].1, 32);
        assert_eq!(lease.routes.len(), 2);
        assert_eq!(lease.routes[0].network, gateway);
        assert_eq!(lease.routes[1].gateway, gateway);
    }

    #[test]
    fn an_impossible_length_of_the_hardware_address_is_not_ours() {
        let mut client = Client::new(&MAC, 7);
        let discover = client.send(at(0)).unwrap().unwrap();
        let mut offer = answer(&discover, MessageType::Offer, vec![]);
        for length in [0, 5, 7, 17, 22, 255] {
            // RFC 2131: op, htype, hlen.
            offer[2] = length;
            assert_eq!(client.receive(&offer, at(0)), None);
            assert!(matches!(client.phase, Phase::Discovering), "{length}");
        }
        offer[2] = 6;
        client.receive(&offer, at(0));
        assert!(matches!(client.phase, Phase::Requesting { .. }));
    }

    #[test]
    fn damaged_answers_are_survived() {
        let discover = Client::new(&MAC, 7).send(at(0)).unwrap().unwrap();
        let names = || {
            vec![
                DhcpOption::DomainName("a.example".into()),
                DhcpOption::InterfaceMtu(1400),
                DhcpOption::Hostname("a".into()),
            ]
        };
        let seeds = [MessageType::Offer, MessageType::Ack, MessageType::Nak];
        let seeds = seeds.map(|kind| answer(&discover, kind, names()));
        linux::fuzz::run(&seeds, |bytes, random| {
            let mut client = Client::new(&MAC, 7);
            client.send(at(0)).unwrap();
            if random.below(2) == 0 {
                let offer = answer(&discover, MessageType::Offer, vec![]);
                client.receive(&offer, at(1));
                client.send(at(1)).unwrap();
            }
            if let Some(lease) = client.receive(bytes, at(2)) {
                assert!(lease.addresses.iter().all(|(_, prefix)| *prefix <= 32));
                assert!(lease.search.iter().all(|name| is_domain(name)));
            }
        });
    }
}
