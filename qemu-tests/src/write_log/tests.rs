//! Logs of writes, replayed whole and with losses.

use super::*;

/// A log as QEMU writes it: (sector, sectors, flags, byte that fills the data).
fn record(entries: &[(u64, u64, u64, u8)]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut text = Vec::new();
    for number in [MAGIC, VERSION, entries.len() as u64] {
        text.extend(number.to_le_bytes());
    }
    text.extend(512_u32.to_le_bytes());
    text.resize(512, 0);
    for (sector, sectors, flags, fill) in entries {
        let begin = text.len();
        for number in [*sector, *sectors, *flags, 0] {
            text.extend(number.to_le_bytes());
        }
        text.resize(begin + 512, 0);
        if flags & DISCARD == 0 {
            let data = usize::try_from(*sectors).unwrap() * 512;
            text.resize(text.len() + data, *fill);
        }
    }
    std::fs::write(file.path(), text).unwrap();
    file
}

fn fills(disk: &File) -> Vec<u8> {
    let mut bytes = vec![0; 8 * 512];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    bytes.chunks(512).map(|sector| sector[511]).collect()
}

#[test]
fn a_log_is_replayed_up_to_a_moment() {
    let record = record(&[
        (0, 2, 0, b'a'),
        (1, 1, 0, b'b'),
        (0, 0, FLUSH, 0),
        (0, 0, FLUSH, 0),
        (2, 3, 0, b'c'),
        (3, 1, DISCARD, 0),
        // QEMU records a write of zeros with zeros as data.
        (0, 1, 0, 0),
        (0, 0, FLUSH, 0),
        (7, 1, FUA, b'd'),
    ]);
    let writes = Writes::open(record.path()).unwrap();
    assert_eq!(writes.moments(), [1, 3, 5, 8, 9]);
    assert_eq!(writes.spread(2), [1, 9]);
    assert_eq!(writes.spread(3), [1, 5, 9]);
    assert_eq!(writes.spread(9), writes.moments());
    let after = |moment: usize| {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(8 * 512).unwrap();
        disk.write_all_at(&[b'-'; 8 * 512], 0).unwrap();
        writes.replay(0..moment, &disk).unwrap();
        String::from_utf8(fills(&disk)).unwrap().replace('\0', "0")
    };
    assert_eq!(after(0), "--------");
    assert_eq!(after(1), "aa------");
    assert_eq!(after(3), "ab------");
    assert_eq!(after(5), "abccc---");
    assert_eq!(after(8), "0bc0c---");
    assert_eq!(after(9), "0bc0c--d");
}

#[test]
fn what_is_flushed_or_forced_stays_and_the_rest_is_done_lost_or_torn() {
    let record = record(&[
        (0, 2, 0, b'a'),
        (0, 0, FLUSH, 0),
        (0, 4, 0, b'b'),
        (4, 1, FUA, b'c'),
        (5, 2, 0, b'd'),
        (7, 1, DISCARD, 0),
    ]);
    let writes = Writes::open(record.path()).unwrap();
    assert_eq!((writes.count(), writes.flushes()), (6, vec![1]));
    let flushed: Vec<usize> = (0..=6).map(|until| writes.flushed(until)).collect();
    assert_eq!(flushed, [0, 0, 2, 2, 2, 2, 2]);
    assert_eq!(entries(record.path()).unwrap(), 6);
    assert_eq!(writes.writes_to(&(0..512)), 2);
    assert_eq!((writes.operations_of(0), writes.operations_of(9)), (0, 6));
    let after = |seed: u64| {
        let disk = tempfile::tempfile().unwrap();
        disk.write_all_at(&[b'-'; 8 * 512], 0).unwrap();
        writes.replay(0..2, &disk).unwrap();
        let mut random = Random::new(seed);
        let fates = writes.replay_losing(2..6, &mut random, &disk).unwrap();
        assert_eq!(fates.done + fates.lost + fates.torn, 4);
        String::from_utf8(fills(&disk)).unwrap().replace('\0', "0")
    };
    let found: std::collections::BTreeSet<String> = (0..20_000).map(after).collect();
    for disk in &found {
        let sectors: Vec<char> = disk.chars().collect();
        assert!(sectors[..2].iter().all(|sector| "ab".contains(*sector)));
        assert!(sectors[2..4].iter().all(|sector| "-b".contains(*sector)));
        assert_eq!(sectors[4], 'c');
        assert!(sectors[5..7].iter().all(|sector| "-d".contains(*sector)));
        assert!("-0".contains(sectors[7]));
    }
    // All that a disk may have: 2 or 4 bits of the writes, and the discard's.
    assert_eq!(found.len(), 16 * 4 * 2);
    assert_eq!(after(7), after(7));
}

#[test]
fn a_flush_with_a_write_is_before_it() {
    let record = record(&[(0, 1, 0, b'a'), (1, 1, FLUSH | FUA, b'b')]);
    let writes = Writes::open(record.path()).unwrap();
    assert_eq!((writes.count(), writes.flushed(2)), (3, 2));
    assert_eq!((writes.operations_of(1), writes.operations_of(2)), (1, 3));
}

#[test]
fn a_damaged_log_is_refused() {
    let good = record(&[(0, 2, 0, b'a'), (0, 0, FLUSH, 0)]);
    let text = std::fs::read(good.path()).unwrap();
    let broken = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut text = text.clone();
        change(&mut text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        format!("{:#}", Writes::open(file.path()).unwrap_err())
    };
    assert!(broken(&|text| text[0] = 0).contains("not a write log"));
    assert!(broken(&|text| text[24] = 3).contains("sector size"));
    assert!(broken(&|text| text.truncate(1500)).contains("truncated"));
    assert!(broken(&|text| text.truncate(512)).contains("entry 0"));
    assert!(broken(&|text| text[512 + 16] = 0x80).contains("flags"));
    assert!(broken(&|text| text[512 + 15] = 0x80).contains("beyond"));
}
