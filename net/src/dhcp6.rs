//! DHCPv6 (RFC 8415): the client's state machine. An address by Solicit, Advertise, Request and Reply, or by Solicit and a
//! Reply with rapid commit; or only what servers tell, by Information-request.
//!
//! Its DUID and IAID are in [`crate::identity`].
//!
//! Answers are taken apart in [`answer`].

mod answer;
#[cfg(test)]
pub(crate) mod tests;

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use dhcproto::Encodable;
use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, ORO, OptionCode};

use crate::identity::duid;
use crate::lease::Lease;
use answer::{Options, addresses, lease, number, one};

/// The first message of an exchange waits a random part of this (`SOL_MAX_DELAY`, `INF_MAX_DELAY`).
const DELAY: Duration = Duration::from_secs(1);
/// RFC 8415, section 7.6: the first wait of each kind of message.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait for an Advertise or for information, unless a server says otherwise (`SOL_MAX_RT`, `INF_MAX_RT`).
const LONGEST: Duration = Duration::from_secs(3600);
/// What a server may say of that, in seconds (sections 21.24 and 21.25).
const LONGEST_TOLD: std::ops::RangeInclusive<u32> = 60..=86_400;
/// `REQ_MAX_RT` and `REQ_MAX_RC`
const REQUEST_LONGEST: Duration = Duration::from_secs(30);
const REQUESTS: u32 = 10;
/// `DEC_MAX_RC`
const DECLINES: u32 = 4;
/// The longest pause after a server that refuses what it offered.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Octets of the longest DUID with its type (section 11.1).
const LONGEST_DUID: usize = 130;
/// How long information counts if the server does not say (`IRT_DEFAULT`).
const INFORMATION: Duration = Duration::from_secs(86_400);

/// A server that would give addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    server: Vec<u8>,
    preference: u8,
    addresses: Vec<Ipv6Addr>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Which servers are there? The best so far.
    Seeking(Option<Offer>),
    Asking(Offer),
    /// What do servers tell?
    Informing,
    /// What was granted or told.
    Holding(Offer),
    /// Somebody else has what was granted.
    Declining(Offer),
}

/// One interface's client.
#[derive(Debug)]
pub(crate) struct Client {
    duid: Vec<u8>,
    iaid: u32,
    random: u64,
    xid: [u8; 3],
    phase: Phase,
    /// When the first message of this exchange was sent.
    began: Option<Duration>,
    /// When something is to be sent next.
    due: Duration,
    wait: Duration,
    /// Messages sent in this exchange, and in all.
    sent: u32,
    attempts: u32,
    /// Exchanges in a row that a server ended without an address.
    refusals: u32,
    /// The last thing that a server had against us.
    complaint: Option<String>,
    longest: Duration,
}

impl Client {
    /// A client that asks for an address, or only for information. `random` differs with each client; `now` is the
    /// time by which all others are measured.
    pub(crate) fn new(mac: &[u8], iaid: u32, inform: bool, random: u64, now: Duration) -> Self {
        let mut client = Self {
            duid: duid(mac),
            iaid,
            random,
            xid: [0; 3],
            phase: Phase::Informing,
            began: None,
            due: now,
            wait: FIRST,
            sent: 0,
            attempts: 0,
            refusals: 0,
            complaint: None,
            longest: LONGEST,
        };
        let phase = match inform {
            true => Phase::Informing,
            false => Phase::Seeking(None),
        };
        let delay = client.part_of(DELAY);
        client.start(phase, now + delay);
        client
    }

    /// When [`Client::send`] has something to say.
    pub(crate) const fn due(&self) -> Duration {
        self.due
    }

    /// What this client is doing, for people.
    pub(crate) fn doing(&self) -> String {
        let attempts = self.attempts;
        let text = match &self.phase {
            Phase::Seeking(_) => format!("asking for an address by DHCPv6, attempt {attempts}"),
            Phase::Asking(offer) => format!(
                "asking for {} by DHCPv6, attempt {attempts}",
                list(&offer.addresses)
            ),
            Phase::Informing => format!("asking for name servers by DHCPv6, attempt {attempts}"),
            Phase::Holding(offer) if offer.addresses.is_empty() => {
                "name servers known by DHCPv6".to_owned()
            }
            Phase::Holding(offer) => format!("{} is not in use yet", list(&offer.addresses)),
            Phase::Declining(offer) => {
                format!("giving {} back, which others have", list(&offer.addresses))
            }
        };
        match &self.complaint {
            Some(complaint) => format!("{text} ({complaint})"),
            None => text,
        }
    }

    /// What is to be sent now, if anything.
    pub(crate) fn send(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        if now < self.due {
            return Ok(None);
        }
        match self.phase.clone() {
            // The time in which servers may compete is over.
            Phase::Seeking(Some(best)) => self.start(Phase::Asking(best), now),
            Phase::Asking(_) if self.sent >= REQUESTS => self.start(Phase::Seeking(None), now),
            Phase::Declining(_) if self.sent >= DECLINES => self.start(Phase::Seeking(None), now),
            Phase::Holding(_) => return Ok(None),
            _ => {}
        }
        self.wait = self.next_wait();
        self.due = now + self.wait;
        self.sent += 1;
        self.attempts += 1;
        let began = *self.began.get_or_insert(now);
        let message = self.message(now.saturating_sub(began));
        Ok(Some(message.to_vec().context("encoding a DHCPv6 message")?))
    }

    /// How long the message that is about to be sent waits for its answer: section 15, with its random part.
    fn next_wait(&mut self) -> Duration {
        let longest = match self.phase {
            Phase::Seeking(_) | Phase::Informing => self.longest,
            Phase::Asking(_) => REQUEST_LONGEST,
            Phase::Holding(_) | Phase::Declining(_) => Duration::MAX,
        };
        if self.sent == 0 {
            let spread = self.part_of(FIRST / 10);
            return match self.phase {
                // Never earlier, so that the servers' answers can be compared.
                Phase::Seeking(_) => FIRST + spread + Duration::from_millis(1),
                _ => FIRST * 9 / 10 + 2 * spread,
            };
        }
        let next = self.wait * 19 / 10 + self.part_of(self.wait / 5);
        match next > longest {
            true => longest * 9 / 10 + self.part_of(longest / 5),
            false => next,
        }
    }

    fn message(&self, elapsed: Duration) -> Message {
        let (kind, offer) = match &self.phase {
            Phase::Seeking(_) => (MessageType::Solicit, None),
            Phase::Asking(offer) => (MessageType::Request, Some(offer)),
            Phase::Informing => (MessageType::InformationRequest, None),
            Phase::Holding(offer) | Phase::Declining(offer) => (MessageType::Decline, Some(offer)),
        };
        let mut message = Message::new_with_id(kind, self.xid);
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(self.duid.clone()));
        let hundredths = u16::try_from(elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.insert(DhcpOption::ElapsedTime(hundredths));
        if let Some(offer) = offer {
            options.insert(DhcpOption::ServerId(offer.server.clone()));
        }
        if kind == MessageType::Solicit {
            options.insert(DhcpOption::RapidCommit);
        }
        if kind != MessageType::Decline {
            let longest = match kind {
                MessageType::InformationRequest => {
                    vec![OptionCode::InformationRefreshTime, OptionCode::InfMaxRt]
                }
                _ => vec![OptionCode::SolMaxRt],
            };
            let names = vec![OptionCode::DomainNameServers, OptionCode::DomainSearchList];
            options.insert(DhcpOption::ORO(ORO {
                opts: [names, longest].concat(),
            }));
        }
        if kind != MessageType::InformationRequest {
            let addresses = offer.map_or([].as_slice(), |offer| &offer.addresses);
            options.insert(DhcpOption::IANA(IANA {
                id: self.iaid,
                t1: 0,
                t2: 0,
                opts: addresses.iter().map(wanted).collect(),
            }));
        }
        message
    }

    fn start(&mut self, phase: Phase, due: Duration) {
        let [.., a, b, c] = self.next_random().to_le_bytes();
        self.xid = [a, b, c];
        self.phase = phase;
        self.sent = 0;
        self.began = None;
        self.due = due;
    }

    /// Takes what arrived. Gives the lease when it is granted; what is not for us is passed over.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Duration) -> Option<Lease> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let [kind, xid @ ..] = *head;
        if xid != self.xid {
            return None;
        }
        let options = answer::options(rest)?;
        let server = one(&options, OptionCode::ServerId)?;
        let ours = one(&options, OptionCode::ClientId)? == self.duid
            && (1..=LONGEST_DUID).contains(&server.len());
        if !ours {
            return None;
        }
        self.heed_longest(&options);
        match (self.phase.clone(), MessageType::from(kind)) {
            (Phase::Seeking(best), MessageType::Advertise) => {
                let offer = self.offer(&options, server)?;
                self.offered(best, offer, now);
                None
            }
            (Phase::Seeking(_), MessageType::Reply) => {
                one(&options, OptionCode::RapidCommit)?;
                self.granted(&options, server, now)
            }
            (Phase::Asking(offer), MessageType::Reply) if offer.server == server => {
                self.granted(&options, server, now)
            }
            (Phase::Informing, MessageType::Reply) => {
                let seconds = number(&options, OptionCode::InformationRefreshTime);
                let time = seconds.map_or(INFORMATION, |s| Duration::from_secs(s.max(600).into()));
                self.hold(Offer {
                    server: server.to_vec(),
                    preference: 0,
                    addresses: Vec::new(),
                });
                Some(lease(&options, &[], time))
            }
            (Phase::Declining(_), MessageType::Reply) => {
                self.start(Phase::Seeking(None), now);
                None
            }
            _ => None,
        }
    }

    /// A server may say how long to wait at most, whatever else it says (section 18.2.9).
    fn heed_longest(&mut self, options: &Options<'_>) {
        let code = match self.phase {
            Phase::Informing => OptionCode::InfMaxRt,
            _ => OptionCode::SolMaxRt,
        };
        if let Some(seconds) = number(options, code).filter(|s| LONGEST_TOLD.contains(s)) {
            self.longest = Duration::from_secs(seconds.into());
        }
    }

    /// What a server would give, or gives; none if that is nothing, which is noted.
    fn offer(&mut self, options: &Options<'_>, server: &[u8]) -> Option<Offer> {
        match addresses(options, self.iaid) {
            Ok(found) => Some(Offer {
                server: server.to_vec(),
                preference: match one(options, OptionCode::Preference) {
                    Some([preference]) => *preference,
                    _ => 0,
                },
                addresses: found.iter().map(|one| one.0).collect(),
            }),
            Err(complaint) => {
                self.complaint = Some(complaint);
                None
            }
        }
    }

    /// Of several offers that with the highest preference counts, the first of equal ones. Servers may compete until the
    /// first Solicit's time is over (section 18.2.1).
    fn offered(&mut self, best: Option<Offer>, offer: Offer, now: Duration) {
        if offer.preference == u8::MAX || self.sent > 1 {
            return self.start(Phase::Asking(offer), now);
        }
        let better = best
            .as_ref()
            .is_none_or(|best| offer.preference > best.preference);
        self.phase = Phase::Seeking(if better { Some(offer) } else { best });
    }

    fn granted(&mut self, options: &Options<'_>, server: &[u8], now: Duration) -> Option<Lease> {
        let Some(offer) = self.offer(options, server) else {
            self.again(now);
            return None;
        };
        let found = addresses(options, self.iaid).unwrap_or_default();
        let time = found.iter().map(|one| one.1).min().unwrap_or_default();
        let lease = lease(options, &offer.addresses, time);
        self.hold(offer);
        Some(lease)
    }

    fn hold(&mut self, offer: Offer) {
        self.refusals = 0;
        self.complaint = None;
        self.phase = Phase::Holding(offer);
        self.due = Duration::MAX;
    }

    /// From the beginning, after a pause that grows with each time.
    pub(crate) fn again(&mut self, now: Duration) {
        let pause = DELAY
            .saturating_mul(1 << self.refusals.min(8))
            .min(LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        let pause = pause + self.part_of(DELAY);
        self.start(Phase::Seeking(None), now + pause);
    }

    /// Tells the server that somebody else has what it granted, and begins anew.
    pub(crate) fn decline(&mut self, now: Duration) {
        match self.phase.clone() {
            Phase::Holding(offer) if !offer.addresses.is_empty() => {
                self.start(Phase::Declining(offer), now);
            }
            _ => self.again(now),
        }
    }

    /// A random part of a time.
    fn part_of(&mut self, time: Duration) -> Duration {
        let part = u32::from(self.next_random().to_le_bytes()[7]);
        time * part / 256
    }

    /// SplitMix64: enough to keep machines that start together apart.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn list(addresses: &[Ipv6Addr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn wanted(address: &Ipv6Addr) -> DhcpOption {
    DhcpOption::IAAddr(IAAddr {
        addr: *address,
        preferred_life: 0,
        valid_life: 0,
        opts: DhcpOptions::new(),
    })
}
