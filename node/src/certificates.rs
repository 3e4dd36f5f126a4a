//! `certs`: the certificates of a control plane, when they end, and making them anew; `certs-renew`, which a timer runs.

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cluster::certs::certificates;
use cluster::duration::{self, time_after};
use cluster::kubeconfigs::{self, kubeconfigs};
use cluster::pki::Renewal;
use cluster::pki::life::Life;
use image::kubelet::{KUBECONFIG, UNIT};
use image::paths::SYSTEMCTL;
use linux::programs::{self, Programs};
use linux::world::World;
use serde::Serialize;

use crate::control_plane;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::upload_command::{Options, upload};

/// The name of the commands for people.
pub(crate) const COMMAND: &str = "certs";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "[--json | renew [--all] [--dry-run] | upload [--certificate-key KEY] [--json] [--dry-run]]: this \
     control plane's certificates and when they end; upload: the shared keys for further control planes";
/// The kubelet's own certificates, which it renews itself: the client's and the server's.
const KUBELET: [&str; 2] = [
    "/var/lib/kubelet/pki/kubelet-client-current.pem",
    "/var/lib/kubelet/pki/kubelet-server-current.pem",
];
/// The state of a certificate that a clock left that was ahead.
const NOT_YET: &str = "not valid yet";
/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// A certificate.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    /// The file that holds it.
    file: String,
    /// The authority that signed it.
    authority: &'static str,
    /// When it ends, RFC 3339; none if it cannot be read.
    ends: Option<String>,
    /// Whole days until then; negative once it has ended.
    days: Option<i64>,
    state: &'static str,
}

/// Runs the command with its options; none for others.
pub(crate) fn command(program: &str, options: &[&str]) -> Option<ExitCode> {
    let world = World::real();
    let result = match options {
        [] => check(&world, false),
        ["--json"] => check(&world, true),
        ["renew", rest @ ..] => {
            let known = ["--all", "--dry-run"];
            if !rest.iter().all(|option| known.contains(option)) {
                return None;
            }
            let has = |option: &str| rest.contains(&option);
            let renewal = if has("--all") {
                Renewal::All
            } else {
                Renewal::Soon
            };
            renew(&world, renewal, has("--dry-run")).map(|text| (text, true))
        }
        ["upload", rest @ ..] => {
            let options = Options::read(rest)?;
            upload(&world, &options).map(|text| (text, true))
        }
        _ => return None,
    };
    let written = result.and_then(|(text, well)| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .context("writing the answer")?;
        Ok(well)
    });
    Some(match written {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Makes those anew that end soon, if this node is a control plane that has been begun. The clock may have been set on by years, or
/// back: then the kubelet, whose own ones it would find out about too late or never, is started anew without them.
///
/// # Errors
/// As [`control_plane::renew`], and if systemd does not answer.
pub(crate) fn run(world: &World) -> Result<()> {
    let bootstrap = match object::read(world, Duration::ZERO)? {
        Some(bootstrap) if bootstrap.object.join.is_none() => bootstrap,
        _ => {
            tracing::info!("no certificates to renew on this node");
            return Ok(());
        }
    };
    // A clock is often set while the first boot goes on.
    if Journal::read(world)?.is_none_or(|journal| journal.authority.is_none()) {
        tracing::info!("this control plane is not finished: there is nothing to renew");
        return Ok(());
    }
    match control_plane::moved(world, &bootstrap.object) {
        Some(why) => tracing::warn!("{why}"),
        None => {
            let text = renewed(world, &bootstrap, Renewal::Soon, false)?;
            tracing::info!("{}", text.trim());
        }
    }
    if withdraw_kubelets(world, seconds(SystemTime::now())?)? {
        let programs = Programs::of_host(Arc::new(World::real()));
        let restart = ["--no-block", "try-restart", UNIT];
        programs::succeed(&programs, SYSTEMCTL, &restart)?;
    }
    Ok(())
}

/// Removes the kubelet's own certificates if one is not valid at this time, and says whether it did: the kubelet then asks for
/// others by what its kubeconfig holds. One whose kubeconfig names files has nothing else to ask with, and keeps them.
fn withdraw_kubelets(world: &World, now: i64) -> Result<bool> {
    let read = |path: &str| fs::read_to_string(world.in_initrd(path)).ok();
    let kubeconfig = read(KUBECONFIG).and_then(|text| kubeconfigs::read(&text));
    let own = kubeconfig.and_then(|given| given.certificate);
    let can_ask = own.and_then(|text| Life::of_pem(&text));
    if !can_ask.is_some_and(|life| life.is_valid(now)) {
        return Ok(false);
    }
    let mut withdrawn = false;
    for path in KUBELET {
        let life = read(path).and_then(|text| Life::of_pem(&text));
        if life.is_none_or(|life| life.is_valid(now)) {
            continue;
        }
        let file = world.in_initrd(path);
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        tracing::warn!(
            "{path} is not valid at this time: the kubelet is started anew and asks for another one"
        );
        withdrawn = true;
    }
    Ok(withdrawn)
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> Result<i64> {
    let since = time
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    Ok(i64::try_from(since.as_secs())?)
}

fn bootstrap(world: &World) -> Result<Bootstrap> {
    let bootstrap = object::read(world, Duration::ZERO)?.context("this node has no cluster")?;
    let joined = bootstrap.object.join.is_some();
    anyhow::ensure!(
        !joined,
        "this node is a worker: its kubelet renews its certificate"
    );
    Ok(bootstrap)
}

fn renew(world: &World, renewal: Renewal, dry_run: bool) -> Result<String> {
    renewed(world, &bootstrap(world)?, renewal, dry_run)
}

fn renewed(world: &World, bootstrap: &Bootstrap, renewal: Renewal, dry: bool) -> Result<String> {
    let config = &bootstrap.object.config;
    let key = format!("{}/ca.key", config.cluster.certificates_dir);
    if !world.in_initrd(&key).exists() {
        return Ok(format!(
            "{key} is not on this node: whoever keeps the authority renews its certificates\n"
        ));
    }
    let paths = control_plane::renew(world, bootstrap, renewal, dry)?;
    if paths.is_empty() {
        return Ok("no certificate ends soon\n".to_owned());
    }
    let what = if dry {
        "would be made anew"
    } else {
        "is made anew"
    };
    Ok(paths
        .iter()
        .map(|path| format!("{path} {what}\n"))
        .collect())
}

/// The table, and whether none has ended.
fn check(world: &World, json: bool) -> Result<(String, bool)> {
    let bootstrap = bootstrap(world)?;
    let rows = rows(world, &bootstrap, SystemTime::now())?;
    let well = rows
        .iter()
        .all(|row| row.state != NOT_YET && row.days.is_some_and(|days| days >= 0));
    let text = match json {
        true => serde_json::to_string(&rows).context("writing the table as JSON")? + "\n",
        false => rows.iter().map(line).collect(),
    };
    Ok((text, well))
}

fn line(row: &Row) -> String {
    let days = row
        .days
        .map_or_else(|| "-".to_owned(), |days| format!("{days} d"));
    let ends = row.ends.as_deref().unwrap_or("-");
    format!(
        "{:<58}  {:<15}  {ends:<20}  {days:>6}  {}\n",
        row.file, row.authority, row.state
    )
}

fn rows(world: &World, bootstrap: &Bootstrap, now: SystemTime) -> Result<Vec<Row>> {
    let config = &bootstrap.object.config;
    let now = seconds(now)?;
    let read = |path: &str| fs::read_to_string(world.in_initrd(path)).ok();
    let folder = &config.cluster.certificates_dir;
    let mut rows = Vec::new();
    for made in certificates(config) {
        let path = format!("{folder}/{}.crt", made.file);
        let life = read(&path).and_then(|text| Life::of_pem(&text));
        let of_authority = made.certificate.usage == cluster::certs::Usage::Authority;
        let state = match of_authority {
            true => "an authority: never renewed by itself",
            false => state(life, now, made.certificate.validity),
        };
        rows.push(row(path, made.certificate.issuer.name(), life, now, state));
    }
    for kubeconfig in kubeconfigs(config) {
        let path = format!("/etc/kubernetes/{}", kubeconfig.file);
        let given = read(&path).and_then(|text| kubeconfigs::read(&text));
        let Some(given) = given else {
            continue;
        };
        let authority = kubeconfig.certificate.issuer.name();
        match given.certificate {
            Some(text) => {
                let life = Life::of_pem(&text);
                let state = state(life, now, kubeconfig.certificate.validity);
                rows.push(row(path, authority, life, now, state));
            }
            None => tracing::debug!("{path} names files"),
        }
    }
    for path in KUBELET {
        if let Some(text) = read(path) {
            let state = "renewed by the kubelet";
            let life = Life::of_pem(&text);
            rows.push(row(path.to_owned(), "kubernetes", life, now, state));
        }
    }
    Ok(rows)
}

fn state(life: Option<Life>, now: i64, validity: duration::Duration) -> &'static str {
    match life {
        None => "missing",
        Some(life) if life.begins > now => NOT_YET,
        Some(life) if !life.lasts(now, Renewal::Ended, validity) => "ended",
        Some(life) if !life.lasts(now, Renewal::Soon, validity) => "renewed within a day",
        Some(_) => "valid",
    }
}

fn row(
    file: String,
    authority: &'static str,
    life: Option<Life>,
    now: i64,
    state: &'static str,
) -> Row {
    let left = life.map(|life| life.ends - now);
    let ends = life.and_then(|life| {
        let seconds = life.ends.checked_mul(1_000_000_000)?;
        Some(time_after(UNIX_EPOCH, duration::Duration(seconds)))
    });
    Row {
        file,
        authority,
        ends,
        days: left.map(|left| left.div_euclid(DAY)),
        state,
    }
}

#[cfg(test)]
mod tests;
