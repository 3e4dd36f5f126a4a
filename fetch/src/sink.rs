//! Destinations of a download: memory, an open file, or a temporary file that is renamed at the end.

use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, shown};
use crate::want::{Room, Want};

/// A destination for bytes that can be emptied again.
pub trait Sink: Send {
    /// Adds a piece.
    ///
    /// # Errors
    /// If it cannot be taken; the download ends with this failure.
    fn push(&mut self, piece: &[u8]) -> Result<(), Failure>;
    /// Discards everything: the content comes again from its start. Also called before the first piece.
    ///
    /// # Errors
    /// As [`Sink::push`].
    fn restart(&mut self) -> Result<(), Failure>;
}

/// Memory; what it takes of a shared room goes back if the download fails.
pub(crate) struct Memory<'a> {
    bytes: Vec<u8>,
    url: &'a str,
    room: Option<&'a Room>,
}

impl<'a> Memory<'a> {
    pub(crate) fn of(want: &'a Want<'a>) -> Self {
        Self {
            bytes: Vec::new(),
            url: want.url,
            room: want.room,
        }
    }

    /// The content, whose part of the room stays taken.
    pub(crate) fn keep(mut self) -> Vec<u8> {
        self.room = None;
        std::mem::take(&mut self.bytes)
    }

    fn clear(&mut self) {
        if let Some(room) = self.room {
            room.give(length(&self.bytes));
        }
        self.bytes = Vec::new();
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Sink for Memory<'_> {
    fn push(&mut self, piece: &[u8]) -> Result<(), Failure> {
        if let Some(room) = self.room
            && !room.take(length(piece))
        {
            return Err(Failure::NoRoom {
                url: shown(self.url),
                room: room.size(),
            });
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.clear();
        Ok(())
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

pub(crate) struct Open(pub(crate) std::fs::File);

impl Open {
    fn disk(source: io::Error) -> Failure {
        Failure::Disk {
            path: PathBuf::from("the open file"),
            source,
        }
    }
}

impl Sink for Open {
    fn push(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.0.write_all(piece).map_err(Self::disk)
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.0
            .set_len(0)
            .and_then(|()| self.0.rewind())
            .map_err(Self::disk)
    }
}

pub(crate) struct File {
    temporary: tempfile::NamedTempFile,
    dest: PathBuf,
}

impl File {
    pub(crate) fn beside(dest: &Path) -> Result<Self, Failure> {
        let folder = dest.parent().unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempfile_in(folder)
            .map_err(|source| Failure::Disk {
                path: dest.to_path_buf(),
                source,
            })?;
        Ok(Self {
            temporary,
            dest: dest.to_path_buf(),
        })
    }

    fn disk(&self) -> impl Fn(io::Error) -> Failure + use<> {
        let path = self.dest.clone();
        move |source| Failure::Disk {
            path: path.clone(),
            source,
        }
    }

    /// Syncs and renames, off the runtime's thread, since a sync can take long.
    pub(crate) async fn keep(self) -> Result<(), Failure> {
        let disk = self.disk();
        let Self { temporary, dest } = self;
        tokio::task::spawn_blocking(move || {
            use std::os::unix::fs::PermissionsExt as _;
            temporary
                .as_file()
                .set_permissions(std::fs::Permissions::from_mode(0o644))?;
            temporary.as_file().sync_all()?;
            temporary.persist(&dest).map_err(|e| e.error)?;
            let folder = dest.parent().unwrap_or(Path::new("."));
            std::fs::File::open(folder)?.sync_all()
        })
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e)))
        .map_err(disk)
    }
}

impl Sink for File {
    fn push(&mut self, piece: &[u8]) -> Result<(), Failure> {
        let disk = self.disk();
        self.temporary.as_file_mut().write_all(piece).map_err(disk)
    }

    fn restart(&mut self) -> Result<(), Failure> {
        let disk = self.disk();
        let file = self.temporary.as_file_mut();
        file.set_len(0).and_then(|()| file.rewind()).map_err(disk)
    }
}
