//! The programs from a release server, by the upstream project's conventions: beside each program stands its SHA-256
//! (<https://kubernetes.io/releases/download/>).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fetch::{Digest, Options, Patience, Want, blocking};

use super::program::{LIMIT, Pinned, ask_version};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::recipe::KubeletRequest;

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
/// Size limit of a digest, bytes.
const SMALL: u64 = 4096;

pub(super) fn pin(
    template: &str,
    request: &KubeletRequest,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<Pinned> {
    ensure!(
        request.components.is_empty() || template.contains("{program}"),
        "its URL stands for one program, and the recipe wants others: write {{program}} in it"
    );
    let client = blocking::Client::new(&Options::default())?;
    let release = format!("v{}", request.version);
    let arch = locked.recipe.image.architecture.debian();
    let template = template
        .replace("{version}", &release)
        .replace("{arch}", arch);
    let mut all = true;
    let mut pin = |name: &str| {
        let url = template.replace("{program}", name);
        let (program, hit) = pin_one(&client, &url, &release, session, step)?;
        all &= hit;
        anyhow::Ok(program)
    };
    let kubelet = pin("kubelet")?;
    let object = session.cache.object(&kubelet.sha256);
    let found = ask_version(&session.cache, &object)?;
    ensure!(
        found == release,
        "the kubelet of {release} reports version {found}"
    );
    let mut components = BTreeMap::new();
    for name in &request.components {
        components.insert(name.clone(), pin(name)?);
    }
    Ok(Pinned {
        kubelet,
        components,
        hit: all,
    })
}

/// Pins a program by the digest beside it, and fetches it; gives whether it was in the cache.
fn pin_one(
    client: &blocking::Client,
    url: &str,
    release: &str,
    session: &Session,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let sha256 = text(client, &format!("{url}.sha256"))?;
    // Some servers use the format of `sha256sum`: the digest, then the name.
    let sha256 = sha256
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let hit = session.cache.object(&sha256).exists();
    if !hit {
        fetch(url, &sha256, session, step)?;
    }
    let program = LockedProgram {
        version: release.to_owned(),
        size: std::fs::metadata(session.cache.object(&sha256))?.len(),
        sha256,
        source: LockedFrom::Release {
            url: url.to_owned(),
        },
    };
    Ok((program, hit))
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
