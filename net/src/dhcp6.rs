//! DHCPv6 (RFC 8415): the client's state machine. An address by Solicit, Advertise, Request and Reply, or by Solicit and a
//! Reply with rapid commit; or configuration without an address, by Information-request. Sections are those of the RFC.
//!
//! Its DUID and IAID are in [`crate::identity`].
//!
//! Answers are parsed in [`answer`].

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
/// The range within which a server may set this wait, in seconds (sections 21.24 and 21.25).
const LONGEST_ALLOWED: std::ops::RangeInclusive<u32> = 60..=86_400;
/// `REQ_MAX_RT` and `REQ_MAX_RC`
const REQUEST_LONGEST: Duration = Duration::from_secs(30);
const REQUESTS: u32 = 10;
/// `DEC_MAX_RC`
const DECLINES: u32 = 4;
/// The longest pause after a server that does not grant its own offer.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Octets of the longest DUID with its type (section 11.1).
const LONGEST_DUID: usize = 130;
/// How long information is valid unless the server says otherwise (`IRT_DEFAULT`).
const INFORMATION: Duration = Duration::from_secs(86_400);

/// The addresses that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    server: Vec<u8>,
    preference: u8,
    addresses: Vec<Ipv6Addr>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Soliciting; holds the best offer so far.
    Soliciting(Option<Offer>),
    Requesting(Offer),
    /// Requesting information without an address.
    Informing,
    /// Bound: a lease, or information without an address.
    Bound(Offer),
    /// Declining: another host uses the address.
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
    /// When the first message of this exchange was sent (option "elapsed time").
    began: Option<Duration>,
    /// When the next message is due.
    due: Duration,
    wait: Duration,
    /// Messages sent in this exchange, and in all.
    sent: u32,
    attempts: u32,
    /// Exchanges in a row that a server ended without an address.
    refusals: u32,
    /// The reason why the last answer was not a lease.
    problem: Option<String>,
    longest: Duration,
}

impl Client {
    /// A client that requests an address, or with `inform` only information. `random` differs with each client. All times
    /// are on the clock of `now`.
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
            problem: None,
            longest: LONGEST,
        };
        let phase = match inform {
            true => Phase::Informing,
            false => Phase::Soliciting(None),
        };
        let delay = client.part_of(DELAY);
        client.start(phase, now + delay);
        client
    }

    /// When [`Client::send`] has a message.
    pub(crate) const fn due(&self) -> Duration {
        self.due
    }

    /// The state, for the console.
    pub(crate) fn status(&self) -> String {
        let attempts = self.attempts;
        let text = match &self.phase {
            Phase::Soliciting(_) => format!("requesting an address by DHCPv6, attempt {attempts}"),
            Phase::Requesting(offer) => format!(
                "requesting {} by DHCPv6, attempt {attempts}",
                list(&offer.addresses)
            ),
            Phase::Informing => format!("requesting name servers by DHCPv6, attempt {attempts}"),
            Phase::Bound(offer) if offer.addresses.is_empty() => {
                "has name servers by DHCPv6".to_owned()
            }
            Phase::Bound(offer) => format!(
                "duplicate address detection of {} is under way",
                list(&offer.addresses)
            ),
            Phase::Declining(offer) => {
                format!(
                    "declining {}, which another host uses",
                    list(&offer.addresses)
                )
            }
        };
        match &self.problem {
            Some(problem) => format!("{text} ({problem})"),
            None => text,
        }
    }

    /// The message that is due now, if one is.
    pub(crate) fn send(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        if now < self.due {
            return Ok(None);
        }
        match self.phase.clone() {
            // The time for further advertisements is over (section 18.2.1).
            Phase::Soliciting(Some(best)) => self.start(Phase::Requesting(best), now),
            Phase::Requesting(_) if self.sent >= REQUESTS => {
                self.start(Phase::Soliciting(None), now)
            }
            Phase::Declining(_) if self.sent >= DECLINES => {
                self.start(Phase::Soliciting(None), now)
            }
            Phase::Bound(_) => return Ok(None),
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

    /// How long the next message waits for its answer: section 15, with its random part.
    fn next_wait(&mut self) -> Duration {
        let longest = match self.phase {
            Phase::Soliciting(_) | Phase::Informing => self.longest,
            Phase::Requesting(_) => REQUEST_LONGEST,
            Phase::Bound(_) | Phase::Declining(_) => Duration::MAX,
        };
        if self.sent == 0 {
            let spread = self.part_of(FIRST / 10);
            return match self.phase {
                // Never below `SOL_TIMEOUT`, so that offers of several servers can be compared.
                Phase::Soliciting(_) => FIRST + spread + Duration::from_millis(1),
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
            Phase::Soliciting(_) => (MessageType::Solicit, None),
            Phase::Requesting(offer) => (MessageType::Request, Some(offer)),
            Phase::Informing => (MessageType::InformationRequest, None),
            Phase::Bound(offer) | Phase::Declining(offer) => (MessageType::Decline, Some(offer)),
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

    /// Takes a received message. Returns the lease once it is granted; messages for other clients are ignored.
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
        self.adopt_longest(&options);
        match (self.phase.clone(), MessageType::from(kind)) {
            (Phase::Soliciting(best), MessageType::Advertise) => {
                let offer = self.offer(&options, server)?;
                self.offered(best, offer, now);
                None
            }
            (Phase::Soliciting(_), MessageType::Reply) => {
                one(&options, OptionCode::RapidCommit)?;
                self.granted(&options, server, now)
            }
            (Phase::Requesting(offer), MessageType::Reply) if offer.server == server => {
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
                self.start(Phase::Soliciting(None), now);
                None
            }
            _ => None,
        }
    }

    /// Adopts the longest wait that a server sets, whatever else its answer holds (section 18.2.9).
    fn adopt_longest(&mut self, options: &Options<'_>) {
        let code = match self.phase {
            Phase::Informing => OptionCode::InfMaxRt,
            _ => OptionCode::SolMaxRt,
        };
        if let Some(seconds) = number(options, code).filter(|s| LONGEST_ALLOWED.contains(s)) {
            self.longest = Duration::from_secs(seconds.into());
        }
    }

    /// The addresses in an answer; none if it has none, and the reason is kept.
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
            Err(problem) => {
                self.problem = Some(problem);
                None
            }
        }
    }

    /// Keeps the offer with the highest preference, the first of equal ones, until the first Solicit's wait is over
    /// (section 18.2.1).
    fn offered(&mut self, best: Option<Offer>, offer: Offer, now: Duration) {
        if offer.preference == u8::MAX || self.sent > 1 {
            return self.start(Phase::Requesting(offer), now);
        }
        let better = best
            .as_ref()
            .is_none_or(|best| offer.preference > best.preference);
        self.phase = Phase::Soliciting(if better { Some(offer) } else { best });
    }

    fn granted(&mut self, options: &Options<'_>, server: &[u8], now: Duration) -> Option<Lease> {
        let Some(offer) = self.offer(options, server) else {
            self.restart(now);
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
        self.problem = None;
        self.phase = Phase::Bound(offer);
        self.due = Duration::MAX;
    }

    /// Starts again after a pause, which doubles each time.
    pub(crate) fn restart(&mut self, now: Duration) {
        let pause = DELAY
            .saturating_mul(1 << self.refusals.min(8))
            .min(LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        let pause = pause + self.part_of(DELAY);
        self.start(Phase::Soliciting(None), now + pause);
    }

    /// Declines the addresses, which another host uses, and starts again.
    pub(crate) fn decline(&mut self, now: Duration) {
        match self.phase.clone() {
            Phase::Bound(offer) if !offer.addresses.is_empty() => {
                self.start(Phase::Declining(offer), now);
            }
            _ => self.restart(now),
        }
    }

    /// A random part of a time.
    fn part_of(&mut self, time: Duration) -> Duration {
        let part = u32::from(self.next_random().to_le_bytes()[7]);
        time * part / 256
    }

    /// SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>): enough to spread machines that start together.
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
