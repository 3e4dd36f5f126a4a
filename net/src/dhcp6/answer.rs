//! Parser of a server's answers. Not dhcproto's: its reader of version 6 subtracts from lengths that the sender chooses and
//! recurses as deep as a message nests. This one checks every length and descends into two kinds of options only.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use dhcproto::v6::{DhcpOption, OptionCode, Status};
use dhcproto::{Decodable, Decoder};

use crate::lease::{Lease, is_domain};

/// The limit on the addresses that are taken from one answer.
const MOST: usize = 8;

/// Codes with their data.
pub(super) type Options<'a> = Vec<(u16, &'a [u8])>;

/// The options of a message or of an option (section 21.1); none unless each is complete and no bytes remain.
pub(super) fn options(mut bytes: &[u8]) -> Option<Options<'_>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (&[a, b, c, d], rest) = bytes.split_first_chunk::<4>()?;
        let (data, rest) = rest.split_at_checked(u16::from_be_bytes([c, d]).into())?;
        out.push((u16::from_be_bytes([a, b]), data));
        bytes = rest;
    }
    Some(out)
}

fn all<'a>(options: &Options<'a>, code: OptionCode) -> impl Iterator<Item = &'a [u8]> {
    let code = u16::from(code);
    let found = options.iter().filter(move |(own, _)| *own == code);
    found.map(|(_, data)| *data)
}

pub(super) fn one<'a>(options: &Options<'a>, code: OptionCode) -> Option<&'a [u8]> {
    all(options, code).next()
}

pub(super) fn number(options: &Options<'_>, code: OptionCode) -> Option<u32> {
    let data = one(options, code)?;
    Some(u32::from_be_bytes(data.try_into().ok()?))
}

/// The error in a status code option (section 21.13). The server's own text is not shown: it may hold any bytes.
fn status_error(options: &Options<'_>) -> Option<String> {
    let data = one(options, OptionCode::StatusCode)?;
    let code = match *data {
        [a, b, ..] => u16::from_be_bytes([a, b]),
        _ => u16::from(Status::UnspecFail),
    };
    match Status::from(code) {
        Status::Success => None,
        Status::NoAddrsAvail => Some("NoAddrsAvail: the server has no address".to_owned()),
        Status::NotOnLink => Some("NotOnLink: the server has no addresses of this link".to_owned()),
        _ => Some(format!("the server answers with status {code}")),
    }
}

/// The addresses that a message grants us (sections 21.4 and 21.6), each with its lifetime, or why there is none.
pub(super) fn addresses(
    options: &Options<'_>,
    iaid: u32,
) -> Result<Vec<(Ipv6Addr, Duration)>, String> {
    if let Some(problem) = status_error(options) {
        return Err(problem);
    }
    let mut out = Vec::new();
    let mut problem = "the server offers no usable address".to_owned();
    for data in all(options, OptionCode::IANA) {
        let Some((&[a, b, c, d, t1 @ .., e, f, g, h], rest)) = data.split_first_chunk::<12>()
        else {
            continue;
        };
        let (t1, t2) = (u32::from_be_bytes(t1), u32::from_be_bytes([e, f, g, h]));
        if u32::from_be_bytes([a, b, c, d]) != iaid || (t2 > 0 && t1 > t2) {
            continue;
        }
        let Some(inner) = self::options(rest) else {
            continue;
        };
        if let Some(found) = status_error(&inner) {
            problem = found;
            continue;
        }
        for address in all(&inner, OptionCode::IAAddr).filter_map(address) {
            if out.len() < MOST && out.iter().all(|(known, _)| *known != address.0) {
                out.push(address);
            }
        }
    }
    match out.is_empty() {
        true => Err(problem),
        false => Ok(out),
    }
}

/// An address that a node can use, and its lifetime.
fn address(data: &[u8]) -> Option<(Ipv6Addr, Duration)> {
    let (octets, rest) = data.split_first_chunk::<16>()?;
    let (preferred, rest) = rest.split_first_chunk::<4>()?;
    let (valid, rest) = rest.split_first_chunk::<4>()?;
    let (preferred, valid) = (u32::from_be_bytes(*preferred), u32::from_be_bytes(*valid));
    let address = Ipv6Addr::from(*octets);
    let usable = !address.is_unspecified()
        && !address.is_multicast()
        && !address.is_loopback()
        && !address.is_unicast_link_local()
        && address.to_ipv4_mapped().is_none();
    let granted = valid > 0 && preferred <= valid && status_error(&options(rest)?).is_none();
    (usable && granted).then(|| (address, Duration::from_secs(valid.into())))
}

/// The lease: addresses of the caller, name servers and domains of the message (RFC 3646).
pub(super) fn lease(options: &Options<'_>, addresses: &[Ipv6Addr], time: Duration) -> Lease {
    let servers = all(options, OptionCode::DomainNameServers)
        .flat_map(|data| data.as_chunks::<16>().0)
        .map(|octets| Ipv6Addr::from(*octets))
        .filter(|server| !server.is_unspecified() && !server.is_multicast());
    let search = all(options, OptionCode::DomainSearchList).flat_map(names);
    Lease {
        addresses: addresses
            .iter()
            .map(|one| (IpAddr::V6(*one), 128))
            .collect(),
        resolvers: servers.map(IpAddr::V6).collect(),
        search: search.filter(|name| is_domain(name)).collect(),
        time,
        ..Lease::default()
    }
}

/// Domain names in the encoding of DNS, by dhcproto's reader of this one option.
fn names(data: &[u8]) -> Vec<String> {
    let mut whole = u16::from(OptionCode::DomainSearchList)
        .to_be_bytes()
        .to_vec();
    whole.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    whole.extend(data);
    match DhcpOption::decode(&mut Decoder::new(&whole)) {
        Ok(DhcpOption::DomainSearchList(names)) => {
            let texts = names.iter().map(ToString::to_string);
            texts
                .map(|name| name.trim_end_matches('.').to_owned())
                .collect()
        }
        _ => Vec::new(),
    }
}
