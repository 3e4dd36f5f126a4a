//! Doctor: checks the resources of this host; names each missing one with its remedy.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::debian::mirror::{Host, MIRROR_VARIABLE, Mirrors};
use crate::debian::release::time;
use crate::format::time::rfc3339;
use crate::host::cache::Cache;
use crate::host::logins::{HostLogins, Surroundings};
use crate::host::meminfo;
use crate::host::preflight::{self, Refusal, network};
use crate::host::progress;
use crate::host::session::fetch_options;
use crate::install::tools::Tools;
use crate::vm::accel::prove_kvm;

pub use crate::host::preflight::{Finding, State};

/// Disk space for a first build's cache, bytes; 4 GiB of it are temporary, for the kubelet's compilation.
const CACHE_BYTES: u64 = 10 << 30;
/// Memory for compiling the kubelet, or for a guest beside its build, bytes.
const MEMORY_BYTES: u64 = 2 << 30;

/// Size limit of a suite's signed index, bytes.
const INRELEASE_BYTES: u64 = 4 << 20;
/// Runs all checks: those of every build, and the rest. `entered` is whether this user became root of a namespace; `tools`
/// gives the tools tree with QEMU, and is called only if no check of this host failed; with `true` where no mirror answers, and then only
/// what is in the cache counts.
pub fn examine(
    entered: Result<(), Refusal>,
    cache: &anyhow::Result<Cache>,
    tools: impl FnOnce(bool) -> anyhow::Result<Tools>,
) -> Vec<Finding> {
    let mut findings = preflight::examine(entered, cache, None);
    if let Ok(cache) = cache {
        findings.push(space("room for the cache", cache.root(), CACHE_BYTES));
    }
    findings.push(memory());
    let able = findings.iter().all(|finding| !finding.is_fatal());
    let (mirror, date) = mirror();
    let offline = mirror.is_fatal();
    findings.push(mirror);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    findings.extend(date.map(|date| clock(date, now)));
    findings.push(kvm(able.then_some(|| tools(offline))));
    findings
}

/// The findings as lines for people.
#[must_use]
pub fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.state {
            State::Good => "good   ",
            State::Poor => "poor   ",
            State::Missing => "missing",
        };
        out += &format!("{mark}  {:width$}  {}\n", finding.name, finding.found);
        if let Some(remedy) = &finding.remedy {
            out += &format!("{:9}{:width$}  → {remedy}\n", "", "");
        }
    }
    out
}

fn space(name: &'static str, folder: &Path, wanted: u64) -> Finding {
    let free = nix::sys::statvfs::statvfs(folder)
        .map(|stat| stat.blocks_available() * stat.fragment_size());
    let shown = folder.display();
    match free {
        Ok(free) if free >= wanted => {
            Finding::good(name, format!("{} free in {shown}", progress::bytes(free)))
        }
        Ok(free) => Finding::lack(
            name,
            State::Poor,
            format!("{} free in {shown}", progress::bytes(free)),
            format!(
                "a first build with a compiled kubelet takes up to {}; free some, or set SLIPWAY_CACHE to a folder on a larger disk",
                progress::bytes(wanted)
            ),
        ),
        Err(error) => Finding::lack(
            name,
            State::Missing,
            format!("{shown}: {error}"),
            "set SLIPWAY_CACHE to a folder that this user can write to",
        ),
    }
}

/// Runs a tiny guest on KVM: an existing device may still hang every guest.
fn kvm(tools: Option<impl FnOnce() -> anyhow::Result<Tools>>) -> Finding {
    const NAME: &str = "KVM";
    const SLOW: &str = "guests then run in software emulation, some ten times slower";
    let device = Path::new("/dev/kvm");
    let access = nix::unistd::AccessFlags::R_OK | nix::unistd::AccessFlags::W_OK;
    if let Err(error) = nix::unistd::access(device, access) {
        let remedy = if device.exists() {
            "have root run `usermod --append --groups kvm NAME`, then log in again"
        } else {
            "switch virtualisation on in the firmware and load kvm_intel or kvm_amd; in a guest, have nesting allowed"
        };
        let found = format!("{}: {}; {SLOW}", device.display(), error.desc());
        return Finding::lack(NAME, State::Poor, found, remedy);
    }
    let Some(tools) = tools else {
        let found = "there, but not proven: QEMU cannot be had before the rest is in order";
        return Finding::lack(NAME, State::Poor, found, "see above");
    };
    match tools().and_then(|tools| prove_kvm(&tools)) {
        Ok(Ok(took)) => Finding::good(
            NAME,
            format!("proven by a tiny guest in {}", progress::seconds(took)),
        ),
        Ok(Err(why)) => Finding::lack(
            NAME,
            State::Poor,
            format!(
                "a tiny guest does not run on it: {}; {SLOW}",
                why.lines().next().unwrap_or_default()
            ),
            "if this host is itself a guest, its own host has to allow nesting",
        ),
        Err(error) => Finding::lack(
            NAME,
            State::Poor,
            format!(
                "not proven, since QEMU cannot be had: {}",
                format!("{error:#}").lines().next().unwrap_or_default()
            ),
            "put the error right and ask again",
        ),
    }
}

/// Requests the suite's signed index from the mirror of a recipe without `mirror`; gives also the time when it was made.
fn mirror() -> (Finding, Option<u64>) {
    const NAME: &str = "Debian mirror";
    let mirrors = match Mirrors::find(None, None, &Host::here()) {
        Ok(mirrors) => mirrors,
        Err(error) => {
            let remedy = format!("export {MIRROR_VARIABLE}=http://…/debian");
            return (Finding::missing(NAME, format!("{error:#}"), remedy), None);
        }
    };
    let from = &mirrors.main_from;
    // An address may hold a password.
    let shown = fetch::shown(&mirrors.main);
    match ask(&format!("{}/dists/trixie/InRelease", mirrors.main)) {
        Ok((text, took)) => {
            let found = format!(
                "{shown} (from {from}) answers in {}",
                progress::seconds(took)
            );
            (Finding::good(NAME, found), made(&text))
        }
        Err(error) => {
            let found = format!("{shown} (from {from}): {error:#}");
            let remedy = network::remedy(&mirrors.main, &found).unwrap_or_else(|| {
                format!(
                    "check the network and the proxy variables (http_proxy, https_proxy, no_proxy), or set {MIRROR_VARIABLE}"
                )
            });
            (Finding::missing(NAME, found, remedy), None)
        }
    }
}

/// The time when an index was made.
fn made(index: &str) -> Option<u64> {
    let date = index.lines().find_map(|line| line.strip_prefix("Date: "))?;
    time(date.trim()).ok()
}

/// Compares this machine's clock with the time when the archive's index was made, both in seconds since 1970. A stable
/// release's index is made anew every two or three months.
fn clock(made: u64, now: u64) -> Finding {
    const NAME: &str = "clock";
    const DAY: u64 = 24 * 3600;
    const REMEDY: &str = "set the clock, as by `timedatectl set-ntp true`";
    let says = rfc3339(now);
    if now + DAY < made {
        let found = format!(
            "{says}, before the archive's index was made: {}",
            rfc3339(made)
        );
        return Finding::lack(NAME, State::Missing, found, REMEDY);
    }
    if now > made + 200 * DAY {
        let found = format!(
            "{says}, long after the archive's index was made: {}",
            rfc3339(made)
        );
        let remedy = format!("{REMEDY}; if it is right, the mirror is out of date");
        return Finding::lack(NAME, State::Poor, found, remedy);
    }
    Finding::good(NAME, says)
}

/// Fetches a small text, with a short timeout.
fn ask(url: &str) -> anyhow::Result<(String, Duration)> {
    let began = Instant::now();
    let logins = Arc::new(HostLogins::of(Surroundings::here()));
    let client = fetch::blocking::Client::new(&fetch_options(logins))?;
    let mut want = fetch::Want::new(url, INRELEASE_BYTES);
    want.patience.attempts = Some(2);
    want.patience.header_timeout = Duration::from_secs(5);
    let bytes = client.bytes(&want, &|_| (), &|_| ())?;
    Ok((
        String::from_utf8_lossy(&bytes).into_owned(),
        began.elapsed(),
    ))
}

fn memory() -> Finding {
    const NAME: &str = "memory";
    match meminfo::bytes(&meminfo::read(), "MemAvailable") {
        Some(bytes) if bytes >= MEMORY_BYTES => {
            Finding::good(NAME, format!("{} available", progress::bytes(bytes)))
        }
        Some(bytes) => Finding::lack(
            NAME,
            State::Poor,
            format!("{} available", progress::bytes(bytes)),
            format!(
                "compiling the kubelet and running a guest take {} each",
                progress::bytes(MEMORY_BYTES)
            ),
        ),
        None => Finding::lack(
            NAME,
            State::Poor,
            "/proc/meminfo does not say what is available",
            "mount /proc",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_a_year_wrong_is_not_good() {
        const YEAR: u64 = 365 * 24 * 3600;
        let made = made(
            "-----BEGIN PGP SIGNED MESSAGE-----\n\nOrigin: Debian\nDate: Sat, 15 Nov 2025 09:21:43 UTC\n",
        );
        let made = made.unwrap();
        assert_eq!(clock(made, made + 3600).state, State::Good);
        let behind = clock(made, made - YEAR);
        assert_eq!(behind.state, State::Missing);
        assert!(
            behind.found.contains("2025-11-15") && behind.remedy.is_some(),
            "{behind:?}"
        );
        let ahead = clock(made, made + YEAR);
        assert_eq!(ahead.state, State::Poor);
        assert!(ahead.remedy.unwrap().contains("out of date"));
    }

    #[test]
    fn a_full_disk_has_its_remedy() {
        let finding = space("room", Path::new("/"), u64::MAX);
        assert_eq!(finding.state, State::Poor);
        assert!(finding.remedy.unwrap().contains("SLIPWAY_CACHE"));
    }
}
