//! The memory of what is fetched: half of what the machine has free, over all sources together.

use std::fmt;
use std::fs;

use fetch::Room;
use ignition::contents::Refused;
use linux::world::World;

use super::{LIMIT, amount};

/// Bytes that sources may have together: half of what is free, since each is copied once while it is unpacked or written.
/// Without a number from the kernel there is no bound but each source's own.
pub(super) fn half(world: &World) -> u64 {
    let text = fs::read_to_string(world.proc.join("meminfo")).unwrap_or_default();
    available(&text).map_or(u64::MAX, |bytes| bytes / 2)
}

/// What the kernel can give to programs, in bytes, from the text of `/proc/meminfo` (proc_meminfo(5)).
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Why there is no content.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The field of the resource that is wrong, with its dot; empty for the whole resource.
    pub(super) field: &'static str,
    pub(super) why: String,
    /// Whether it is only too large for the memory.
    pub(super) of_memory: bool,
}

impl Refusal {
    /// The field `source` cannot be used.
    pub(super) fn source(why: impl Into<String>) -> Self {
        Self {
            field: ".source",
            why: why.into(),
            of_memory: false,
        }
    }

    /// The content of a source is not what the config says.
    pub(super) fn content(why: impl Into<String>) -> Self {
        Self {
            field: "",
            ..Self::source(why)
        }
    }

    /// The same where only the memory is too small.
    pub(super) fn of_memory(self) -> Self {
        Self {
            of_memory: true,
            ..self
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// The data of a `data:` URL, which takes its part of the room.
pub(super) fn decode(url: &str, room: &Room) -> Result<Vec<u8>, Refusal> {
    let data = ignition::data_url::decode(url).map_err(Refusal::source)?;
    match room.take(length(&data)) {
        true => Ok(data),
        false => Err(Refusal::source(full(room))),
    }
}

/// Turns data that has its part of the room into other data, at most as much as one source may have and as there is room
/// for, which has the part then; what is refused has none. Only if it `grows` there has to be more room.
pub(super) fn within(
    room: &Room,
    data: Vec<u8>,
    grows: bool,
    work: impl FnOnce(Vec<u8>, u64) -> Result<Vec<u8>, Refused>,
) -> Result<Vec<u8>, Refusal> {
    let (before, left) = (length(&data), room.left());
    let limit = if grows { LIMIT.min(left) } else { LIMIT };
    let done = work(data, limit).map_err(|why| match why {
        Refused::TooLong(limit) if limit < LIMIT => {
            Refusal::content(format!("{why}; {}", full(room))).of_memory()
        }
        Refused::TooLong(_) => Refusal::content(why.to_string()).of_memory(),
        _ => Refusal::content(why.to_string()),
    });
    let done = done.and_then(|done| match !grows || room.take(length(&done)) {
        true => Ok(done),
        false => Err(Refusal::content(full(room)).of_memory()),
    });
    if grows || done.is_err() {
        room.give(before);
    }
    done
}

/// What is said when there is no room.
pub(super) fn full(room: &Room) -> String {
    format!(
        "what the config names may have {} together, half of the machine's free memory; give it more, or have large files \
         fetched by a unit of the running node",
        amount::text(room.size())
    )
}

fn length(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_number_is_read() {
        let text = "MemTotal:        2014452 kB\nMemFree:  1 kB\nMemAvailable:    1000000 kB\n";
        assert_eq!(available(text), Some(1_024_000_000));
        for text in ["", "MemAvailable: many kB", "MemAvailable: 7"] {
            assert_eq!(available(text), None, "{text}");
        }
    }

    #[test]
    fn data_takes_its_part_of_the_room() {
        let room = Room::new(10);
        assert_eq!(decode("data:,1234", &room).unwrap(), b"1234");
        let error = decode("data:,1234567", &room).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("may have 10 bytes together"), "{text}");
        assert_eq!(room.left(), 6);
        let unpack = |length: usize| {
            assert_eq!(room.left(), 6);
            within(&room, b"1234".to_vec(), true, |data, limit| {
                assert_eq!((data.len(), limit), (4, 6));
                Ok(vec![0; length])
            })
        };
        let refused = unpack(7).unwrap_err();
        assert!(refused.of_memory, "{refused}");
        // What is refused has no part any more.
        assert_eq!(room.left(), 10);
        for (why, of_memory, more) in [
            (Refused::TooLong(6), true, true),
            (Refused::TooLong(LIMIT), true, false),
            (Refused::Gzip("cut short".to_owned()), false, false),
            (Refused::Hash(4), false, false),
        ] {
            for grows in [true, false] {
                assert!(room.take(4));
                let data = b"1234".to_vec();
                let error = within(&room, data, grows, |_, _| Err(why.clone())).unwrap_err();
                assert_eq!(error.of_memory, of_memory, "{error}");
                assert_eq!(error.to_string().contains("free memory"), more, "{error}");
                assert_eq!(room.left(), 10);
            }
        }
        assert!(room.take(4));
        assert_eq!(unpack(6).unwrap().len(), 6);
        assert_eq!(room.left(), 4);
    }
}
