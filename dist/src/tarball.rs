//! The tarball: files in the order of their names, of root, with one time; and its hash beside it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::documents::Files;

/// The tarball's bytes, with all files below the folder `name`.
pub(crate) fn pack(name: &str, files: &Files) -> Result<Vec<u8>> {
    // Neither a name nor a time in gzip's header.
    let gzip = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    let mut tar = Builder::new(gzip);
    for (path, (mode, content)) in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, format!("{name}/{path}"), content.as_slice())
            .with_context(|| format!("packing {path}"))?;
    }
    Ok(tar.into_inner()?.finish()?)
}

/// Writes the tarball and `NAME.sha256` beside it; each is there whole or not at all.
pub(crate) fn write(folder: &Path, name: &str, tarball: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let sum = HEXLOWER.encode(&Sha256::digest(tarball));
    let line = format!("{sum}  {name}\n");
    for (name, content) in [
        (name.to_owned(), tarball),
        (format!("{name}.sha256"), line.as_bytes()),
    ] {
        let path = folder.join(&name);
        let about = || format!("writing {}", path.display());
        let temporary = folder.join(format!(".{name}.new"));
        let mut file = File::create(&temporary).with_context(about)?;
        file.write_all(content).with_context(about)?;
        file.sync_all().with_context(about)?;
        fs::rename(&temporary, &path).with_context(about)?;
    }
    Ok(folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_are_the_same_bytes_and_keep_their_modes() {
        let mut files = Files::new();
        files.insert("share/b".to_owned(), (0o644, b"b".to_vec()));
        files.insert("bin/a".to_owned(), (0o755, b"a".to_vec()));
        let packed = pack("slipway-1", &files).unwrap();
        assert_eq!(packed, pack("slipway-1", &files).unwrap());
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let entries = tar.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            (
                path,
                header.mode().unwrap(),
                header.mtime().unwrap(),
                header.uid().unwrap(),
            )
        });
        let expected = [
            ("slipway-1/bin/a".to_owned(), 0o755, 0, 0),
            ("slipway-1/share/b".to_owned(), 0o644, 0, 0),
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_sum_is_that_of_the_tarball() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder.path().join("new"), "a.tar.gz", b"content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        let sum = fs::read_to_string(path.with_file_name("a.tar.gz.sha256")).unwrap();
        assert_eq!(
            sum,
            "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73  a.tar.gz\n"
        );
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 2);
    }
}
