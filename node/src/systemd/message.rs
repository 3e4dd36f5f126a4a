//! Messages of D-Bus: a call with lists of strings, and a list of units as its answer.
//!
//! Alignment is from the first byte of a message; the body begins at a multiple of eight, so it has the alignment by itself.

use super::Unit;

/// Bytes of a message's start, which has the lengths of the rest.
pub(super) const HEADER: usize = 16;

/// Where systemd's manager is, in the names of D-Bus.
const PATH: &str = "/org/freedesktop/systemd1";
const DESTINATION: &str = "org.freedesktop.systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Return,
    Error,
    Other,
}

/// What a message's head says.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// The serial number of the call that it answers.
    pub(super) reply_to: Option<u32>,
    /// The name of the error.
    pub(super) error: Option<String>,
}

/// A call of the manager's method with lists of strings.
pub(super) fn call(serial: u32, method: &str, lists: &[&[&str]]) -> Vec<u8> {
    let mut body = Written(Vec::new());
    for list in lists {
        body.list(list);
    }
    let signature = "as".repeat(lists.len());
    let mut fields = Written(Vec::new());
    for (code, kind, text) in [
        (1, 'o', PATH),
        (2, 's', INTERFACE),
        (3, 's', method),
        (6, 's', DESTINATION),
        (8, 'g', &signature),
    ] {
        fields.field(code, kind, text);
    }
    // Little-endian, a call, no flags, version 1.
    let mut message = Written(vec![b'l', 1, 0, 1]);
    message.number(body.0.len());
    message.0.extend(serial.to_le_bytes());
    // The fields begin at 16, so that their own alignment is that of the message.
    message.number(fields.0.len());
    message.0.extend(fields.0);
    message.align(8);
    message.0.extend(body.0);
    message.0
}

struct Written(Vec<u8>);

impl Written {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    /// A length. None here is near the limit of 32 bits: a message of ours has some hundred bytes.
    fn number(&mut self, number: usize) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.align(4);
        self.number(text.len());
        self.0.extend(text.bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0
            .push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend(signature.bytes());
        self.0.push(0);
    }

    fn field(&mut self, code: u8, kind: char, text: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind.encode_utf8(&mut [0; 4]));
        match kind {
            'g' => self.signature(text),
            _ => self.text(text),
        }
    }

    fn list(&mut self, texts: &[&str]) {
        let mut list = Self(Vec::new());
        for text in texts {
            list.text(text);
        }
        self.align(4);
        self.number(list.0.len());
        self.0.extend(list.0);
    }
}

/// The lengths of what follows a message's start: fields with their padding, and body. None if this is no message of
/// version 1, or its numbers are not little-endian.
pub(super) fn rest(start: &[u8; HEADER]) -> Option<(usize, usize)> {
    let mut read = Read {
        bytes: start,
        at: 4,
    };
    let (body, _serial, fields) = (read.length()?, read.length()?, read.length()?);
    let known = start[0] == b'l' && start[3] == 1;
    known.then_some((fields.checked_next_multiple_of(8)?, body))
}

/// Reads a message's head: its start and its fields.
pub(super) fn head(bytes: &[u8]) -> Option<Head> {
    let mut read = Read { bytes, at: 12 };
    let end = HEADER.checked_add(read.length()?)?;
    let mut head = Head {
        kind: match bytes.get(1)? {
            2 => Kind::Return,
            3 => Kind::Error,
            _ => Kind::Other,
        },
        reply_to: None,
        error: None,
    };
    while read.at < end {
        read.align(8);
        let code = read.byte()?;
        match read.signature()? {
            "u" => {
                let number = read.number()?;
                head.reply_to = (code == 5).then_some(number).or(head.reply_to);
            }
            "s" | "o" => {
                let text = read.text()?;
                head.error = (code == 4).then(|| text.to_owned()).or(head.error);
            }
            "g" => drop(read.signature()?),
            // No other type is in a head (D-Bus specification, "Header Fields").
            _ => return None,
        }
    }
    Some(head)
}

/// The units of an answer's body, `a(ssssssouso)`.
pub(super) fn units(body: &[u8]) -> Option<Vec<Unit>> {
    let mut read = Read { bytes: body, at: 0 };
    let length = read.length()?;
    read.align(8);
    let end = read.at.checked_add(length)?;
    let mut units = Vec::new();
    while read.at < end {
        read.align(8);
        let name = read.text()?.to_owned();
        let description = read.text()?.to_owned();
        let _loaded = read.text()?;
        let active = read.text()?.to_owned();
        let sub = read.text()?.to_owned();
        let (_following, _path, _job) = (read.text()?, read.text()?, read.number()?);
        let job = read.text()?.to_owned();
        let _path_of_job = read.text()?;
        units.push(Unit {
            name,
            description,
            active,
            sub,
            job,
        });
    }
    (read.at == body.len()).then_some(units)
}

/// Bytes that are read from some place on. Nothing is read beyond their end.
struct Read<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Read<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.length()?;
        self.ended(length)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = usize::from(self.byte()?);
        self.ended(length)
    }

    /// A text with the zero byte behind it.
    fn ended(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }
}
