//! The memory of what is fetched: half of what the machine has free, over all sources together.

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

/// The data of a `data:` URL, which takes its part of the room.
pub(super) fn decode(url: &str, room: &Room) -> Result<Vec<u8>, String> {
    let data = ignition::data_url::decode(url)?;
    match room.take(length(&data)) {
        true => Ok(data),
        false => Err(full(room)),
    }
}

/// Turns data that has its part of the room into other data, at most as much as one source may have and as there is room
/// for, which has the part then. Only if it `grows` there has to be more room.
pub(super) fn within(
    room: &Room,
    data: Vec<u8>,
    grows: bool,
    work: impl FnOnce(Vec<u8>, u64) -> Result<Vec<u8>, Refused>,
) -> Result<Vec<u8>, String> {
    if !grows {
        return work(data, LIMIT).map_err(|why| why.to_string());
    }
    let (before, left) = (length(&data), room.left());
    let done = work(data, LIMIT.min(left)).map_err(|why| match why {
        Refused::TooLong(limit) if limit < LIMIT => format!("{why}; {}", full(room)),
        _ => why.to_string(),
    })?;
    if !room.take(length(&done)) {
        return Err(full(room));
    }
    room.give(before);
    Ok(done)
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
        assert!(error.contains("may have 10 bytes together"), "{error}");
        assert_eq!(room.left(), 6);
        let unpack = |length: usize| {
            within(&room, b"1234".to_vec(), true, |data, limit| {
                assert_eq!((data.len(), limit), (4, room.left()));
                Ok(vec![0; length])
            })
        };
        assert!(unpack(7).is_err());
        for (why, of_memory) in [
            (Refused::TooLong(room.left()), true),
            (Refused::TooLong(LIMIT), false),
            (Refused::Gzip("cut short".to_owned()), false),
            (Refused::Hash(4), false),
        ] {
            let error = within(&room, b"1234".to_vec(), true, |_, _| Err(why)).unwrap_err();
            assert_eq!(error.contains("free memory"), of_memory, "{error}");
        }
        assert_eq!(unpack(6).unwrap().len(), 6);
        assert_eq!(room.left(), 4);
    }
}
