//! The file format of bbolt, in which containerd keeps what it knows: a file is read whole into memory and written anew.
//!
//! Only while no other program has it open. Format: <https://github.com/etcd-io/bbolt> (`internal/common/meta.go`,
//! `page.go`, `bucket.go`): pages of one size; two meta pages, of which the valid one with the higher transaction counts;
//! buckets are B+ trees of sorted keys, whose values are bytes or further buckets, small ones inline.

mod read;
mod write;

use std::collections::BTreeMap;

pub(crate) use read::read;
pub(crate) use write::write;

/// `meta.magic`.
const MAGIC: u32 = 0xED0C_DAED;
/// `meta.version`.
const VERSION: u32 = 2;
/// The size of the pages that are written, bytes.
const PAGE: usize = 4096;
/// Bytes of a page's header: id, flags, count, overflow.
const HEADER: usize = 16;
/// Bytes of a leaf's or a branch's element.
const ELEMENT: usize = 16;
/// Bytes of a bucket's header: root page, sequence.
const BUCKET: usize = 16;
/// Bytes of the meta page's content before its checksum, and where it begins.
const META: usize = 56;
/// Flags of a page: a branch, a leaf, a meta page, the list of free pages.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META_PAGE: u16 = 0x04;
const FREELIST: u16 = 0x10;
/// Flag of a leaf's element: its value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// A bucket: keys in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// A counter that its users draw numbers from.
    pub(crate) sequence: u64,
    /// Its keys.
    pub(crate) items: BTreeMap<Vec<u8>, Item>,
}

/// What a key of a bucket has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Value(Vec<u8>),
    Bucket(Bucket),
}

impl Bucket {
    /// The value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        match self.items.get(key.as_bytes()) {
            Some(Item::Value(value)) => Some(value),
            _ => None,
        }
    }

    /// The bucket of a key.
    pub(crate) fn bucket(&self, key: &str) -> Option<&Self> {
        match self.items.get(key.as_bytes()) {
            Some(Item::Bucket(bucket)) => Some(bucket),
            _ => None,
        }
    }

    /// The bucket at a path of keys, made where it is missing. A value in its place is replaced.
    pub(crate) fn at(&mut self, path: &[&str]) -> &mut Self {
        let Some((first, rest)) = path.split_first() else {
            return self;
        };
        let item = self.items.entry(first.as_bytes().to_vec());
        let item = item.or_insert_with(|| Item::Bucket(Self::default()));
        if let Item::Value(_) = item {
            *item = Item::Bucket(Self::default());
        }
        match item {
            Item::Bucket(bucket) => bucket.at(rest),
            Item::Value(_) => unreachable!("it was replaced"),
        }
    }

    /// Sets a value.
    pub(crate) fn put(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        let key = key.as_bytes().to_vec();
        self.items.insert(key, Item::Value(value.into()));
    }

    /// The keys that are buckets.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (&[u8], &Self)> {
        self.items.iter().filter_map(|(key, item)| match item {
            Item::Bucket(bucket) => Some((key.as_slice(), bucket)),
            Item::Value(_) => None,
        })
    }
}

/// FNV-1a of 64 bits: the checksum of a meta page.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests;
