//! `kubelet lint`: the kubelet's container against its rules: the spec of the bundle or of a file, and the mounts that are
//! there now on the host and in the container.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use image::container_lint::{self, Broken};
use image::kubelet::{CONTAINER, CRUN_RECORDS, KUBELET_COMMAND, LINT_COMMAND, STATE};
use image::paths::{BUNDLE_FILE, RUN_KUBELET_BUNDLE};
use image::runtime_spec::Spec;
use linux::mount::{self, Entry as Mount};
use linux::world::World;
use serde_json::{Value, json};

/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "lint [--json] [FILE]: holds the kubelet's container, its bundle and its mounts, or the spec in FILE against the rules; \
     exit code 1 if one is broken";

/// Runs the command with its options; none for others.
pub(crate) fn command(program: &str, options: &[&str]) -> Option<ExitCode> {
    let world = World::real();
    let [LINT_COMMAND, options @ ..] = options else {
        return None;
    };
    let (as_json, file) = match options {
        [] => (false, None),
        ["--json"] => (true, None),
        ["--json", file] | [file, "--json"] if !file.starts_with('-') => (true, Some(*file)),
        [file] if !file.starts_with('-') => (false, Some(*file)),
        _ => return None,
    };
    let result = lint(&world, file.map(Path::new)).and_then(|report| {
        let text = if as_json {
            format!("{}\n", report.as_json())
        } else {
            report.as_text()
        };
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .context("writing the answer")?;
        Ok(report.broken.is_empty())
    });
    Some(match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {KUBELET_COMMAND} {LINT_COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// What was examined, and which rules are broken where.
#[derive(Debug, Default)]
struct Report {
    examined: Vec<String>,
    /// What could not be examined, with the reason.
    skipped: Vec<String>,
    broken: Vec<(String, Broken)>,
}

impl Report {
    fn take(&mut self, place: String, broken: Vec<Broken>) {
        self.broken
            .extend(broken.into_iter().map(|broken| (place.clone(), broken)));
        self.examined.push(place);
    }

    fn as_text(&self) -> String {
        let mut out = String::new();
        for (place, Broken { rule, found, fix }) in &self.broken {
            out += &format!("{place}: {rule}: {found}\n  fix: {fix}\n");
        }
        for skipped in &self.skipped {
            out += &format!("not examined: {skipped}\n");
        }
        let examined = self.examined.join(", ");
        match self.broken.len() {
            0 => out += &format!("no rule is broken: {examined}\n"),
            count => out += &format!("{count} broken rules: {examined}\n"),
        }
        out
    }

    fn as_json(&self) -> Value {
        let broken: Vec<Value> = self
            .broken
            .iter()
            .map(|(place, broken)| {
                json!({"place": place, "rule": broken.rule, "found": broken.found, "fix": broken.fix})
            })
            .collect();
        json!({"examined": self.examined, "notExamined": self.skipped, "broken": broken})
    }
}

/// Examines the spec in a file, or without one the node's bundle and what is mounted.
fn lint(world: &World, file: Option<&Path>) -> Result<Report> {
    let mut report = Report::default();
    if let Some(file) = file {
        report.take(file.display().to_string(), spec(file)?);
        return Ok(report);
    }
    let file = world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE);
    report.take(file.display().to_string(), spec(&file)?);
    let host = mount::table(world)?;
    report.take("mounts of the host".to_owned(), of_host(&host));
    match process(world) {
        Ok(process) => {
            let inside = mount::table_of(world, process)?;
            let place = format!("mounts of the container (process {process})");
            report.take(place, of_container(&host, &inside));
        }
        Err(error) => report
            .skipped
            .push(format!("mounts of the container: {error:#}")),
    }
    Ok(report)
}

fn spec(file: &Path) -> Result<Vec<Broken>> {
    let about = || format!("reading {}", file.display());
    let text = fs::read(file).with_context(about)?;
    let spec: Spec = serde_json::from_slice(&text).with_context(about)?;
    Ok(container_lint::spec(&spec))
}

/// The first process of the container, by the record of its runtime.
fn process(world: &World) -> Result<u32> {
    let file = world.in_run(CRUN_RECORDS).join(CONTAINER).join("status");
    let about = || format!("reading {}", file.display());
    let text = fs::read(&file).with_context(about)?;
    let record: Value = serde_json::from_slice(&text).with_context(about)?;
    let process = record["pid"].as_u64();
    process
        .and_then(|process| u32::try_from(process).ok())
        .with_context(|| format!("{} names no process", file.display()))
}

/// The group of a mount in which mounts below it go to each other (`shared:N`).
fn group(mount: &Mount) -> Option<&str> {
    let mut words = mount.propagation.iter();
    words.find_map(|word| word.strip_prefix("shared:"))
}

/// The mount that shows this path: the last of those with the longest target above it.
fn holds<'a>(mounts: &'a [Mount], path: &str) -> Option<&'a Mount> {
    let above = mounts
        .iter()
        .filter(|mount| Path::new(path).starts_with(&mount.target));
    above.max_by_key(|mount| mount.target.components().count())
}

fn of_host(mounts: &[Mount]) -> Vec<Broken> {
    let mut broken = doubled(mounts);
    let holder = holds(mounts, STATE);
    if holder.and_then(group).is_none() {
        let found = holder.map_or("no mount".to_owned(), |mount| {
            mount.target.display().to_string()
        });
        broken.push(Broken {
            rule: "shared",
            found: format!(
                "{STATE} lies on {found}, which is not shared: no volume reaches the pods"
            ),
            fix: "look for a program that made the mount private; `mount --make-rshared` on it, then restart kubelet.service",
        });
    }
    broken
}

/// The same part of the same file system more than once on one another: each restart of a wrong container doubles its mounts on
/// the host, until the kernel's limit is met and nothing starts any more. Copies on different mounts are none: a pod's volume is in the
/// container on its `/var/lib/kubelet`, and hidden below that on its `/var`, which follows the host's.
fn doubled(mounts: &[Mount]) -> Vec<Broken> {
    let by_id: BTreeMap<u64, &Mount> = mounts.iter().map(|mount| (mount.id, mount)).collect();
    // The mount that all of those at one target lie on.
    let below = |mount: &Mount| {
        let mut parent = mount.parent;
        for _ in mounts {
            match by_id.get(&parent) {
                Some(found) if found.target == mount.target => parent = found.parent,
                _ => break,
            }
        }
        parent
    };
    let mut counts: BTreeMap<(u64, &Path, &str, &Path), usize> = BTreeMap::new();
    for mount in mounts {
        let key = (
            below(mount),
            mount.target.as_path(),
            mount.device.as_str(),
            mount.root.as_path(),
        );
        *counts.entry(key).or_default() += 1;
    }
    let doubled = counts.into_iter().filter(|(_, count)| *count > 1);
    doubled
        .map(|((_, target, device, root), count)| Broken {
            rule: "doubled",
            found: format!(
                "{} of device {device} is mounted {count} times at {}, expected once",
                root.display(),
                target.display()
            ),
            fix: "look for a nested bind under a shared one: in a drop-in of kubelet.service, or in a pod with mountPropagation: Bidirectional",
        })
        .collect()
}

/// Peer groups have numbers of the whole machine: a mount in the container with a group of the host gives its mounts back.
fn of_container(host: &[Mount], inside: &[Mount]) -> Vec<Broken> {
    let groups: BTreeSet<&str> = host.iter().filter_map(group).collect();
    let back = |mount: &&Mount| group(mount).is_some_and(|group| groups.contains(group));
    let mut broken = doubled(inside);
    let elsewhere = inside
        .iter()
        .filter(back)
        .filter(|mount| !mount.target.starts_with(STATE));
    broken.extend(elsewhere.map(|mount| Broken {
        rule: "shared",
        found: format!(
            "{} is shared with the host, expected {STATE} only",
            mount.target.display()
        ),
        fix: "restart kubelet.service; if it comes back, `slipway-node kubelet lint` of its bundle says which bind it is",
    }));
    let target = PathBuf::from(STATE);
    let state = inside.iter().rev().find(|mount| mount.target == target);
    if !state.as_ref().is_some_and(back) {
        broken.push(Broken {
            rule: "shared",
            found: format!("{STATE} is not shared with the host: no volume reaches the pods"),
            fix: "restart kubelet.service; if it comes back, something made the host's mounts private",
        });
    }
    broken
}

#[cfg(test)]
mod tests {
    use image::paths::KUBELET_ROOTFS;
    use linux::world::Clock;

    use super::*;
    use crate::bundle;
    use crate::samples::put;

    const HOST: &str = "\
22 1 254:1 / / ro shared:1 - erofs /dev/dm-0 ro
30 22 254:4 / /var rw shared:7 - ext4 /dev/vda4 rw
31 22 0:5 / /run rw shared:9 - tmpfs tmpfs rw
90 30 0:40 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~secret/x rw shared:50 - tmpfs tmpfs rw
";
    /// As crun 1.21 mounts the bundle: with the root's propagation each mount has a group, and a slave that of the host too.
    const INSIDE: &str = "\
200 1 254:1 /usr/lib/slipway/kubelet/rootfs / ro shared:80 - erofs /dev/dm-0 ro
201 200 0:41 / /tmp rw shared:81 - tmpfs tmpfs rw
202 200 254:4 / /var rw shared:83 master:7 - ext4 /dev/vda4 rw
203 202 254:4 /lib/kubelet /var/lib/kubelet rw shared:7 - ext4 /dev/vda4 rw
204 203 0:40 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~secret/x rw shared:50 - tmpfs tmpfs rw
205 202 0:40 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~secret/x rw shared:84 master:50 - tmpfs tmpfs rw
206 200 0:22 / /sys rw shared:85 master:2 - sysfs sysfs rw
207 206 0:30 / /sys/fs/cgroup rw shared:86 master:3 - cgroup2 cgroup2 rw
";

    fn world(folder: &Path, host: &str, inside: Option<&str>) -> World {
        let world = World::below(folder, Clock::Real);
        put(&world.proc.join("self/mountinfo"), host);
        if let Some(inside) = inside {
            put(&world.proc.join("77/mountinfo"), inside);
            put(
                &world.in_run("/run/crun/kubelet/status"),
                "{\"pid\": 77, \"bundle\": \"/run/slipway/kubelet\"}",
            );
        }
        bundle::write(&world, KUBELET_ROOTFS).unwrap();
        world
    }

    fn rules(report: &Report) -> Vec<(&str, &str)> {
        let all = report.broken.iter();
        all.map(|(_, broken)| (broken.rule, broken.found.as_str()))
            .collect()
    }

    #[test]
    fn a_node_as_it_should_be_breaks_no_rule() {
        let folder = tempfile::tempdir().unwrap();
        let report = lint(&world(folder.path(), HOST, Some(INSIDE)), None).unwrap();
        assert_eq!(rules(&report), []);
        assert_eq!(report.examined.len(), 3);
        assert!(report.as_text().starts_with("no rule is broken: "));
        // Before the first start of the kubelet there is nothing to look into.
        let folder = tempfile::tempdir().unwrap();
        let report = lint(&world(folder.path(), HOST, None), None).unwrap();
        assert_eq!(rules(&report), []);
        assert_eq!(report.skipped.len(), 1, "{}", report.as_text());
    }

    #[test]
    fn mounts_that_double_leak_or_do_not_reach_the_pods_are_found() {
        let doubled = format!(
            "{HOST}91 90 0:40 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~secret/x rw shared:50 - tmpfs tmpfs rw\n"
        );
        for (host, inside, expected) in [
            (
                doubled.as_str(),
                INSIDE.to_owned(),
                "is mounted 2 times at /var/lib/kubelet/pods/a",
            ),
            (
                HOST,
                format!(
                    "{INSIDE}208 207 0:30 / /sys/fs/cgroup rw shared:87 master:3 - cgroup2 cgroup2 rw\n"
                ),
                "is mounted 2 times at /sys/fs/cgroup",
            ),
            (
                &HOST.replace(" shared:7", ""),
                INSIDE.replace("shared:7", "shared:82"),
                "/var/lib/kubelet lies on /var, which is not shared",
            ),
            (
                HOST,
                INSIDE.replace("rw shared:83 master:7", "rw shared:7"),
                "/var is shared with the host, expected /var/lib/kubelet only",
            ),
            (
                HOST,
                INSIDE.replace(
                    "/var/lib/kubelet rw shared:7",
                    "/var/lib/kubelet rw master:7",
                ),
                "/var/lib/kubelet is not shared with the host",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let report = lint(&world(folder.path(), host, Some(&inside)), None).unwrap();
            assert!(
                rules(&report)
                    .iter()
                    .any(|(_, found)| found.contains(expected)),
                "{expected}: {}",
                report.as_text()
            );
        }
    }

    #[test]
    fn a_files_broken_rules_are_listed_with_their_fixes() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), HOST, None);
        let bundle = world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE);
        let good = fs::read_to_string(bundle).unwrap();
        let file = folder.path().join("mine.json");
        put(&file, &good.replace("\"rslave\"", "\"rshared\""));
        let report = lint(&world, Some(&file)).unwrap();
        let json = report.as_json();
        let broken = json["broken"].as_array().unwrap();
        assert!(broken.iter().any(|b| b["rule"] == "nested"), "{json}");
        assert!(broken.iter().all(|b| b["fix"] != ""), "{json}");
        assert!(report.as_text().contains("  fix: "));
        // A spec of another form is named, and not taken for a good one.
        put(&file, &good.replace("\"mounts\"", "\"mount\""));
        let error = format!("{:#}", lint(&world, Some(&file)).unwrap_err());
        assert!(
            error.contains("mine.json") && error.contains("mount"),
            "{error}"
        );
    }
}
