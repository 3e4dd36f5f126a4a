//! The blocks behind the content: inodes, then the folders' entries.

use anyhow::{Context as _, Result};

use super::Volume;
use super::content::Stored;
use super::inode::{Form, Inode};
use super::place::Placed;

/// The inodes at their places and the folders' blocks behind them: whole blocks. `numbers` are those of the inodes, by node.
///
/// # Errors
/// If a number is too large for its field.
pub(super) fn encode(
    inodes: &[Inode<'_>],
    placed: &Placed,
    numbers: &[u64],
    volume: &Volume,
) -> Result<Vec<u8>> {
    let mut out = vec![0; placed.size];
    for (at, inode) in inodes.iter().enumerate() {
        let about = || format!("packing {}", inode.node.path);
        let mut content = Vec::new();
        let tail: &[u8] = match &inode.form {
            Form::Directory(folder) => {
                content = folder.encode(numbers)?;
                let blocks = content.len() - inode.tail();
                let from = placed.folder(at);
                out[from..from + blocks].copy_from_slice(&content[..blocks]);
                &content[blocks..]
            }
            Form::Symlink(target, None) => target,
            Form::Symlink(_, Some(Stored::Flat { tail, .. }))
            | Form::File(_, Some(Stored::Flat { tail, .. })) => tail,
            _ => &content,
        };
        let block = placed.block(at)?;
        let bytes = inode
            .encode(u32::try_from(at + 1)?, block, tail, volume)
            .with_context(about)?;
        let from = placed.inodes[at];
        out[from..from + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(out)
}
