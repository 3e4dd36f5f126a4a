//! LZ4 blocks of a given size: as much of the input as fits into so many bytes.
//!
//! A file system keeps compressed data in whole blocks, so what counts is how much content a number of blocks holds ("fixed-sized
//! output"). Equal input gives equal bytes, with every version of every library.
//!
//! Format: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>. A block is a row of sequences: a token, literals, and a match,
//! which is two bytes of distance and a length of at least four. The last five bytes are literals, and the last match begins at least
//! twelve bytes before the end.

/// The shortest match, bytes.
const SHORTEST: usize = 4;
/// The last bytes, which are literals.
const LITERALS: usize = 5;
/// How far from the end the last match begins at least, bytes.
const MARGIN: usize = 12;
/// The farthest match, bytes.
const FARTHEST: usize = 65_535;
/// Bits of the table of positions.
const BITS: u32 = 13;
/// Failures after which the search takes steps that are one byte longer, as a power of two.
const PATIENCE: usize = 6;
/// A match that is not worth a search for a longer one, bytes.
const ENOUGH: usize = 256;
/// No position.
const NONE: u32 = u32::MAX;

/// Compresses one input after the other.
#[derive(Debug)]
pub struct Encoder {
    /// The last position of each hash, in the whole input.
    last: Vec<u32>,
    /// With a deeper search, the position before each one with the same hash.
    before: Vec<u32>,
    /// How many earlier positions a search looks at.
    attempts: usize,
    /// The position behind the last one in the tables.
    known: usize,
}

/// A repetition of earlier bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Match {
    at: usize,
    distance: usize,
    length: usize,
}

impl Encoder {
    /// One that looks at the last position alone, as lz4 does, or at so many as lz4hc does with this level.
    #[must_use]
    pub fn new(level: Option<u32>) -> Self {
        Self {
            last: Vec::new(),
            before: Vec::new(),
            attempts: level.map_or(1, |level| 1 << level.clamp(2, 12)),
            known: 0,
        }
    }

    /// Begins with another input, of less than 4 GiB.
    pub fn begin(&mut self, input: &[u8]) {
        self.last.clear();
        self.last.resize(1 << BITS, NONE);
        self.known = 0;
        if self.attempts > 1 {
            self.before.clear();
            self.before.resize(input.len(), NONE);
        }
    }

    /// Writes a block of at most `room` bytes to the end of `out`, which holds the input from `start` on. Gives the number of its bytes
    /// that are in it. `start` must not be before the end of the last block of this input.
    pub fn block(&mut self, input: &[u8], start: usize, room: usize, out: &mut Vec<u8>) -> usize {
        let first = out.len();
        let used = |out: &Vec<u8>| out.len() - first;
        let mut anchor = start;
        if input.len() - start > MARGIN {
            while let Some(found) = self.next(input, start, anchor, anchor + room - used(out)) {
                let literals = found.at - anchor;
                // Behind it the block must have room for the literals that end it.
                let shortest = sequence(literals, SHORTEST) + 1 + MARGIN;
                let Some(left) = (room - used(out)).checked_sub(shortest) else {
                    break;
                };
                let length = found.length.min(SHORTEST + 14 + 255 * left);
                write(
                    out,
                    &input[anchor..found.at],
                    Some((found.distance, length)),
                );
                anchor = found.at + length;
            }
        }
        let rest = input.len() - anchor;
        let left = room - used(out);
        let literals = rest.min(most_literals(left));
        if literals > 0 {
            write(out, &input[anchor..anchor + literals], None);
        }
        anchor + literals - start
    }

    /// The next match from `anchor` on that begins before `far`, where literals alone fill the block. Nothing of it is before `start`.
    fn next(&mut self, input: &[u8], start: usize, anchor: usize, far: usize) -> Option<Match> {
        let end = input.len();
        let last = (end - MARGIN).min(far);
        let mut at = anchor;
        let mut failures = 1 << PATIENCE;
        while at <= last {
            let found = self.find(input, start, at);
            if found.length < SHORTEST {
                // Where nothing repeats, it is looked at ever fewer places; a deep search looks at each.
                at += if self.attempts > 1 {
                    1
                } else {
                    failures >> PATIENCE
                };
                failures += 1;
                continue;
            }
            let mut best = found;
            if self.attempts > 1 {
                // A longer one may begin at the next byte.
                while best.at < last && best.length < ENOUGH {
                    let next = self.find(input, start, best.at + 1);
                    if next.length <= best.length {
                        break;
                    }
                    best = next;
                }
            }
            while best.at > anchor
                && best.at - best.distance > start
                && input[best.at - 1] == input[best.at - best.distance - 1]
            {
                best.at -= 1;
                best.length += 1;
            }
            return Some(best);
        }
        None
    }

    /// The longest match at a place, among the positions that are looked at. Its length is zero if there is none.
    fn find(&mut self, input: &[u8], start: usize, at: usize) -> Match {
        let head = word(input, at);
        let limit = input.len() - LITERALS;
        let slot = hash(head);
        if self.attempts == 1 {
            let candidate = self.last[slot];
            self.last[slot] = position(at);
            return match usable(candidate, start, at) {
                Some(other) if word(input, other) == head => Match {
                    at,
                    distance: at - other,
                    length: SHORTEST + common(input, other + SHORTEST, at + SHORTEST, limit),
                },
                _ => Match::default(),
            };
        }
        self.learn(input, at);
        let mut best = Match::default();
        let mut candidate = self.last[slot];
        for _ in 0..self.attempts {
            if candidate != NONE && candidate as usize >= at {
                // An earlier block looked ahead.
                candidate = self.before[candidate as usize];
                continue;
            }
            let Some(other) = usable(candidate, start, at) else {
                break;
            };
            // A longer one has the byte behind the best one.
            let behind = best.length.min(limit - at);
            if input[other + behind] == input[at + behind] && word(input, other) == head {
                let length = SHORTEST + common(input, other + SHORTEST, at + SHORTEST, limit);
                if length > best.length {
                    best = Match {
                        at,
                        distance: at - other,
                        length,
                    };
                }
            }
            if best.length >= ENOUGH {
                break;
            }
            candidate = self.before[other];
        }
        best
    }

    /// Puts all positions before `at` into the tables.
    fn learn(&mut self, input: &[u8], at: usize) {
        for position_of in self.known..at {
            let slot = hash(word(input, position_of));
            self.before[position_of] = self.last[slot];
            self.last[slot] = position(position_of);
        }
        self.known = self.known.max(at);
    }
}

/// The candidate, if a match at `at` may refer to it.
fn usable(candidate: u32, start: usize, at: usize) -> Option<usize> {
    let other = candidate as usize;
    (candidate != NONE && other >= start && other < at && at - other <= FARTHEST).then_some(other)
}

fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NONE)
}

/// Four bytes as a number; the caller has them.
fn word(input: &[u8], at: usize) -> u32 {
    input[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn hash(word: u32) -> usize {
    // The golden ratio times 2³² (Knuth, The Art of Computer Programming 3, section 6.4).
    (word.wrapping_mul(2_654_435_761) >> (32 - BITS)) as usize
}

/// How many bytes from `one` and `two` on are equal, before `limit` (which is behind both).
fn common(input: &[u8], one: usize, two: usize, limit: usize) -> usize {
    if two >= limit {
        return 0;
    }
    let length = limit - two;
    let (a, b) = (&input[one..one + length], &input[two..limit]);
    let mut equal = 0;
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let (Some(a), Some(b)) = (a.first_chunk(), b.first_chunk()) else {
            break;
        };
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return equal + differs.trailing_zeros() as usize / 8;
        }
        equal += 8;
    }
    equal
        + a[equal..]
            .iter()
            .zip(&b[equal..])
            .take_while(|(a, b)| a == b)
            .count()
}

/// Bytes of a sequence.
fn sequence(literals: usize, length: usize) -> usize {
    1 + more(literals) + literals + 2 + more(length - SHORTEST)
}

/// Bytes of a length behind the four bits of the token.
fn more(length: usize) -> usize {
    if length < 15 {
        0
    } else {
        (length - 15) / 255 + 1
    }
}

/// How many literals a last sequence of at most `room` bytes holds.
fn most_literals(room: usize) -> usize {
    let mut literals = room.saturating_sub(1);
    while literals > 0 && 1 + more(literals) + literals > room {
        literals -= 1;
    }
    literals
}

/// Writes a sequence; the last one has no match.
fn write(out: &mut Vec<u8>, literals: &[u8], found: Option<(usize, usize)>) {
    let nibble = |length: usize| u8::try_from(length.min(15)).unwrap_or(15);
    let length = found.map_or(0, |(_, length)| length - SHORTEST);
    out.push(nibble(literals.len()) << 4 | nibble(length));
    lengthen(out, literals.len());
    out.extend_from_slice(literals);
    if let Some((distance, _)) = found {
        // At most FARTHEST.
        out.extend_from_slice(&u16::try_from(distance).unwrap_or(0).to_le_bytes());
        lengthen(out, length);
    }
}

fn lengthen(out: &mut Vec<u8>, length: usize) {
    if length >= 15 {
        let rest = length - 15;
        out.resize(out.len() + rest / 255, 255);
        out.push(u8::try_from(rest % 255).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length of which four bits are in the token.
    fn length(block: &[u8], at: &mut usize, first: u8) -> usize {
        let mut length = usize::from(first);
        let mut more = first == 15;
        while more {
            length += usize::from(block[*at]);
            more = block[*at] == 255;
            *at += 1;
        }
        length
    }

    /// A decoder from the text of the format, which refuses what the format forbids.
    fn decode(block: &[u8]) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        let mut last_match = None;
        loop {
            let token = block[at];
            at += 1;
            let literals = length(block, &mut at, token >> 4);
            out.extend_from_slice(&block[at..at + literals]);
            at += literals;
            if at == block.len() {
                if let Some(begin) = last_match {
                    assert!(out.len() - begin >= MARGIN, "a match near the end");
                    assert!(literals >= LITERALS, "{literals} literals at the end");
                }
                return out;
            }
            let distance = usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
            at += 2;
            assert!(distance > 0 && distance <= out.len(), "before the start");
            let length = length(block, &mut at, token & 15) + SHORTEST;
            last_match = Some(out.len());
            for _ in 0..length {
                out.push(out[out.len() - distance]);
            }
        }
    }

    /// Bytes that look like a program: runs, repetitions near and far, noise. The same for a seed.
    fn sample(seed: u32, size: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as usize % below
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(size + 4096);
        while bytes.len() < size {
            let length = random(300) + 1;
            match random(5) {
                0 => bytes.resize(bytes.len() + length * 8, 0),
                1 => bytes.extend((0..length).map(|_| u8::try_from(random(256)).unwrap())),
                2 => bytes.extend((0..length).map(|at| b"the node is Ready\n"[at % 18])),
                _ if bytes.is_empty() => {}
                _ => {
                    let from = random(bytes.len());
                    for at in from..from + length {
                        bytes.push(bytes[at]);
                    }
                }
            }
        }
        bytes.truncate(size);
        bytes
    }

    #[test]
    fn blocks_of_every_size_hold_what_went_in() {
        for level in [None, Some(3), Some(9)] {
            let mut encoder = Encoder::new(level);
            for seed in 1..60 {
                let input = sample(seed, seed as usize * seed as usize * 37);
                for room in [64, 100, 4096, 16_384, 65_536] {
                    encoder.begin(&input);
                    let mut at = 0;
                    while at < input.len() {
                        let mut block = Vec::new();
                        let taken = encoder.block(&input, at, room, &mut block);
                        assert!(taken > 0 && block.len() <= room, "{level:?} {seed} {room}");
                        assert!(
                            decode(&block) == input[at..at + taken],
                            "{level:?} {seed} {room}"
                        );
                        at += taken;
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_is_full_unless_the_input_ends() {
        let input = sample(7, 400_000);
        let mut encoder = Encoder::new(None);
        encoder.begin(&input);
        let (mut at, mut blocks) = (0, 0);
        loop {
            let mut block = Vec::new();
            at += encoder.block(&input, at, 4096, &mut block);
            if at == input.len() {
                break;
            }
            assert!(block.len() > 4096 - 4, "{} bytes", block.len());
            blocks += 1;
        }
        assert!(blocks > 3, "{blocks} blocks");
    }

    #[test]
    fn what_repeats_is_small_and_what_does_not_fills_the_block() {
        let mut encoder = Encoder::new(None);
        let zeros = vec![0; 1 << 20];
        encoder.begin(&zeros);
        let mut block = Vec::new();
        assert_eq!(encoder.block(&zeros, 0, 8192, &mut block), 1 << 20);
        assert!(block.len() < 4200);
        let tiny = [1, 2, 3];
        encoder.begin(&tiny);
        block.clear();
        assert_eq!(encoder.block(&tiny, 0, 4096, &mut block), 3);
        assert_eq!(block, [0x30, 1, 2, 3]);
    }

    #[test]
    fn a_deeper_search_gives_smaller_blocks() {
        let input = sample(11, 300_000);
        let size = |level| {
            let mut encoder = Encoder::new(level);
            encoder.begin(&input);
            let mut out = Vec::new();
            let mut at = 0;
            while at < input.len() {
                at += encoder.block(&input, at, 65_536, &mut out);
            }
            out.len()
        };
        let (fast, deep, deeper) = (size(None), size(Some(4)), size(Some(9)));
        assert!(deep < fast && deeper <= deep, "{fast}, {deep}, {deeper}");
    }
}
