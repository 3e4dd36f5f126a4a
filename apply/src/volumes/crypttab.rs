//! `/etc/crypttab` and the keys in `/etc/luks`, by which the running system opens the config's volumes (`crypttab(5)`).

use anyhow::Result;
use image::paths::{CRYPTTAB as TABLE, LUKS_KEYS as KEYS};

use super::{Opened, Unlock};
use crate::journal::files::Intent;
use crate::tree::{Tree, join};

/// Writes the keys, and one line for each volume; other lines are kept.
pub(crate) fn apply(tree: &Tree, volumes: &[Opened]) -> Result<()> {
    if volumes.is_empty() {
        return Ok(());
    }
    for volume in volumes {
        if let Unlock::Key(key) = &volume.by {
            let entry = tree.entry(&join(KEYS, &volume.name))?;
            tree.write(&entry, key, 0o600, (0, 0))?;
        }
    }
    let entry = tree.entry(TABLE)?;
    let now = match entry.stat() {
        Some(meta) if meta.is_file() => entry.read()?,
        _ => Vec::new(),
    };
    let text = with_lines(&String::from_utf8_lossy(&now), volumes);
    if text.as_bytes() == now {
        return Ok(());
    }
    tree.write(&entry, text.as_bytes(), 0o600, (0, 0))
}

/// Records the paths that [`apply`] will write to. The content is not recorded: a key's hash must not be in `state`,
/// which is not encrypted, and the table may be a file of the config before it gets its lines.
pub(crate) fn intend(tree: &Tree, volumes: &[Opened], intent: &mut Intent) -> Result<()> {
    if volumes.is_empty() {
        return Ok(());
    }
    let has_key = |volume: &&Opened| matches!(volume.by, Unlock::Key(_));
    for volume in volumes.iter().filter(has_key) {
        intent.file(tree, &join(KEYS, &volume.name), None)?;
    }
    intent.file(tree, TABLE, None)
}

fn with_lines(now: &str, volumes: &[Opened]) -> String {
    let is_ours = |line: &&str| {
        let name = line.split_whitespace().next();
        volumes
            .iter()
            .any(|volume| Some(volume.name.as_str()) == name)
    };
    let kept = now.lines().filter(|line| !is_ours(line)).map(str::to_owned);
    let ours = volumes.iter().map(|volume| {
        let none = || "none".to_owned();
        let (key, more) = match volume.by {
            Unlock::Key(_) => (join(KEYS, &volume.name), ""),
            // `headless`: a node has no console to ask for a passphrase.
            Unlock::Tpm => (none(), "tpm2-device=auto,headless=true,"),
            // Not headless: an agent of clevis answers the request for the passphrase.
            Unlock::Clevis { network: false } => (none(), ""),
            Unlock::Clevis { network: true } => (none(), "_netdev,"),
        };
        format!(
            "{} UUID={} {key} luks,{more}x-initrd.attach",
            volume.name, volume.uuid
        )
    });
    kept.chain(ours)
        .fold(String::new(), |text, line| text + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_volume_has_one_line_and_other_lines_stay() {
        let volume = |name: &str, by: Unlock| Opened {
            name: name.to_owned(),
            uuid: "abab".to_owned(),
            by,
        };
        let volumes = [
            volume("data", Unlock::Key(b"SECRET".to_vec())),
            volume("sealed", Unlock::Tpm),
            volume("far", Unlock::Clevis { network: true }),
            volume("near", Unlock::Clevis { network: false }),
        ];
        let text = with_lines("# mine\ndata UUID=old none luks\nother /dev/x\n", &volumes);
        assert_eq!(
            text,
            "# mine\nother /dev/x\ndata UUID=abab /etc/luks/data luks,x-initrd.attach\n\
             sealed UUID=abab none luks,tpm2-device=auto,headless=true,x-initrd.attach\n\
             far UUID=abab none luks,_netdev,x-initrd.attach\n\
             near UUID=abab none luks,x-initrd.attach\n"
        );
        assert_eq!(with_lines(&text, &volumes), text);
    }
}
