//! Random damage for the parsers that only this program has; the others' fuzz targets are in `fuzz/`.
//!
//! A test gives seeds and a parser; the driver mutates the seeds. Every test run makes [`ROUNDS`] rounds, the same ones
//! on every machine; a run by hand lasts `SLIPWAY_FUZZ_SECONDS=600`, with another random seed each time. An input that
//! makes a parser panic is printed.

#![allow(clippy::unwrap_used, reason = "test code may panic")]

use std::time::{Duration, Instant, SystemTime};

/// The variable with the duration of a run by hand, in seconds.
const SECONDS: &str = "SLIPWAY_FUZZ_SECONDS";
/// Rounds of a test run: a fraction of a second for most parsers.
const ROUNDS: u64 = 5_000;

/// Marsaglia's xorshift: enough to choose what to damage.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = usize::try_from(self.next() >> 16).unwrap();
        number.checked_rem(end).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, 4, 0x3f, 0xfe];
        match self.below(3) {
            0 => EDGES[self.below(EDGES.len())],
            _ => self.next().to_le_bytes()[3],
        }
    }
}

/// The current input, printed if the parser panics.
struct Tried<'a>(&'a [u8]);

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("fuzz: the input that did it, {} bytes: {hex}", self.0.len());
        }
    }
}

/// Damages one of the seeds and passes it to `parse`, repeatedly. `parse` may damage it further with the same random
/// numbers.
pub fn run(seeds: &[Vec<u8>], mut parse: impl FnMut(&mut Vec<u8>, &mut Random)) {
    let by_hand = std::env::var(SECONDS)
        .ok()
        .and_then(|text| text.parse().ok())
        .map(Duration::from_secs);
    let seed = match by_hand {
        Some(_) => u64::from(SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()) | 1 << 40,
        None => 0x9e37_79b9_7f4a_7c15,
    };
    let (began, mut random, mut rounds) = (Instant::now(), Random(seed), 0);
    let goes_on = |rounds| match by_hand {
        Some(time) => began.elapsed() < time,
        None => rounds < ROUNDS,
    };
    while goes_on(rounds) {
        let mut input = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(6) {
            damage(&mut input, seeds, &mut random);
        }
        let before = input.clone();
        let _tried = Tried(&before);
        parse(&mut input, &mut random);
        rounds += 1;
    }
    if by_hand.is_some() {
        eprintln!("fuzz: {rounds} rounds from {seed:#x}");
    }
}

fn damage(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len());
    let length = random.below(16).min(input.len() - at);
    match random.below(7) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.byte(),
        2 => {
            let bytes: Vec<u8> = (0..length).map(|_| random.byte()).collect();
            input.splice(at..at, bytes);
        }
        3 => drop(input.drain(at..at + length)),
        4 => {
            let copy = input[at..at + length].to_vec();
            let to = random.below(input.len());
            input.splice(to..to, copy);
        }
        5 => input.truncate(at),
        _ => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len());
            input.truncate(at);
            input.extend(&other[from..]);
        }
    }
}
