//! Messages of netlink and the attributes in them (netlink(7)): numbers in the machine's order, everything padded to four
//! bytes.

use anyhow::{Result, bail};

/// The fields of a message's header that are read.
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) sequence: u32,
}

pub(crate) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Result<Vec<u8>> {
    let Ok(len) = u32::try_from(16 + body.len()) else {
        bail!("a netlink message of {} bytes", body.len());
    };
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend([0; 4]);
    out.extend(body);
    Ok(out)
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The messages of one datagram.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::try_from(word(bytes, 0)?)
            .ok()
            .filter(|len| *len >= 16)?;
        let header = Header {
            kind: half(bytes, 4)?,
            sequence: word(bytes, 8)?,
        };
        let body = bytes.get(16..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((header, body))
    })
}

/// The attributes that follow a fixed header of `from` bytes.
pub(crate) fn attributes(body: &[u8], from: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(from..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = usize::from(half(rest, 0)?);
        let kind = half(rest, 2)?;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(crate) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    attribute(&mut out, kind, value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_messages_end_the_reading() {
        let whole = message(18, 0, 7, &[1, 2, 3, 4]).unwrap();
        assert_eq!(messages(&whole).count(), 1);
        assert_eq!(messages(&whole[..18]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0], 0).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 1], 0).count(), 0);
    }
}
