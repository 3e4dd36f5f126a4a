//! The options of a DHCPv4 message (RFC 2132), each decoded by itself: one that nobody can decode, such as a name in Latin-1, takes
//! away no other.

use std::collections::BTreeMap;
use std::ops::Range;

use dhcproto::v4::{DhcpOption, Message, OptionCode};
use dhcproto::{Decodable, Decoder};

/// Bytes of a message before its options, the magic cookie included (RFC 2131, section 2).
const HEAD: usize = 240;
/// The fields `sname` and `file` (the same).
const SNAME: Range<usize> = 44..108;
const FILE: Range<usize> = 108..236;
/// Options without a length (RFC 2132, section 3).
const PAD: u8 = 0;
const END: u8 = 255;
/// Says which of the two fields have options too: 1 `file`, 2 `sname`, 3 both (RFC 2132, section 9.3).
const OVERLOAD: u8 = 52;

/// The data of each option by its code. Those of one code are parts of one option, in their order (RFC 3396).
type Raw = BTreeMap<u8, Vec<u8>>;

/// Decodes a message, of whose options only those with the codes `wanted` are kept. Gives with it the codes of those that cannot be
/// decoded; none if the message is none of DHCP.
pub(crate) fn decode(bytes: &[u8], wanted: &[OptionCode]) -> Option<(Message, Vec<u8>)> {
    let (head, options) = bytes.split_at_checked(HEAD)?;
    let mut raw = Raw::new();
    collect(options, &mut raw);
    let overload = raw.get(&OVERLOAD).and_then(|data| data.first().copied());
    let overload = overload.unwrap_or_default();
    for (bit, field) in [(1, FILE), (2, SNAME)] {
        if overload & bit != 0 {
            collect(&head[field], &mut raw);
        }
    }
    let head = [head, &[END]].concat();
    let mut message = Message::decode(&mut Decoder::new(&head)).ok()?;
    let mut unread = Vec::new();
    for code in wanted.iter().map(|code| u8::from(*code)) {
        let Some(data) = raw.get(&code) else {
            continue;
        };
        match option(code, data) {
            Some(option) => drop(message.opts_mut().insert(option)),
            None => unread.push(code),
        }
    }
    Some((message, unread))
}

/// Adds the options of a field, up to its end or to one that is cut off.
fn collect(mut field: &[u8], raw: &mut Raw) {
    while let Some((code, rest)) = field.split_first() {
        match *code {
            PAD => field = rest,
            END => return,
            code => {
                let Some((length, rest)) = rest.split_first() else {
                    return;
                };
                let Some((data, rest)) = rest.split_at_checked((*length).into()) else {
                    return;
                };
                raw.entry(code).or_default().extend_from_slice(data);
                field = rest;
            }
        }
    }
}

/// One option; none if its data is not what its code stands for.
fn option(code: u8, data: &[u8]) -> Option<DhcpOption> {
    let mut bytes = Vec::new();
    let mut left = data;
    loop {
        let part = left.split_at(left.len().min(255));
        bytes.extend([code, u8::try_from(part.0.len()).ok()?]);
        bytes.extend_from_slice(part.0);
        left = part.1;
        if left.is_empty() {
            break;
        }
    }
    bytes.push(END);
    DhcpOption::decode(&mut Decoder::new(&bytes)).ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const WANTED: [OptionCode; 4] = [
        OptionCode::SubnetMask,
        OptionCode::Router,
        OptionCode::DomainNameServer,
        OptionCode::DomainName,
    ];
    const COOKIE: [u8; 4] = [99, 130, 83, 99];

    /// A message with these options, and with these in its fields `file` and `sname`.
    fn message(options: &[u8], file: &[u8], sname: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[0] = 2;
        bytes[FILE.start..][..file.len()].copy_from_slice(file);
        bytes[SNAME.start..][..sname.len()].copy_from_slice(sname);
        bytes[HEAD - 4..].copy_from_slice(&COOKIE);
        bytes.extend_from_slice(options);
        bytes
    }

    fn addresses(message: &Message, code: OptionCode) -> Vec<Ipv4Addr> {
        match message.opts().get(code) {
            Some(DhcpOption::SubnetMask(one)) => vec![*one],
            Some(DhcpOption::Router(list) | DhcpOption::DomainNameServer(list)) => list.clone(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn one_that_cannot_be_decoded_takes_no_other_away() {
        // `é` in Latin-1, and a mask that is too short.
        for (damaged, code) in [([15, 1, 0xe9].as_slice(), 15), (&[1, 2, 255, 255], 1)] {
            let good: &[u8] = &[3, 4, 10, 0, 0, 1, 6, 4, 10, 0, 0, 53, END];
            let bytes = message(&[damaged, good].concat(), &[], &[]);
            let (message, unread) = decode(&bytes, &WANTED).unwrap();
            assert_eq!(unread, [code]);
            let router = addresses(&message, OptionCode::Router);
            assert_eq!(router, [Ipv4Addr::new(10, 0, 0, 1)]);
            let resolver = addresses(&message, OptionCode::DomainNameServer);
            assert_eq!(resolver, [Ipv4Addr::new(10, 0, 0, 53)]);
        }
    }

    #[test]
    fn options_in_other_fields_are_read_where_the_message_says_so() {
        let (file, sname) = ([1, 4, 255, 255, 255, 0, END], [3, 4, 10, 0, 0, 1, END]);
        for (overload, mask, router) in [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)] {
            let bytes = message(&[OVERLOAD, 1, overload, END], &file, &sname);
            let (message, unread) = decode(&bytes, &WANTED).unwrap();
            assert_eq!(unread, [0; 0]);
            let found = WANTED.map(|code| addresses(&message, code).len());
            assert_eq!(found, [mask, router, 0, 0], "{overload}");
        }
    }

    #[test]
    fn parts_of_one_option_are_one_and_a_cut_one_is_none() {
        let two = [6, 2, 10, 0, 0, 6, 2, 0, 53, 1, 4, 255, 255];
        let (message, unread) = decode(&message(&two, &[], &[]), &WANTED).unwrap();
        assert_eq!(unread, [0; 0]);
        let resolver = addresses(&message, OptionCode::DomainNameServer);
        assert_eq!(resolver, [Ipv4Addr::new(10, 0, 0, 53)]);
        let resolvers: Vec<u8> = (0..100).flat_map(|last| [10, 0, 1, last]).collect();
        let Some(DhcpOption::DomainNameServer(all)) = option(6, &resolvers) else {
            panic!("400 bytes");
        };
        assert_eq!(all.len(), 100);
        assert!(decode(&[0; HEAD - 1], &WANTED).is_none());
    }
}
