//! Keys in files for programs: in `/run`, which is in memory, and in no command line and no message.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::paths::RUN_KEYS as KEYS;

use linux::mount;
use linux::programs::Programs;

/// Random bytes of a generated key.
const DRAWN: usize = 4096;

/// A key in a file that programs of the root can read; removed when this value is dropped.
#[derive(Debug)]
pub(super) struct KeyFile {
    /// Its path inside the root.
    pub path: String,
    here: PathBuf,
}

impl KeyFile {
    /// Writes a key to a file for the volume `name`.
    pub(super) fn new(root: &Programs, name: &str, key: &[u8]) -> Result<Self> {
        let folder = root.world.in_run(KEYS);
        mount::folder(&folder, 0o700)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        let file = Self {
            path: format!("{KEYS}/{name}"),
            here: folder.join(name),
        };
        if file.here.exists() {
            fs::remove_file(&file.here).context("removing an old key from /run")?;
        }
        let mut options = File::options();
        let open = options
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&file.here);
        open.and_then(|mut file| file.write_all(key))
            .with_context(|| format!("keeping the key of the volume {name}"))?;
        Ok(file)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.here) {
            tracing::warn!("removing a key from /run: {error}");
        }
    }
}

/// Generates a random key, as hexadecimal digits, as Ignition does.
pub(super) fn draw() -> Result<Vec<u8>> {
    let mut bytes = vec![0; DRAWN];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("reading random bytes for a key")?;
    Ok(HEXLOWER.encode(&bytes).into_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use linux::world::{Clock, World};

    #[test]
    fn a_key_lies_in_a_closed_file_only_as_long_as_it_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Programs {
            world: Arc::new(World::below(folder.path(), Clock::Real)),
            sysroot: folder.path().to_owned(),
            in_image: true,
        };
        let key = KeyFile::new(&root, "data", b"SECRET").unwrap();
        let here = folder.path().join("run/slipway/keys/data");
        assert_eq!(fs::read(&here).unwrap(), b"SECRET");
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&here), 0o400);
        assert_eq!(mode(&folder.path().join("run/slipway/keys")), 0o700);
        assert!(!format!("{key:?}").contains("SECRET"));
        drop(key);
        assert!(!here.exists());
        let drawn = draw().unwrap();
        assert_eq!(drawn.len(), 2 * DRAWN);
        assert!(!drawn.contains(&0) && drawn != draw().unwrap());
    }
}
