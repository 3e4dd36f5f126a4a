//! Files of a store in a folder.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::Digest as _;

use crate::format::digest;
use crate::host::atomic_file;

/// Copies a file whose hash is known, which is computed of what is written; whether it had to be. One that is there is left.
pub(super) fn keep(from: &Path, to: &Path, sha256: &str) -> Result<bool> {
    if let Ok(found) = digest::sha256(to)
        && found == sha256
    {
        return Ok(false);
    }
    make_parent(to)?;
    let mut source = File::open(from).with_context(|| format!("reading {}", from.display()))?;
    let mut hash = sha2::Sha256::new();
    atomic_file::write(to, 0o644, |file| {
        let mut piece = vec![0; 1 << 20];
        loop {
            let n = source.read(&mut piece)?;
            if n == 0 {
                break;
            }
            hash.update(&piece[..n]);
            file.write_all(&piece[..n])?;
        }
        let found = HEXLOWER.encode(&hash.finalize_reset());
        ensure!(
            found == sha256,
            "{} of the cache has SHA-256 {found}, expected {sha256}; remove it",
            from.display()
        );
        Ok(())
    })?;
    Ok(true)
}

/// Writes a note.
pub(super) fn write(to: &Path, text: &str) -> Result<()> {
    make_parent(to)?;
    atomic_file::write(to, 0o644, |file| Ok(file.write_all(text.as_bytes())?))
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(folder).with_context(|| format!("making the folder {}", folder.display()))
}
