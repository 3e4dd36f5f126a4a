//! Reads a file. Nothing in it is trusted: every offset is checked, and no page is read more than once.

use std::cell::Cell;

use anyhow::{Context, Result, bail, ensure};

use super::{
    BRANCH, BUCKET, Bucket, ELEMENT, HEADER, IS_BUCKET, Item, LEAF, MAGIC, META, VERSION, checksum,
};

/// Buckets inside of buckets, and branches above leaves, at most: containerd has less than a dozen.
const DEPTH: usize = 32;
/// Page sizes that bbolt uses: those of the kernels it runs on.
const PAGES: [usize; 4] = [4096, 8192, 16384, 65536];

/// The root bucket of a file.
///
/// # Errors
/// If no meta page is valid, or a page is not what leads to it says.
pub(crate) fn read(file: &[u8]) -> Result<Bucket> {
    let (size, root, sequence) = meta(file)?;
    let pages = Pages {
        file,
        size,
        left: Cell::new(file.len() / size),
    };
    pages.bucket(root, sequence, DEPTH)
}

/// Page size, root page and sequence of the root bucket, by the newest valid meta page.
fn meta(file: &[u8]) -> Result<(usize, u64, u64)> {
    let mut best: Option<(u64, (usize, u64, u64))> = None;
    let starts = std::iter::once(0).chain(PAGES);
    for start in starts {
        let Some(meta) = file.get(start + HEADER..start + HEADER + META + 8) else {
            continue;
        };
        let size = usize::try_from(u32_at(meta, 8)?)?;
        let valid = u32_at(meta, 0)? == MAGIC
            && u32_at(meta, 4)? == VERSION
            && u64_at(meta, META)? == checksum(&meta[..META])
            && PAGES.contains(&size)
            && (start == 0 || start == size);
        let transaction = u64_at(meta, 48)?;
        if valid && best.is_none_or(|(newest, _)| transaction > newest) {
            best = Some((transaction, (size, u64_at(meta, 16)?, u64_at(meta, 24)?)));
        }
    }
    best.map(|(_, found)| found)
        .context("neither of its two meta pages is valid")
}

struct Pages<'a> {
    file: &'a [u8],
    size: usize,
    /// Pages that may still be read: none belongs to two places of a tree.
    left: Cell<usize>,
}

impl<'a> Pages<'a> {
    /// A page with those that it overflows into.
    fn page(&self, id: u64) -> Result<&'a [u8]> {
        let about = || format!("page {id} is outside of the file");
        let left = self.left.get().checked_sub(1);
        self.left
            .set(left.context("its tree has more pages than the file")?);
        let start = usize::try_from(id)?
            .checked_mul(self.size)
            .with_context(about)?;
        let head = self
            .file
            .get(start..start.saturating_add(HEADER))
            .with_context(about)?;
        ensure!(
            u64_at(head, 0)? == id,
            "page {id} calls itself page {}",
            u64_at(head, 0)?
        );
        let pages = usize::try_from(u32_at(head, 12)?)?.saturating_add(1);
        let end = start.saturating_add(pages.saturating_mul(self.size));
        self.file.get(start..end).with_context(about)
    }

    fn bucket(&self, root: u64, sequence: u64, depth: usize) -> Result<Bucket> {
        let mut bucket = Bucket {
            sequence,
            ..Bucket::default()
        };
        self.fill(&mut bucket, self.page(root)?, depth)?;
        Ok(bucket)
    }

    /// Adds the keys of a page and of those below it.
    fn fill(&self, bucket: &mut Bucket, page: &[u8], depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).context("its tree is too deep")?;
        let (flags, count) = (u16_at(page, 8)?, u16_at(page, 10)?);
        for number in 0..usize::from(count) {
            let at = HEADER + number * ELEMENT;
            match flags {
                LEAF => {
                    let (key, item) = self.leaf(page, at, depth)?;
                    bucket.items.insert(key, item);
                }
                BRANCH => self.fill(bucket, self.page(u64_at(page, at + 8)?)?, depth)?,
                _ => bail!("a page of the tree has the flags {flags:#x}"),
            }
        }
        Ok(())
    }

    /// The key and the value of the element at `at`.
    fn leaf(&self, page: &[u8], at: usize, depth: usize) -> Result<(Vec<u8>, Item)> {
        let number = |offset: usize| anyhow::Ok(usize::try_from(u32_at(page, at + offset)?)?);
        let start = at.saturating_add(number(4)?);
        let middle = start.saturating_add(number(8)?);
        let end = middle.saturating_add(number(12)?);
        let outside = "an element leads out of its page";
        let key = page.get(start..middle).context(outside)?;
        let value = page.get(middle..end).context(outside)?;
        let item = if u32_at(page, at)? & IS_BUCKET == 0 {
            Item::Value(value.to_vec())
        } else {
            Item::Bucket(self.nested(value, depth)?)
        };
        Ok((key.to_vec(), item))
    }

    /// A bucket inside of another one: on pages of its own, or on a small page inside the value.
    fn nested(&self, value: &[u8], depth: usize) -> Result<Bucket> {
        let (root, sequence) = (u64_at(value, 0)?, u64_at(value, 8)?);
        if root != 0 {
            return self.bucket(root, sequence, depth);
        }
        let mut bucket = Bucket {
            sequence,
            ..Bucket::default()
        };
        self.fill(&mut bucket, &value[BUCKET..], depth)?;
        Ok(bucket)
    }
}

/// The file is in the byte order of the machine that wrote it; ours are little-endian.
fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(array(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(array(bytes, at)?))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(array(bytes, at)?))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let field = bytes.get(at..at.saturating_add(N));
    let field = field.context("a page ends in the middle of a field")?;
    Ok(field.try_into()?)
}
