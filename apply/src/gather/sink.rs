//! Where a download goes that does not fit into memory: unpacked, measured and verified as it comes, and written to a file
//! if there is one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fetch::{Failure, Room};
use ignition::contents::{Hash, Measured, Refused, Unpacker};
use ignition::model::Resource;
use ignition::source::shown;

use super::memory::Refusal;
use crate::fetched::{Content, Spooled};

/// Contents up to this size stay in memory, where others are spooled: settings and units are among them, which the steps
/// before `/var` read.
const SMALL: usize = 1 << 20;

/// Where a content goes that does not fit into memory.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// The most bytes that it may have, unpacked.
    pub(super) limit: u64,
    /// The file; none where it is only measured and verified.
    pub(super) file: Option<PathBuf>,
}

/// Takes a content piece by piece.
pub(super) struct Sink {
    url: String,
    gzip: bool,
    hash: Option<Hash>,
    to: Destination,
    /// From the first [`fetch::Sink::restart`] on.
    unpacker: Option<Unpacker<Out>>,
}

/// What a content is written to: a file, or memory as long as it is small.
struct Out {
    file: Option<File>,
    kept: Option<Vec<u8>>,
}

impl Sink {
    /// For the content of a resource.
    ///
    /// # Errors
    /// If the hash in the config cannot be read.
    pub(super) fn new(resource: &Resource, to: Destination) -> Result<Self, Refusal> {
        Ok(Self {
            url: resource.source.clone().unwrap_or_default(),
            gzip: is_gzip(resource),
            hash: hash(resource).map_err(Refusal::content)?,
            to,
            unpacker: None,
        })
    }

    /// The most bytes that may be transferred; packed data may be longer than unpacked.
    pub(super) const fn limit(&self) -> u64 {
        match self.gzip {
            true => u64::MAX,
            false => self.to.limit,
        }
    }

    /// The content, all of which has come. It is in memory if it is small and there is room.
    ///
    /// # Errors
    /// If it is cut short or has another hash than the config gives.
    pub(super) fn finish(self, room: &Room) -> Result<Content, Refusal> {
        let refused = |refused: Refused| Refusal::content(refused.to_string());
        let Some(unpacker) = self.unpacker else {
            return Err(Refusal::source("nothing was fetched"));
        };
        let (out, Measured { bytes, sha256 }) = unpacker.finish().map_err(refused)?;
        Ok(match out.kept {
            Some(kept) if room.take(bytes) => Content::Memory(kept),
            _ => Content::Spooled(Spooled {
                bytes,
                sha256,
                file: self.to.file,
            }),
        })
    }

    fn failure(&self, why: String) -> Failure {
        Failure::Refused {
            url: shown(&self.url),
            why,
        }
    }
}

impl fetch::Sink for Sink {
    fn push(&mut self, piece: &[u8]) -> Result<(), Failure> {
        let Some(unpacker) = &mut self.unpacker else {
            return Ok(());
        };
        let pushed = unpacker.push(piece);
        pushed.map_err(|refused| match refused {
            Refused::TooLong(limit) => Failure::TooLarge {
                url: shown(&self.url),
                limit,
            },
            refused => self.failure(refused.to_string()),
        })
    }

    fn restart(&mut self) -> Result<(), Failure> {
        let out = Out::new(self.to.file.as_deref());
        let out = out.map_err(|error| self.failure(format!("making its file: {error}")))?;
        let unpacker = Unpacker::new(out, self.gzip, self.hash.clone(), self.to.limit);
        self.unpacker = Some(unpacker);
        Ok(())
    }
}

impl Out {
    /// The file, emptied, or memory.
    fn new(file: Option<&Path>) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        // It may be secret.
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = file.map(|path| options.open(path)).transpose()?;
        Ok(Self {
            kept: file.is_none().then(Vec::new),
            file,
        })
    }
}

impl Write for Out {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            return file.write(data);
        }
        match &mut self.kept {
            Some(kept) if kept.len() + data.len() <= SMALL => kept.extend_from_slice(data),
            _ => self.kept = None,
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the content of a resource comes packed.
pub(super) fn is_gzip(resource: &Resource) -> bool {
    resource.compression.as_deref() == Some("gzip")
}

/// The hash that the config gives a resource.
///
/// # Errors
/// If it cannot be read.
pub(super) fn hash(resource: &Resource) -> Result<Option<Hash>, &'static str> {
    let verification = resource.verification.as_ref();
    let hash = verification.and_then(|verification| verification.hash.as_deref());
    hash.map(|hash| Hash::parse(hash, 7)).transpose()
}
