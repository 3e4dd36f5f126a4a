//! Writes a file anew, without free pages: each bucket's leaves, the branches above them, then the bucket that holds it.

use super::{
    BRANCH, BUCKET, Bucket, ELEMENT, FREELIST, HEADER, IS_BUCKET, Item, LEAF, MAGIC, META,
    META_PAGE, PAGE, VERSION, checksum,
};

/// A bucket without buckets whose page is smaller than this stays inside its value (`maxInlineBucketSize`).
const INLINE: usize = PAGE / 4;
/// The first page of the tree: before it stand the two meta pages and the list of free pages.
const FIRST: usize = 3;

/// The file with this root bucket.
pub(crate) fn write(root: &Bucket) -> Vec<u8> {
    let mut out = Out {
        file: vec![0; FIRST * PAGE],
    };
    let page = out.bucket(root);
    let end = out.next();
    let freelist = header(2, FREELIST, 0, 0);
    out.file[2 * PAGE..2 * PAGE + HEADER].copy_from_slice(&freelist);
    for number in 0..2 {
        let meta = meta(number, page, root.sequence, end);
        let at = usize::from(number == 1) * PAGE;
        out.file[at..at + meta.len()].copy_from_slice(&meta);
    }
    out.file
}

/// A meta page; `end` is the number of pages.
fn meta(number: u64, root: u64, sequence: u64, end: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(META);
    for word in [MAGIC, VERSION, narrow(PAGE), 0] {
        content.extend(word.to_le_bytes());
    }
    // The list of free pages is page 2, the transaction the page's number.
    for word in [root, sequence, 2, end, number] {
        content.extend(word.to_le_bytes());
    }
    let sum = checksum(&content);
    let mut page = header(number, META_PAGE, 0, 0).to_vec();
    page.extend(content);
    page.extend(sum.to_le_bytes());
    page
}

fn header(id: u64, flags: u16, count: u16, overflow: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&id.to_le_bytes());
    header[8..10].copy_from_slice(&flags.to_le_bytes());
    header[10..12].copy_from_slice(&count.to_le_bytes());
    header[12..].copy_from_slice(&overflow.to_le_bytes());
    header
}

/// A key of a page: of a leaf with its value, of a branch with the page below.
enum Element {
    Leaf { flags: u32, value: Vec<u8> },
    Branch { page: u64 },
}

type Keyed = (Vec<u8>, Element);

struct Out {
    file: Vec<u8>,
}

impl Out {
    /// The number of the next page.
    fn next(&self) -> u64 {
        (self.file.len() / PAGE) as u64
    }

    /// Writes a bucket's pages, those of the buckets in it first; gives the root page.
    fn bucket(&mut self, bucket: &Bucket) -> u64 {
        let mut level = self.leaves(bucket);
        let mut flags = LEAF;
        loop {
            let groups = grouped(level);
            let root = groups.len() == 1;
            level = Vec::with_capacity(groups.len());
            for group in groups {
                let first = group
                    .first()
                    .map(|(key, _)| key.clone())
                    .unwrap_or_default();
                let page = self.page(flags, &group);
                level.push((first, Element::Branch { page }));
            }
            if let ([(_, Element::Branch { page })], true) = (level.as_slice(), root) {
                return *page;
            }
            flags = BRANCH;
        }
    }

    fn leaves(&mut self, bucket: &Bucket) -> Vec<Keyed> {
        let items = bucket.items.iter();
        items
            .map(|(key, item)| {
                let (flags, value) = match item {
                    Item::Value(value) => (0, value.clone()),
                    Item::Bucket(bucket) => (IS_BUCKET, self.nested(bucket)),
                };
                (key.clone(), Element::Leaf { flags, value })
            })
            .collect()
    }

    /// The value of a bucket inside of another one.
    fn nested(&mut self, bucket: &Bucket) -> Vec<u8> {
        let header = |root: u64| [root.to_le_bytes(), bucket.sequence.to_le_bytes()].concat();
        if bucket.buckets().next().is_none() {
            let leaves = self.leaves(bucket);
            if size(&leaves) < INLINE {
                let mut value = header(0);
                value.extend(page(0, LEAF, &leaves, 0));
                debug_assert!(value.len() >= BUCKET + HEADER);
                return value;
            }
        }
        let root = self.bucket(bucket);
        header(root)
    }

    /// Appends a page, with as many as it overflows into; gives its number.
    fn page(&mut self, flags: u16, elements: &[Keyed]) -> u64 {
        let number = self.next();
        let pages = size(elements).div_ceil(PAGE).max(1);
        let overflow = u32::try_from(pages - 1).unwrap_or(u32::MAX);
        let mut bytes = page(number, flags, elements, overflow);
        bytes.resize(pages * PAGE, 0);
        self.file.extend(bytes);
        number
    }
}

/// The bytes of a page with these elements.
fn size(elements: &[Keyed]) -> usize {
    HEADER
        + elements
            .iter()
            .map(|keyed| ELEMENT + content(keyed))
            .sum::<usize>()
}

fn content((key, element): &Keyed) -> usize {
    key.len()
        + match element {
            Element::Leaf { value, .. } => value.len(),
            Element::Branch { .. } => 0,
        }
}

/// Splits elements into pages. An element that is larger than a page is alone on a page that overflows.
fn grouped(elements: Vec<Keyed>) -> Vec<Vec<Keyed>> {
    let mut groups: Vec<Vec<Keyed>> = vec![Vec::new()];
    let mut used = HEADER;
    for keyed in elements {
        let wants = ELEMENT + content(&keyed);
        if used + wants > PAGE && groups.last().is_some_and(|group| !group.is_empty()) {
            groups.push(Vec::new());
            used = HEADER;
        }
        used += wants;
        if let Some(group) = groups.last_mut() {
            group.push(keyed);
        }
    }
    groups
}

/// A length as the format has it. What is written here has a few hundred kilobytes.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Header, elements, then keys and values in their order; positions count from the element that has them.
fn page(number: u64, flags: u16, elements: &[Keyed], overflow: u32) -> Vec<u8> {
    let count = u16::try_from(elements.len()).unwrap_or(u16::MAX);
    let mut bytes = header(number, flags, count, overflow).to_vec();
    let mut position = elements.len() * ELEMENT;
    for keyed in elements {
        let (key, element) = keyed;
        let words = match element {
            Element::Leaf { flags, value } => [
                *flags,
                narrow(position),
                narrow(key.len()),
                narrow(value.len()),
            ],
            Element::Branch { page } => {
                let [a, b, c, d, e, f, g, h] = page.to_le_bytes();
                let halves = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
                [narrow(position), narrow(key.len()), halves[0], halves[1]]
            }
        };
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        position = position - ELEMENT + content(keyed);
    }
    for (key, element) in elements {
        bytes.extend(key);
        if let Element::Leaf { value, .. } = element {
            bytes.extend(value);
        }
    }
    bytes
}
