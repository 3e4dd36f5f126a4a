//! The kubelet from a release server, by the upstream project's conventions: `stable-1.36.txt` names the newest patch
//! release, and beside each program stands its SHA-256 (<https://kubernetes.io/releases/download/>).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fetch::{Digest, Options, Patience, Want, blocking};

use super::program::{LIMIT, ask_version};
use super::version;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedKubelet};

/// Short timeouts, because the next source is tried after a failure.
const PATIENCE: Patience = Patience {
    attempts: Some(2),
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(20),
    total: None,
    without_bytes: None,
    slowest: None,
    first_wait: Duration::from_millis(250),
};
/// Size limit of a version or a digest, bytes.
const SMALL: u64 = 4096;

pub(super) fn pin(
    template: &str,
    wanted: &str,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<(LockedKubelet, bool)> {
    let client = blocking::Client::new(&Options::default())?;
    let release = if version::parse(wanted).is_some() {
        format!("v{wanted}")
    } else {
        let (base, _) = template
            .split_once("{version}")
            .context("without {version} in its URL the recipe must name the patch release")?;
        let url = format!("{base}stable-{wanted}.txt");
        text(&client, &url)?
    };
    ensure!(
        version::parse(&release).is_some(),
        "the server names {release:?} as the newest release"
    );
    let arch = locked.recipe.image.architecture.debian();
    let url = template
        .replace("{version}", &release)
        .replace("{arch}", arch);
    let sha256 = text(&client, &format!("{url}.sha256"))?;
    // Some servers use the format of `sha256sum`: the digest, then the name.
    let sha256 = sha256
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let hit = session.cache.object(&sha256).exists();
    if !hit {
        fetch(&url, &sha256, session, step)?;
    }
    let object = session.cache.object(&sha256);
    let found = ask_version(&session.cache, &object)?;
    ensure!(
        found == release,
        "{url} reports version {found}, expected {release}"
    );
    let kubelet = LockedKubelet {
        version: release,
        size: std::fs::metadata(&object)?.len(),
        sha256,
        source: LockedFrom::Release { url },
    };
    Ok((kubelet, hit))
}

/// Fetches the program into the cache.
pub(super) fn fetch(url: &str, sha256: &str, session: &Session, step: &Step) -> Result<()> {
    let digest = Digest::sha256(sha256).with_context(|| {
        format!("{sha256:?} is not a SHA-256 digest; expected 64 hexadecimal digits")
    })?;
    let client = blocking::Client::new(&Options::default())?;
    let want = Want {
        patience: PATIENCE,
        ..Want::new(url, LIMIT).digest(digest)
    };
    let object = session.cache.object(sha256);
    if let Some(folder) = object.parent() {
        std::fs::create_dir_all(folder)?;
    }
    client.file(&want, &object, &|bytes| step.advance(bytes))?;
    Ok(())
}

fn text(client: &blocking::Client, url: &str) -> Result<String> {
    let want = Want {
        patience: PATIENCE,
        ..Want::new(url, SMALL)
    };
    let bytes = client.bytes(&want, &|_| (), &|_| ())?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
